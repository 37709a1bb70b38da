"""The watch over speed: ratios, what counts as worse, records, and that the whole of it runs."""

from __future__ import annotations

import contextlib
import math
import os
import sys
from pathlib import Path

import pytest

from bench import loads, random_model, sides, speed
from bench.other_programs import OtherPrograms
from bench.processes import daemon
from bench.sides import OURS, THEIRS
from bench.speed_cells import BARE, QUICK, WHOLE, Figure, cells
from bench.speed_record import LEAST_SPREAD, Ratio, Record, latest, ratio_of, verdict, worse, write

FIGURE = Figure("tokens/s", float, lower_is_better=False)


def record(date: str = "2026-11-24T10:00:00+00:00", processor: str = "this one", **figures: Ratio) -> Record:
    return Record(processor, date, "abc1234", figures)


def test_a_ratio_is_more_than_1_where_umaserve_is_better():
    assert ratio_of([20.0, 30.0, 12.0], [10.0, 10.0, 10.0], lower_is_better=False) == Ratio(2.0, 1.2, 3.0)
    assert ratio_of([10.0, 20.0], [20.0, 20.0], lower_is_better=True) == Ratio(1.5, 1.0, 2.0)


@pytest.mark.parametrize("missing", [math.nan, 0.0])
def test_without_a_value_in_each_run_there_is_no_ratio(missing):
    assert ratio_of([1.0, missing], [1.0, 1.0], lower_is_better=False) is None
    assert ratio_of([1.0, 1.0], [missing, 1.0], lower_is_better=True) is None


@pytest.mark.parametrize(
    ("now", "before", "found"),
    [
        (Ratio(1.0, 1.0, 1.0), None, "new"),
        (Ratio(0.8, 0.75, 0.85), Ratio(1.0, 0.95, 1.05), "worse"),
        (Ratio(1.2, 1.15, 1.25), Ratio(1.0, 0.95, 1.05), "better"),
        # The spread of now, and of before, hides a change.
        (Ratio(0.8, 0.7, 1.0), Ratio(1.0, 0.99, 1.01), ""),
        (Ratio(0.8, 0.79, 0.81), Ratio(1.0, 0.9, 1.2), ""),
        # Two pairs that agree by chance.
        (Ratio(1.0 - LEAST_SPREAD / 2, 0.97, 0.98), Ratio(1.0, 1.0, 1.0), ""),
    ],
)
def test_a_change_counts_where_it_is_more_than_the_spread(now, before, found):
    assert verdict(now, before) == found


def test_what_is_worse_is_named_with_how_much():
    now = {"slow": Ratio(0.8, 0.78, 0.82), "same": Ratio(1.0, 1.0, 1.0), "new": Ratio(0.1, 0.1, 0.1)}
    before = record(slow=Ratio(1.0, 0.95, 1.05), same=Ratio(1.0, 1.0, 1.0), gone=Ratio(9.0, 9.0, 9.0))
    assert worse(now, before) == ["slow: 0.80 (0.78 to 0.82), was 1.00 (0.95 to 1.05): 20% worse, the spread is 10%"]


def test_the_last_record_of_the_same_kind_of_processor_counts(tmp_path: Path):
    assert latest(tmp_path / "none yet", "this one") is None
    first = record(figure=Ratio(1.0, 0.9, 1.1))
    write(tmp_path, record("2026-11-26T10:00:00+00:00", "another one"))
    assert latest(tmp_path, "this one") is None
    write(tmp_path, first)
    assert latest(tmp_path, "this one") == first
    last = record("2026-11-25T10:00:00+00:00", figure=Ratio(2.0, 2.0, 2.0))
    write(tmp_path, last)
    assert latest(tmp_path, "this one") == last


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"figures": {"a": [1, 2]}}', '{"figures": 3}'])
def test_a_file_that_is_no_record_is_named(tmp_path: Path, monkeypatch, capsys, content):
    (tmp_path / "bad.json").write_text(content)
    monkeypatch.delenv("LLAMA_SERVER", raising=False)
    with pytest.raises(SystemExit) as ended:
        speed.main(["--results", str(tmp_path)])
    assert ended.value.code == 2
    assert f"{tmp_path / 'bad.json'}: expected a record" in capsys.readouterr().err


def test_rounds_go_on_while_one_as_slow_as_the_slowest_has_time():
    def passing(durations: list[float], *, until: float) -> list[int]:
        passed, found = [0.0], list[int]()
        for round_ in speed.rounds(2, 5, until, lambda: sum(passed)):
            found.append(round_)
            passed.append(durations[round_])
        return found

    assert passing([1, 1, 1, 1, 1], until=100.0) == [0, 1, 2, 3, 4]
    assert passing([1, 3, 1, 1, 1], until=7.5) == [0, 1, 2]
    assert passing([9, 9, 1, 1, 1], until=1.0) == [0, 1]


def test_of_a_second_model_only_the_loads_are_measured():
    every = cells(WHOLE, ["one.gguf", "two.gguf"], sys.executable)
    assert len({cell.name for cell in every}) == len(every) == len(WHOLE.loads) + len(WHOLE.second) + 4
    assert sum(cell.name.startswith("two, ") for cell in every) == len(WHOLE.second)
    without = cells(WHOLE, ["one.gguf"], None)
    assert len(without) == len(WHOLE.loads)
    assert {figure.beside for cell in without for figure in cell.figures} == {BARE}


def test_a_machine_that_others_use_is_said_not_to_be_quiet():
    assert "NOT QUIET: other programs used 0.50 cores" in speed._quietness(0.5)
    assert speed._quietness(0.01).startswith("The machine was quiet")
    assert "can't be told" in speed._quietness(math.nan)


def test_what_a_record_says_and_which_one_is_there():
    said = speed._comparison(record(), "this one", ["slow: 20% worse"], quick=False)
    assert said == "WORSE than the record of 2026-11-24T10:00:00+00:00 (abc1234):\n- slow: 20% worse"
    assert speed._comparison(record(), "this one", [], quick=False).startswith("Nothing is worse than the record")
    assert "no record of this kind of processor (this one)" in speed._comparison(None, "this one", [], quick=False)


def test_the_table_has_the_recorded_ratio_and_the_verdict():
    rows = [speed._row("a load", FIGURE, [8.0, 8.0], [10.0, 10.0]), speed._row("other", FIGURE, [0.0], [1.0])]
    table = speed._table(rows, record(**{rows[0].name: Ratio(1.0, 1.0, 1.0)}))
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]
    assert lines == [
        ["a load", "tokens/s", THEIRS, "8.0", "10.0", "2", "0.80 (0.80 to 0.80)", "1.00 (1.00 to 1.00)", "worse"],
        ["other", "tokens/s", THEIRS, "0.0", "1.0", "1", "-", "", ""],
    ]


def test_cores_of_others_are_counted_from_the_kernels_counters():
    others = OtherPrograms()
    while math.isnan(others.cores()):
        pass
    assert 0.0 <= others.cores() <= (os.cpu_count() or 1)


def test_a_worse_ratio_is_the_exit_status(monkeypatch, capsys, tmp_path):
    row = speed._row("a load", FIGURE, [8.0], [10.0])
    monkeypatch.setattr(speed, "_measured", lambda plan, planned: [row])
    monkeypatch.setattr(speed, "_weights", lambda models: {"a.gguf": "mapped"})
    monkeypatch.delenv("LLAMA_SERVER", raising=False)
    options = ["--results", str(tmp_path)]
    assert speed.main([*options, "--record"]) == 0
    (kept,) = tmp_path.glob("*.json")
    of = latest(tmp_path, speed._kind())
    assert of is not None
    assert of.figures == {row.name: Ratio(0.8, 0.8, 0.8)}
    assert of.weights == {"a.gguf": "mapped"}
    assert speed.main(options) == 0
    write(tmp_path, Record(of.processor, "2999", "later", {row.name: Ratio(1.0, 1.0, 1.0)}))
    capsys.readouterr()
    assert speed.main(options) == 1
    assert f"WORSE than the record of 2999 (later):\n- {row.name}: 0.80" in capsys.readouterr().out
    assert kept.name.endswith(f"{of.commit}.json")


def test_tiny_runs_are_never_recorded(capsys):
    with pytest.raises(SystemExit) as ended:
        speed.main(["--quick", "--record"])
    assert ended.value.code == 2
    assert "--record: expected a whole run, got --quick" in capsys.readouterr().err


@pytest.mark.parametrize("beside", [None, sys.executable])
def test_the_quick_mode_measures_all_cells(beside, tmp_path: Path, monkeypatch, capfd):
    """llama-server's place is taken by a second daemon."""

    @contextlib.contextmanager
    def second(*_args, **settings):
        with daemon("umaserve", **settings) as at:
            yield at._replace(socket="")

    model = tmp_path / "random.gguf"
    # So large that the storm's stream of 6,000 tokens does not end before the storm.
    random_model.write(model, 60_000_000)
    monkeypatch.setenv("UMA_MODEL", str(model))
    monkeypatch.delenv("LLAMA_SERVER", raising=False)
    if beside is not None:
        monkeypatch.setenv("LLAMA_SERVER", beside)
        monkeypatch.setattr(loads, "llama_server", second)
        monkeypatch.setattr(sides.llama_server, "llama_server", second)
    assert speed.main(["--quick"]) == 0
    said = capfd.readouterr()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in said.out.splitlines() if line[:1] == "|"][2:]
    planned = cells(QUICK, [str(model)], beside)
    assert [row[:3] for row in rows] == [
        [cell.name, figure.title, figure.beside] for cell in planned for figure in cell.figures
    ]
    assert {side in said.err for side in (OURS, BARE)} == {True}
    assert all(float(row[3].replace(",", "")) >= 0.0 for row in rows)
    assert ("llama-server: not measured, LLAMA_SERVER is not set." in said.out) == (beside is None)
    assert "A second model: not measured" in said.out
    assert "other programs used" in said.out
    assert "Tiny runs: compared with no record." in said.out
