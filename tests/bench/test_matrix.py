"""The matrix of loads: its rows, its goals, its picture, and the conversations that grow."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest

from bench import matrix
from bench.heat_map import draw
from bench.llama_server import LAYOUTS
from bench.matrix import GOALS, TALK_GOALS, Load
from bench.processes import daemon, trace_of
from bench.sides import OURS
from bench.trace import Measures, Stream, Trace, measures

MEASURED = Measures(100.0, 100.0, 500.0, 500.0, 500.0, 20.0, 20.0, 20.0, 0.1)


def measured(**values: float) -> Measures:
    return dataclasses.replace(MEASURED, **values)


def test_a_row_names_the_rival_with_the_highest_rate_and_marks_what_misses_its_goal():
    found = {
        OURS: measured(whole_rate=120.0, ttft_p95=500.0, gap_p95=30.0),
        "slow": measured(whole_rate=50.0, ttft_p95=1.0),
        "fast": measured(whole_rate=100.0, ttft_p95=500.0, gap_p95=20.0),
    }
    assert matrix._row(Load(8, 24, 32), found, GOALS) == [
        "8", "24", "32", "fast",
        "120", "100", "1.20",
        "500", "500", "1.00",
        "30.0", "20.0", "1.50 !",
        "20.0", "20.0", "1.00",
    ]  # fmt: skip


def test_conversations_have_goals_of_their_own():
    found = {OURS: measured(ttft_p50=200.0), "theirs": MEASURED}
    row = matrix._row(Load(8, 60, 24, turns=4), found, TALK_GOALS)
    assert row[:4] == ["8", "4 x 60", "24", "theirs"]
    assert row[-6:] == ["200", "500", "0.40", "500", "500", "1.00 !"]


def test_a_load_has_cells_for_all_its_turns():
    assert Load(1, 600, 128).cells >= 600 * 1.33 + 128
    assert Load(1, 60, 24, turns=4).cells >= 4 * (60 * 1.33 + 24)


def test_of_conversations_only_later_turns_count_for_the_first_token():
    streams = [Stream(0.0, [5.0, 6.0]), Stream(6.0, [6.5, 7.0], turn=1)]
    assert measures(Trace(streams, 0.0)).ttft_max == 5000
    assert measures(Trace(streams, 0.0), later=True).ttft_max == 500


def test_the_picture_shows_what_was_measured(tmp_path: Path):
    pytest.importorskip("matplotlib")
    grid = {("24 words", "1"): 1.2, ("24 words", "8"): 0.8, ("300 words", "1"): math.nan, ("300 words", "8"): 2.5}
    assert draw({"one": grid, "other": grid}, tmp_path / "matrix.png") == "Drawn in matrix.png.\n"
    assert (tmp_path / "matrix.png").read_bytes().startswith(b"\x89PNG")


def test_without_llama_server_it_says_what_to_do(monkeypatch, capsys):
    monkeypatch.delenv("LLAMA_SERVER", raising=False)
    with pytest.raises(SystemExit) as ended:
        matrix.main([])
    assert ended.value.code == 2
    assert "name llama-server's binary in LLAMA_SERVER" in capsys.readouterr().err


def test_every_way_to_run_llama_server_can_be_chosen(capsys):
    with pytest.raises(SystemExit):
        matrix.main(["--layouts", "none of them"])
    said = capsys.readouterr().err
    assert all(name in said for name in LAYOUTS)


def test_conversations_grow_on_a_daemon_behind_whose_wire_is_a_stand_in():
    with daemon("bench.standin") as at:
        talks = trace_of("bench.scenarios", "growing", at.http, 2, 10, 5, 3, 0)
        single = trace_of("bench.scenarios", "growing", at.http, 2, 10, 5, 1, 0)
    assert [(stream.turn, len(stream.tokens)) for stream in talks.streams] == [(0, 5), (1, 5), (2, 5)] * 2
    assert [(stream.turn, len(stream.tokens)) for stream in single.streams] == [(0, 5)] * 2
