"""The comparison of two builds of llama.cpp, here of one with itself."""

from __future__ import annotations

import sys

import pytest

from bench import wheels
from umaserve.engine.llama.model import find


def test_a_build_is_about_as_fast_as_itself(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UMA_THREADS", "1")
    monkeypatch.setattr(wheels, "ROWS", {1: "one", 2: "two"})
    assert wheels.main([sys.executable, "--seconds", "0"]) == 0
    shown = capsys.readouterr().out
    rows = [[cell.strip() for cell in line.split("|")] for line in shown.splitlines() if line.endswith("% |")]
    assert [row[1] for row in rows] == ["one", "two"]
    assert all(float(rate.replace(",", "")) > 0 for row in rows for rate in row[2:4])
    native, wheel = (line.partition(": ")[2] for line in shown.splitlines() if line.startswith(("- native", "- wheel")))
    assert native == wheel
    assert "CPU" in native


def test_an_interpreter_without_umaserve_is_named(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        wheels.main([str(tmp_path / "python")])
    assert ended.value.code == 1
    assert str(tmp_path / "python") in capsys.readouterr().err


def test_a_side_that_ends_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    side = wheels.Side(sys.executable, find(""), 1)
    try:
        with pytest.raises(RuntimeError, match=f"{sys.executable} ended with status 1"):
            side.decode_s("a word")  # type: ignore[arg-type]
    finally:
        side.end()
    assert "invalid literal" in capfd.readouterr().err
