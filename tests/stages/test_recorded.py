"""Answers that are recorded: what is handed on, and that a failing recording costs no answer."""

from __future__ import annotations

from typing import Any

import pytest

from umaserve.core.errors import Fault, RequestError
from umaserve.core.events import Finished, FinishReason, Output, Spoken, Token, Usage
from umaserve.stages.recorded import RecordedAnswer

ANSWER = [Token("a", 1), Spoken(b"\0" * 4), Token("b", 2), Finished(FinishReason.STOP, Usage(1, 2))]


class Recording:
    """Notes what it is told, and fails at the call of this name."""

    id = "chat_1"

    def __init__(self, failing: str = "") -> None:
        self.calls: list[str] = []
        self._failing = failing

    def __getattr__(self, name: str) -> Any:
        def call(*_: object) -> None:
            self.calls.append(name)
            if name == self._failing:
                raise LookupError("a mistake of ours")

        return call


def run(recording: Any, outputs: list[Any]) -> list[Output | RequestError]:
    handed_on: list[Output | RequestError] = []
    answer = RecordedAnswer(recording, handed_on.append)
    for output in outputs:
        answer.take(output)
    return handed_on


def test_an_answer_is_handed_on_as_it_comes_and_the_end_tells_of_the_recording() -> None:
    recording = Recording()
    *rest, end = run(recording, ANSWER)
    assert rest == ANSWER[:-1]
    assert isinstance(end, Finished)
    assert end.recording == "chat_1"
    assert recording.calls == ["heard", "end"]


def test_what_fails_is_not_kept() -> None:
    recording = Recording()
    error = RequestError(Fault.DECODE_FAILED, "decode", "failed")
    assert run(recording, [Token("a", 1), error]) == [Token("a", 1), error]
    assert recording.calls == ["drop"]


@pytest.mark.parametrize("failing", ["heard", "end"])
def test_a_mistake_of_ours_in_recording_costs_the_recording_alone(
    failing: str, caplog: pytest.LogCaptureFixture
) -> None:
    recording = Recording(failing)
    *rest, end = run(recording, ANSWER)
    assert rest == ANSWER[:-1]
    assert isinstance(end, Finished)
    assert end.recording is None
    assert recording.calls[-2:] == [failing, "drop"]
    assert "a mistake of ours" in caplog.text
