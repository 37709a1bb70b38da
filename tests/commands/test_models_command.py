"""``umaserve models``, and the daemon's ``--model`` by a name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def umaserve(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "umaserve", *arguments], capture_output=True, text=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("small.gguf", "large.gguf", "mmproj-large.gguf"):
        (tmp_path / name).write_bytes(b"GGUF" + bytes(3 << 20))
    return tmp_path


def test_the_models_of_a_folder_are_listed(folder: Path) -> None:
    first, second = umaserve("models", "--models-dir", str(folder), "--model", "small").stdout.splitlines()
    assert first.split() == ["*", "small", "3", "MiB", str(folder / "small.gguf")]
    assert second.split() == [
        "large",
        "3",
        "MiB",
        str(folder / "large.gguf"),
        "with",
        str(folder / "mmproj-large.gguf"),
    ]


def test_a_table_gives_a_name_and_a_description(folder: Path) -> None:
    file = folder / "x.toml"
    table = f'[models.best]\npath = "{folder}/large.gguf"\naliases = ["gpt"]\ndescription = "for all"\n'
    file.write_text(f'model = "gpt"\n{table}')
    (line,) = umaserve("models", "--config", str(file)).stdout.splitlines()
    assert line.split() == ["*", "best", "3", "MiB", f"{folder}/large.gguf", "gpt,", "large", "for", "all"]


def test_a_name_that_is_none_is_refused_with_those_that_are(folder: Path) -> None:
    refused = umaserve("--models-dir", str(folder), "--model", "smal")
    expected = "umaserve: model: smal: no such file, and no model of that name, did you mean small?: large, small\n"
    assert (refused.returncode, refused.stderr) == (2, expected)
