"""``umaserve models``, and the daemon's ``--model`` by a name."""

from __future__ import annotations

from pathlib import Path

import pytest

from umaserve.cli import main


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("small.gguf", "large.gguf", "mmproj-large.gguf"):
        (tmp_path / name).write_bytes(b"GGUF" + bytes(3 << 20))
    return tmp_path


def test_the_models_of_a_folder_are_listed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--models-dir", str(folder), "--model", "small"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.split() == ["*", "small", "3", "MiB", str(folder / "small.gguf")]
    assert second.split() == [
        "large",
        "3",
        "MiB",
        str(folder / "large.gguf"),
        "with",
        str(folder / "mmproj-large.gguf"),
    ]


def test_a_table_gives_a_name_and_a_description(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = folder / "x.toml"
    table = f'[models.best]\npath = "{folder}/large.gguf"\naliases = ["gpt"]\ndescription = "for all"\n'
    file.write_text(f'model = "gpt"\n{table}')
    assert main(["models", "--config", str(file)]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.split() == ["*", "best", "3", "MiB", f"{folder}/large.gguf", "gpt,", "large", "for", "all"]


def test_a_name_that_is_none_is_refused_with_those_that_are(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--models-dir", str(folder), "--model", "smal"]) == 2
    expected = "umaserve: model: smal: no such file, and no model of that name, did you mean small?: large, small\n"
    assert capsys.readouterr().err == expected
