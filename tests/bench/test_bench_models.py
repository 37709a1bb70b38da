"""Several models: what is told of a run, and that all sides have their answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import models, random_model
from bench.trace import Stream, Trace
from bench.two_models import NEW, ONE, ONE_MODEL, TWO


def test_a_storms_gaps_begin_with_the_one_that_it_falls_into():
    stream = Stream(0.0, [1.0, 1.1, 1.2, 1.4, 1.5])
    asked = [Stream(1.3, [2.0, 2.1], prompt_tokens=50), Stream(1.3, [3.0, 3.3], prompt_tokens=50)]
    found = models.storm(Trace([stream, *asked], 0.0))
    assert (found.gaps.p50, found.gaps.max) == (pytest.approx(150), pytest.approx(200))
    assert found.seconds == pytest.approx(2.0)
    assert found.rate == pytest.approx((5 + 2 + 2 + 100) / 2.0)


def test_a_switch_is_told_in_its_parts():
    found = models.switch(Trace([Stream(1.0, [2.5]), Stream(1.0, [3.0, 3.1]), Stream(4.0, [4.2, 4.3])], 0.0))
    assert found.first_token == pytest.approx(2000)
    assert found.loaded == pytest.approx(1500)
    assert found.next_answer == pytest.approx(200)


@pytest.mark.parametrize(
    ("tokens", "longest"),
    [
        # The longest one of all is after the loading.
        ([1.0, 1.01, 1.03, 2.1, 2.2, 2.9, 9.0], 1070),
        # The stream stood still all the time, and a while longer.
        ([1.0, 1.01, 1.03, 4.03], 3000),
    ],
)
def test_a_stream_is_told_alone_and_until_the_other_model_answers(tokens, longest):
    found = models.beside(Trace([Stream(0.9, tokens), Stream(2.0, [2.8, 2.85])], 0.0))
    assert found.alone.max == pytest.approx(20)
    assert found.loading.max == pytest.approx(longest)
    assert found.first_token == pytest.approx(800)


def test_every_side_but_ours_has_our_ratio_to_it():
    found = {ONE: [10.0, 20.0], TWO: [20.0, 20.0]}
    rows = rows_of(models._table(found, {"value": lambda run: run, "other": lambda _run: 1.0}, ["value"]))
    assert rows == [
        ["", "value", "ratio", "other"],
        ["one daemon", "15.0 (10.0 to 20.0)", "", "1.0 (1.0 to 1.0)"],
        ["two daemons", "20.0 (20.0 to 20.0)", "75.0% (50.0% to 100.0%)", "1.0 (1.0 to 1.0)"],
    ]


@pytest.mark.parametrize(
    ("measurement", "sides"),
    [("storm", [ONE, TWO, ONE_MODEL]), ("streams", [ONE, TWO, ONE_MODEL]), ("switch", [ONE, NEW]), ("beside", [ONE])],
)
def test_the_quick_mode_has_all_sides_answered(measurement, sides, tmp_path: Path, monkeypatch, capfd):
    model = tmp_path / "random.gguf"
    random_model.write(model, 10_000_000)
    monkeypatch.setenv("UMA_MODEL", str(model))
    monkeypatch.delenv("LLAMA_SERVER", raising=False)
    assert models.main(["--quick", "--only", measurement]) == 0
    said = capfd.readouterr().out
    rows = [row for row in rows_of(said) if row[0]]
    assert [row[0] for row in rows] == sides
    # A dash would stand for what could not be measured.
    values = [float(cell.split()[0].rstrip("%").replace(",", "")) for row in rows for cell in row[1:] if cell]
    assert min(values) >= 0.0 < max(values)
    assert "llama-server: not measured, LLAMA_SERVER is not set." in said


def test_no_rounds_are_refused(capsys):
    with pytest.raises(SystemExit) as ended:
        models.main(["--repeats", "0"])
    assert ended.value.code == 2
    assert "--repeats: expected at least 1, got 0" in capsys.readouterr().err


def rows_of(said: str) -> list[list[str]]:
    """Of all tables, without the rules."""
    lines = [line.split("|")[1:-1] for line in said.splitlines() if line.startswith("|") and "---:" not in line]
    return [[cell.strip() for cell in line] for line in lines]
