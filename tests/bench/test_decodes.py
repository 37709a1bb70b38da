"""Single decodes: the table, the time limit, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import decodes, random_model
from bench.decodes import within


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("model") / "random.gguf"
    random_model.write(path, 10_000_000)
    return path


def test_each_number_of_streams_has_a_row_for_shared_and_one_for_divided_cells(model, monkeypatch, capsys):
    monkeypatch.setenv("UMA_MODEL", str(model))
    monkeypatch.setenv("UMA_THREADS", "1")
    sizes = ["--streams", "1", "3", "--cells", "20", "--prompt", "8", "--repeats", "1"]
    assert decodes.main(sizes) == 0
    said = capsys.readouterr().out
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in said.splitlines() if line.startswith("|")][2:]
    assert [row[:2] for row in rows] == [["1", "shared"], ["1", "divided"], ["3", "shared"], ["3", "divided"]]
    assert all(float(cell.replace(",", "")) > 0 for row in rows for cell in row[2:])
    assert "Left out" not in said


def test_what_has_no_time_is_named(model, monkeypatch, capsys):
    monkeypatch.setenv("UMA_MODEL", str(model))
    assert decodes.main(["--streams", "1", "2", "--cells", "20", "--prompt", "8", "--limit", "1e-9"]) == 0
    said = capsys.readouterr().out
    left_out = "1 streams, shared cells; 1 streams, divided cells; 2 streams, shared cells; 2 streams, divided cells"
    assert f"Left out: {left_out}." in said


def test_a_task_begins_only_if_there_is_time_for_twice_the_longest_before():
    clock = iter([0.0, 1.0, 1.0, 5.0, 5.0, 7.0, 13.0])
    # They take 1, 4 and 2 seconds; the fourth would begin at 13, and might end at 21.
    assert list(within(20.0, "abcde", 0.0, lambda: next(clock))) == ["a", "b", "c"]
    assert list(within(0.0, "abcde", 0.0)) == list("abcde")


def test_a_prompt_for_which_a_decode_is_too_small_is_refused(monkeypatch, capsys):
    monkeypatch.setenv("UMA_N_BATCH", "512")
    with pytest.raises(SystemExit) as ended:
        decodes.main(["--streams", "128", "--prompt", "400"])
    assert ended.value.code == 2
    assert "--prompt: expected at most 384 rows, since UMA_N_BATCH is 512" in capsys.readouterr().err
