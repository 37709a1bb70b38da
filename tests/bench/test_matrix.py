"""The matrix of loads: its rows, its goals, and the conversations that grow."""

from __future__ import annotations

import dataclasses
import math
import sys
from pathlib import Path

import pytest

from bench import matrix
from bench.llama_server import LAYOUTS
from bench.loads import Load
from bench.matrix import GOALS, TALK_GOALS
from bench.processes import daemon, trace_of
from bench.sides import OURS
from bench.trace import Measures, Stream, Trace, measures

MEASURED = Measures(100.0, 100.0, 500.0, 500.0, 500.0, 20.0, 20.0, 20.0, 0.1, 10.0, 500.0)


def measured(**values: float) -> Measures:
    return dataclasses.replace(MEASURED, **values)


def test_a_row_names_the_rival_with_the_highest_rate_and_marks_what_misses_its_goal():
    found = {
        OURS: measured(whole_rate=120.0, ttft_p95=530.0, gap_p95=90.0, gap_max=90.0),
        "slow": measured(whole_rate=50.0, ttft_p95=1.0),
        "fast": measured(whole_rate=100.0, ttft_p95=500.0, gap_p95=60.0, gap_max=200.0),
    }
    assert matrix._row(Load(8, 24, 32), found, GOALS) == [
        "8", "24", "32", "fast",
        "120", "100", "1.20",
        "530", "500", "1.06 !",
        "90.0", "60.0", "1.50 !",
        "90.0", "200", "0.45",
    ]  # fmt: skip


def test_gaps_below_the_target_are_good_enough_whatever_the_rivals():
    found = {OURS: measured(gap_p95=79.0), "theirs": measured(gap_p95=20.0)}
    assert matrix._row(Load(8, 24, 32), found, GOALS)[-6:-3] == ["79.0", "20.0", "3.95"]


def test_what_a_tick_takes_of_a_gap_is_shown_where_it_is_known():
    loads = {Load(8, 24, 32): {OURS: measured(tick_ms=17.5), "theirs": MEASURED}}
    assert ["8", "24", "32", "20.0", "17.5"] in [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in matrix._report(loads).splitlines()
    ]
    unknown = {Load(8, 24, 32): {OURS: measured(tick_ms=math.nan), "theirs": MEASURED}}
    assert "gap p50" not in matrix._report(unknown)


def test_the_daemon_tells_what_its_ticks_take_and_a_server_without_a_socket_does_not():
    with daemon("bench.standin") as at:
        assert Load(1, 10, 4).measure(at, 0).tick_ms >= 0
        assert math.isnan(Load(1, 10, 4).measure(at._replace(socket=""), 1).tick_ms)


def test_conversations_have_goals_of_their_own():
    found = {OURS: measured(ttft_p50=200.0), "theirs": MEASURED}
    row = matrix._row(Load(8, 60, 24, turns=4), found, TALK_GOALS)
    assert row[:4] == ["8", "4 x 60", "24", "theirs"]
    assert row[-6:] == ["200", "500", "0.40", "500", "500", "1.00 !"]


def test_a_load_has_cells_for_all_its_turns():
    assert Load(1, 600, 128).cells >= 600 * 1.33 + 128
    assert Load(1, 60, 24, turns=4).cells >= 4 * (60 * 1.33 + 24)


def test_rows_of_an_earlier_run_are_kept(tmp_path: Path):
    file = tmp_path / "rows.jsonl"
    load = Load(8, 24, 32)
    assert matrix._kept(file, "a.gguf", [load]) == {}
    found = {OURS: measured(steady_rate=math.inf), "theirs": MEASURED}
    matrix._keep(file, "a.gguf", load, found)
    matrix._keep(file, "b.gguf", Load(8, 60, 24, turns=4), found)
    assert matrix._kept(file, "a.gguf", [load, Load(8, 60, 24, turns=4)]) == {load: found}


def test_of_conversations_only_later_turns_count_for_the_first_token():
    streams = [Stream(0.0, [5.0, 6.0]), Stream(6.0, [6.5, 7.0], turn=1)]
    assert measures(Trace(streams, 0.0)).ttft_max == 5000
    assert measures(Trace(streams, 0.0), later=True).ttft_max == 500


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


def test_what_was_measured_before_a_server_failed_is_shown(monkeypatch, capsys):
    def measured_(model, loads, binary, layouts, repeats):
        yield loads[0], {OURS: measured(whole_rate=120.0), "-np N": MEASURED}
        raise RuntimeError("llama-server ended")

    monkeypatch.setenv("LLAMA_SERVER", sys.executable)
    monkeypatch.setattr(matrix, "_measured", measured_)
    with pytest.raises(SystemExit) as ended:
        matrix.main(["--clients", "1", "2"])
    assert ended.value.code == 1
    said = capsys.readouterr()
    assert "1.20" in said.out
    assert "Left out: 1 x 24 words, 128 tokens; 1 x 300 words" in said.out
    assert "llama-server ended" in said.err


def test_conversations_grow_on_a_daemon_behind_whose_wire_is_a_stand_in():
    with daemon("bench.standin") as at:
        talks = trace_of("bench.scenarios", "growing", at.http, 2, 10, 5, 3, 0, 20)
        single = trace_of("bench.scenarios", "growing", at.http, 2, 10, 5, 1, 0, 0)
    assert [(stream.turn, len(stream.tokens)) for stream in talks.streams] == [(0, 5), (1, 5), (2, 5)] * 2
    assert [(stream.turn, len(stream.tokens)) for stream in single.streams] == [(0, 5)] * 2
