"""``scripts/venv``, with stand-ins for Python, pip and the compiler: what a machine lacks is named before anything is
downloaded. ``scripts/test-newcomer`` tries it on a whole Debian, which takes minutes."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = ("sh", "cat", "cp", "dirname", "find", "grep", "mkdir", "sed", "sleep", "tail", "touch")
PYTHON = """
echo "$*" >>calls
case "$*" in
*ensurepip*) test ! -e no-ensurepip ;;
*python%d.%d-venv*) echo python3.11-venv ;;
*version_info*) test ! -e too-old ;;
--version) echo Python 3.10.1 ;;
-m\\ venv*) mkdir -p "$4/bin" && cp "$0" "$4/bin/python" ;;
*\\ --dry-run\\ *) test -e has-wheel ;;
esac
"""
HALF_MADE = 'echo "No module named pip" >&2; exit 1'


class Newcomer:
    """A checkout on a machine that has the usual tools, a Python, and, unless it is removed, a compiler."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.programs = folder / "programs"
        for name in ("programs", "scripts"):
            (folder / name).mkdir()
        for name in ("venv", "bare-venv", "compiler", "progress"):
            shutil.copy(ROOT / "scripts" / name, folder / "scripts")
        for name in ("setup.cfg", "pyproject.toml"):
            shutil.copy(ROOT / name, folder)
        for tool in TOOLS:
            path = shutil.which(tool)
            assert path is not None
            (self.programs / tool).symlink_to(path)
        self.program(self.programs / "python3", PYTHON)
        self.program(self.programs / "c++", "cat")

    def program(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def having(self, *names: str) -> Newcomer:
        for name in names:
            (self.folder / name).touch()
        return self

    def without(self, program: str) -> Newcomer:
        (self.programs / program).unlink()
        return self

    def install(self) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": str(self.programs), "HOME": str(self.folder)}
        script = [self.folder / "scripts" / "venv", "default-model"]
        return subprocess.run(script, env=environment, capture_output=True, text=True, timeout=60)

    @property
    def calls(self) -> list[str]:
        """Of Python."""
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []

    @property
    def installed(self) -> list[str]:
        """How umaserve itself was installed."""
        return [call for call in self.calls if call.endswith("-e .[default-model]")]


def test_it_is_installed_where_all_is_there(tmp_path: Path) -> None:
    machine = Newcomer(tmp_path)
    done = machine.install()
    assert done.returncode == 0, done.stderr
    (how,) = machine.installed
    assert "--only-binary" not in how
    assert not any("--dry-run" in call for call in machine.calls)


@pytest.mark.parametrize(
    ("machine_of", "package"),
    [
        (lambda folder: Newcomer(folder).without("python3"), "python3-venv"),
        (lambda folder: Newcomer(folder).having("no-ensurepip"), "python3.11-venv"),
    ],
    ids=["no Python", "no ensurepip"],
)
def test_a_missing_package_of_python_is_named_and_nothing_is_left(machine_of, package: str, tmp_path: Path) -> None:
    machine = machine_of(tmp_path)
    done = machine.install()
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.endswith(f"apt install {package}")
    assert not (tmp_path / ".venv").exists()


def test_what_is_missing_is_named_at_once(tmp_path: Path) -> None:
    done = Newcomer(tmp_path).having("no-ensurepip").without("c++").install()
    assert done.returncode == 1
    python, compiler = done.stderr.splitlines()
    assert python.endswith("apt install python3.11-venv")
    assert compiler.endswith("apt install g++")


def test_an_old_python_is_refused_with_how_to_name_another(tmp_path: Path) -> None:
    done = Newcomer(tmp_path).having("too-old").install()
    assert done.returncode == 1
    assert "this is Python 3.10.1; name another: PYTHON=python3.12" in done.stderr


def test_an_environment_that_was_half_made_is_made_anew(tmp_path: Path) -> None:
    machine = Newcomer(tmp_path)
    machine.program(tmp_path / ".venv/bin/python", HALF_MADE)
    done = machine.install()
    assert done.returncode == 0, done.stderr
    assert "-m venv --clear .venv" in machine.calls
    assert machine.installed


def test_an_environment_that_works_stays(tmp_path: Path) -> None:
    machine = Newcomer(tmp_path)
    machine.program(tmp_path / ".venv/bin/python", PYTHON)
    assert machine.install().returncode == 0
    assert not any(call.startswith("-m venv") for call in machine.calls)


def test_without_a_compiler_it_ends_before_anything_is_compiled(tmp_path: Path) -> None:
    machine = Newcomer(tmp_path).without("c++")
    done = machine.install()
    assert done.returncode == 1
    need, other_way = done.stderr.splitlines()
    assert need.endswith("apt install g++")
    assert "README.md (Without a compiler)" in other_way
    assert machine.installed == []
    assert "\n### Without a compiler\n" in (ROOT / "README.md").read_text()


def test_without_a_compiler_a_wheel_is_taken(tmp_path: Path) -> None:
    (tmp_path / "dist").mkdir()
    machine = Newcomer(tmp_path).having("has-wheel").without("c++")
    done = machine.install()
    assert done.returncode == 0, done.stderr
    (how,) = machine.installed
    assert "--only-binary llama-cpp-python --find-links dist" in how
    (trial,) = [call for call in machine.calls if "--dry-run" in call]
    wanted = trial.split()[-1]
    assert wanted.startswith("llama-cpp-python>")
    assert f"    {wanted}\n" in (ROOT / "setup.cfg").read_text()


def test_a_compiler_without_headers_is_none(tmp_path: Path) -> None:
    machine = Newcomer(tmp_path)
    machine.program(machine.programs / "c++", "exit 1")
    done = machine.install()
    assert done.returncode == 1
    assert "apt install g++" in done.stderr
