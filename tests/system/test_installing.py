"""``scripts/venv`` and ``scripts/test``, with stand-ins for Python, pip and the compiler: what a machine lacks is named
before anything is downloaded, and no more is than is needed. ``scripts/test-newcomer`` installs on a whole Debian,
which takes minutes."""

from __future__ import annotations

import configparser
import functools
import importlib.metadata
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
TOOLS = "sh cat cmp cp dirname find grep mkdir mktemp rm sed sleep tail touch tr"
PYTHON = f"""
echo "$*" >>calls
case "$*" in
*ensurepip*) test ! -e no-ensurepip ;;
*python%d.%d-venv*) echo python3.11-venv ;;
*version_info*) test ! -e too-old ;;
--version) echo Python 3.10.1 ;;
-m\\ venv*) mkdir -p "$4/bin" && cp "$0" "$4/bin/python" ;;
*\\ --dry-run\\ *) test -e has-wheel ;;
*test_needs.py*) exec "{sys.executable}" "$@" ;;
*llama-cpp-python*version*) echo 1 ;;
*\\ download\\ *) exit 1 ;;
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
        for name in ("venv", "bare-venv", "compiler", "progress", "test", "test-quick", "test_needs.py"):
            shutil.copy(ROOT / "scripts" / name, folder / "scripts")
        for name in ("setup.cfg", "pyproject.toml"):
            shutil.copy(ROOT / name, folder)
        for name in ("bench", "tests", "umaserve"):
            (folder / name).symlink_to(ROOT / name)
        for tool in TOOLS.split():
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

    def run(self, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": str(self.programs), "HOME": str(self.folder)}
        command = [self.folder / "scripts" / script, *arguments]
        return subprocess.run(command, env=environment, cwd=self.folder, capture_output=True, text=True, timeout=60)

    def install(self) -> subprocess.CompletedProcess[str]:
        return self.run("venv", "default-model")

    @property
    def calls(self) -> list[str]:
        """Of Python."""
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []

    @property
    def installed(self) -> list[str]:
        """How umaserve itself was installed."""
        return [call for call in self.calls if " -e ." in call]

    @property
    def extras(self) -> list[str]:
        """Those that were installed, in the order of their installation."""
        return [extra for call in self.installed for extra in call.partition("[")[2].rstrip("]").split(",")]


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
    assert "docs/guide/install.md (Without a compiler)" in other_way
    assert machine.installed == []
    assert "\n## Without a compiler\n" in (ROOT / "docs/guide/install.md").read_text()


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


def test_the_readme_begins_with_the_packages_that_are_asked_for() -> None:
    first = (ROOT / "README.md").read_text().split("```sh\n")[1].split("```")[0]
    (packages,) = re.findall(r"^apt install (.*)", first, re.MULTILINE)
    assert {"python3-venv", "g++"} <= set(packages.split())
    assert first.index("apt install") < first.index("\nscripts/run")


@pytest.mark.parametrize(
    "script",
    [
        "agents",
        "bare-venv",
        "compiler",
        "picture",
        "reference",
        "run",
        "test",
        "test-newcomer",
        "test-quick",
        "venv",
        "wheels",
    ],
)
def test_scripts_are_of_the_standard_shell(script: str) -> None:
    checked = subprocess.run(["sh", "-n", ROOT / "scripts" / script], capture_output=True, text=True)
    assert (checked.returncode, checked.stderr) == (0, "")
    assert "\nset -eu\n" in (ROOT / "scripts" / script).read_text(), "a failure ends it"


OWN_EXTRAS = ["default-model", "speech", "media", "test"]


def test_an_extra_is_installed_once_and_again_when_what_it_names_has_changed(tmp_path: Path) -> None:
    machine = Newcomer(tmp_path)
    for extras in ("media", "media,test", "test"):
        assert machine.run("venv", extras).returncode == 0
    assert machine.extras == ["media", "test"]
    (tmp_path / "setup.cfg").touch()
    assert machine.run("venv", "test").returncode == 0
    assert machine.extras == ["media", "test", "test"]


def test_tests_that_need_no_client_have_none_installed(tmp_path: Path) -> None:
    machine = Newcomer(tmp_path)
    done = machine.run("test", "tests/wire", "-k", "framing")
    assert done.returncode == 0, done.stderr
    assert machine.calls[-1] == "-m pytest tests/wire -k framing"
    assert machine.extras == OWN_EXTRAS
    assert not any(re.search(r" (download|show) |/pypi", call) for call in machine.calls)
    assert "scripts/test:" not in done.stderr


def test_what_tests_need_is_named_as_it_is_installed(tmp_path: Path) -> None:
    machine = Newcomer(tmp_path)
    # npm is not in PATH.
    done = machine.run("test", *(f"tests/end_to_end/test_e2e_{name}.py" for name in ("npm", "pypi", "page")))
    assert done.returncode == 0, done.stderr
    assert machine.extras == [*OWN_EXTRAS, "peers"]
    for named in ("[peers]", "clients from npm", "Python clients into .venv/pypi"):
        assert f"installing umaserve{named}" in done.stderr or f"scripts/test: installing {named}" in done.stderr
    assert "scripts/test: there is no npm" in done.stderr
    done = machine.run("test", "tests/engine/test_llama_templates.py::test_nothing")
    assert "scripts/test: fetching llama.cpp's chat templates" in done.stderr
    assert "their test is skipped" in done.stderr


def test_quick_tests_have_all_but_llama_cpp_in_an_environment_of_their_own(tmp_path: Path) -> None:
    machine = Newcomer(tmp_path).without("c++")
    done = machine.run("test", "quick", "-k", "framing")
    assert done.returncode == 0, done.stderr
    packages, umaserve = [call for call in machine.calls if " install " in call]
    assert {"h11>=0.16", "pytest>=9", "openai>=3.54"} <= set(packages.split())
    assert "llama-cpp-python" not in packages
    assert umaserve.endswith(" --no-deps -e .")
    tests = machine.calls[-1].split()
    assert tests[-2:] == ["-k", "framing"]
    named = {Path(word).name for word in tests if word.endswith(".py")}
    assert {"test_framing.py", "test_scheduler.py", "test_relay_pool.py", "test_openai.py", "test_cli.py"} <= named
    assert not named & {"test_engine.py", "test_client.py", "test_tune.py", "test_systemd.py", "test_e2e_tune.py"}
    assert machine.run("test", "quick").returncode == 0
    assert [call for call in machine.calls if " install " in call] == [packages, umaserve], "it is installed once"


@functools.cache
def closure(line: str) -> frozenset[str]:
    """The names of the installed packages that a line of setup.cfg brings."""
    names: set[str] = set()
    waiting = [Requirement(line)]
    seen: set[str] = set()
    while waiting:
        wanted = waiting.pop()
        if str(wanted) in seen:
            continue
        seen.add(str(wanted))
        names.add(canonicalize_name(wanted.name))
        try:
            further = map(Requirement, importlib.metadata.requires(wanted.name) or ())
        except importlib.metadata.PackageNotFoundError:
            continue
        extras = ("", *wanted.extras)
        waiting += [one for one in further if not one.marker or any(one.marker.evaluate({"extra": e}) for e in extras)]
    return frozenset(names)


def test_every_package_that_a_test_imports_is_in_what_is_installed_for_it() -> None:
    """Otherwise ``scripts/test PATH`` would not run that test on a new machine."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    lines = setup["options.extras_require"]
    own = setup["options"]["install_requires"] + "".join(lines[extra] for extra in OWN_EXTRAS)
    distributions = importlib.metadata.packages_distributions()
    needs = runpy.run_path(str(ROOT / "scripts" / "test_needs.py"))["needs"]
    for path in (ROOT / "tests").rglob("test_*.py"):
        needed = needs([path])
        brought = own + "".join(lines[need] for need in needed if need in lines)
        packages = frozenset().union(*map(closure, brought.split()))
        for module in set(re.findall(r"^(?:from|import) (\w+)", path.read_text(), re.MULTILINE)) & set(distributions):
            names = set(map(canonicalize_name, distributions[module]))
            assert names & packages or "umaserve" in names, f"{path} imports {module}, and needs {needed}"
