"""The files that ``scripts/reference`` makes are those that the code declares now."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def below(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_text() for path in files}


def test_made_files_are_as_the_code_declares(tmp_path: Path) -> None:
    command = [sys.executable, ROOT / "scripts/reference_pages", tmp_path]
    subprocess.run(command, check=True, env=os.environ | {"PYTHONPATH": str(ROOT)}, timeout=120)
    made = below(tmp_path)
    stale = {name for name, text in made.items() if not (ROOT / name).exists() or (ROOT / name).read_text() != text}
    stale |= {f"docs/api/{name}" for name in below(ROOT / "docs/api")} - made.keys()
    assert not stale, "make them anew with scripts/reference, and delete what it does not make"
