"""Spoken questions: what is told of a turn, and that both forms have their answers."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

from bench import talk

pytest.importorskip("hibari", reason="hibari-tts is not installed")


def events(*kinds: str, **response: Any) -> list[tuple[float, dict[str, Any]]]:
    """Events at seconds from 10 on; ``response``: of the last one."""
    told: list[dict[str, Any]] = [{"type": kind} for kind in kinds]
    told[-1]["response"] = response
    return list(zip(itertools.count(10.0), told, strict=False))


def test_a_turn_is_told_by_the_first_event_of_each_step():
    usage = {"input_tokens": 90, "input_token_details": {"cached_tokens": 60}}
    sounds = ("response.output_audio.delta",) * 2
    said = events(
        "input_audio_buffer.speech_stopped",
        "response.created",
        "response.output_audio_transcript.delta",
        *sounds,
        "response.done",
        status="incomplete",
        usage=usage,
    )
    turn = talk.Turn.of(9.5, said)
    assert turn.after == {"speech stopped": 500, "response": 1500, "text": 2500, "sound": 3500}
    assert turn.computed == 30
    assert math.isnan(talk.Turn.of(9.5, said[1:]).after["speech stopped"])


@pytest.mark.parametrize("status", ["failed", "cancelled"])
def test_an_answer_that_fails_is_no_turn(status: str):
    with pytest.raises(RuntimeError, match=status):
        talk.Turn.of(0.0, events("response.done", status=status, usage=None))


def test_the_rows_are_the_first_turns_and_the_medians_of_the_others():
    def turn(ms: float, computed: int) -> talk.Turn:
        return talk.Turn({"speech stopped": 500, "response": 501, "text": ms, "sound": 2 * ms}, computed)

    rows = list(talk.rows("spoken", [turn(800, 90), turn(600, 9), turn(math.nan, 11), turn(700, 10)]))
    assert rows == [
        ["spoken, first turn", "500", "501", "800", "1,600", "1,100", "90.0"],
        ["spoken, later turns", "500", "501", "650", "1,300", "800", "10.0"],
    ]


def test_the_quick_mode_has_questions_answered_that_are_spoken_and_written(monkeypatch, capfd):
    pytest.importorskip("gguf")
    monkeypatch.setenv("UMA_THREADS", "1")
    assert talk.main(["--quick"]) == 0
    lines = [line for line in capfd.readouterr().out.splitlines() if "turn" in line and line.startswith("|")]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    assert [row[0] for row in rows] == [
        f"{how}, {which} turn{'s' * (which == 'later')}"
        for how in ("spoken", "written")
        for which in ("first", "later")
    ]
    told = [[float(cell.replace(",", "")) for cell in row[1:] if cell != "-"] for row in rows]
    assert [len(row) for row in told] == [6, 6, 5, 5], "a dash stands for what never came"
    assert min(map(min, told)) > 0
