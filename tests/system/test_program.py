"""Programs in child processes: their output, and that no end of theirs is more than an error here."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from umaserve.system.program import Cancelled, ProgramError, ProgramStopped, run, start

WITHOUT_LINUX = str(Path(__file__).parents[1] / "support/without_linux")


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Makes a module that does what it is told, and gives its name."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(does: str) -> str:
        begin = "import os, signal, sys, time\nfrom umaserve.system.program import begin\nbegin()\n"
        (tmp_path / "some_program.py").write_text(begin + does)
        return "some_program"

    return make


def result(name: str, *arguments: str, max_s: float = 60.0) -> bytes:
    return run(name, *arguments, wanted=lambda: True, max_s=max_s)


def test_the_output_is_returned(module) -> None:
    assert result(module("print(sys.argv[1:])"), "a b", "--c") == b"['a b', '--c']\n"


@pytest.mark.parametrize(
    ("does", "how"),
    [
        ("sys.exit('two\\nlines\\n')", "failed with status 1: lines"),
        ("sys.exit(3)", "failed with status 3: no message"),
        ("raise ZeroDivisionError('of zero')", "failed with status 1: ZeroDivisionError: of zero"),
        ("os.abort()", "ended by Aborted: no message"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "was killed, probably since memory was short: no message"),
        ("sys.stderr.buffer.write(b'\\xff' * 10**6); sys.exit(1)", "failed with status 1: " + 300 * "\ufffd"),
    ],
)
def test_every_bad_end_is_an_error_in_one_line(module, does: str, how: str) -> None:
    with pytest.raises(ProgramError) as caught:
        result(module(does))
    assert str(caught.value) == f"some_program {how}"
    assert isinstance(caught.value, ProgramStopped) == ("killed" in how)


def test_a_program_that_hangs_is_killed(module, tmp_path: Path) -> None:
    name = module(f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(600)")
    with pytest.raises(ProgramStopped, match=r"^some_program takes longer than 1 s$"):
        result(name, max_s=1.0)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_a_program_that_nobody_wants_any_more_is_killed(module, tmp_path: Path) -> None:
    name, started = module(f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(600)"), []

    def wanted() -> bool:
        pid = tmp_path / "pid"
        started.append(pid.exists() and pid.read_text() != "")
        return not started[-1]

    with pytest.raises(Cancelled):
        run(name, wanted=wanted, max_s=60.0)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


@pytest.mark.parametrize("path", [[], [WITHOUT_LINUX]], ids=["linux", "elsewhere"])
def test_a_program_ends_with_its_parent(module, tmp_path: Path, path: list[str]) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    name = module(f"open({str(fifo)!r}, 'wb').write(b'%d' % os.getpid()); time.sleep(600)")
    parent = f"from umaserve.system.program import run; run({name!r}, wanted=lambda: True, max_s=600)"
    reading = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    process = subprocess.Popen(
        [sys.executable, "-c", parent], env={**os.environ, "PYTHONPATH": os.pathsep.join([*path, *sys.path])}
    )
    try:
        assert select.select([reading], [], [], 30)[0]
        child = os.pidfd_open(int(os.read(reading, 20)))
    finally:
        os.close(reading)
        process.kill()
        process.wait()
    try:
        assert select.select([child], [], [], 30)[0]
    finally:
        os.close(child)


def test_a_program_is_nice_leads_its_session_and_leaves_no_core(module) -> None:
    does = "import resource; begin(nice=3); print(os.nice(0), os.getpid() == os.getsid(0), resource.getrlimit(4))"
    assert result(module(does)).decode().split("\n")[0] == f"{min(os.nice(0) + 3, 19)} True (0, 0)"


def test_a_variable_given_to_a_program_yields_to_the_environments_own(module, tmp_path, monkeypatch) -> None:
    name = module("print(os.environ['A_VARIABLE'], os.environ['ANOTHER'])")
    monkeypatch.setenv("ANOTHER", "own")
    output = tmp_path / "output"
    with output.open("wb") as file:
        assert start(name, stdout=file, variables={"A_VARIABLE": "given", "ANOTHER": "given"}).wait() == 0
    assert output.read_text() == "given own\n"
