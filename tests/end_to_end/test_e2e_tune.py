"""``umaserve tune`` with the real model: what it prints is a file for the daemon."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from program import run

SMALL = "n_ctx = 512\nparallel = 2\nthreads = 1\n"


@pytest.fixture
def small(tmp_path: Path) -> str:
    file = tmp_path / "small.toml"
    file.write_text(SMALL)
    return str(file)


def test_what_it_prints_is_a_configuration_file(small: str, tmp_path: Path) -> None:
    done = run("tune", "--config", small, "--seconds", "30")
    assert done.returncode == 0, done.stderr
    head, _units, first, *_others = done.stderr.splitlines()
    assert head.startswith("settings  ")
    assert "  2 streams  " in head
    assert first.startswith("present settings ")
    assert done.stderr.count("% best") == 1
    tuned = tmp_path / "tuned.toml"
    tuned.write_text(done.stdout)
    shown = run("--config", str(tuned), "--print-config")
    assert shown.returncode == 0, shown.stderr
    from_file = [line.split(" = ")[0] for line in shown.stdout.splitlines() if line.endswith(f"# file {tuned}")]
    # The weights are those of a variable.
    assert from_file == ["n_ubatch", "threads", "threads_batch", "flash_attn", "kv_type", "kv_type_k", "kv_type_v"]
    assert done.stdout.startswith('weights = "as-is"\n')


@pytest.mark.parametrize(
    ("arguments", "status", "error"),
    [
        (["--model", "/nowhere/x.gguf"], 1, "umaserve: model file '/nowhere/x.gguf': No such file or directory; "),
        (["--seconds", "0"], 2, "umaserve tune: --seconds: expected 1 or more, got 0 (see umaserve tune --help)\n"),
        (["--config", "/nowhere/x.toml"], 2, "umaserve: /nowhere/x.toml: can't be read: No such file or directory\n"),
        (["extra"], 2, "umaserve tune: unrecognized arguments: extra (see umaserve tune --help)\n"),
    ],
)
def test_errors_say_what_is_wrong_in_one_line(arguments: list[str], status: int, error: str) -> None:
    done = run("tune", *arguments)
    assert (done.returncode, done.stdout) == (status, "")
    assert done.stderr.startswith(error)
    assert done.stderr.count("\n") == 1


def test_too_little_time_is_an_error_that_says_so(small: str) -> None:
    done = run("tune", "--config", small, "--seconds", "1")
    error = "umaserve: not even the present settings could be measured in 1 s: give more with --seconds\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", error)


def test_ctrl_c_ends_it_while_it_measures(small: str) -> None:
    ours, terminal = os.openpty()
    # As from a terminal: where the tests run in a shell's background, Ctrl-C is ignored.
    command = ["env", "--default-signal=INT", sys.executable, "-m", "umaserve", "tune", "--config", small]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=terminal)
    os.close(terminal)
    shown = b""
    while b"present settings" not in shown:
        shown += os.read(ours, 4096)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    while chunk := _read(ours):
        shown += chunk
    os.close(ours)
    assert (process.returncode, output) == (130, b"")
    assert b"Traceback" not in shown
    assert b"\n" not in shown, "nothing was measured yet"


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # its other end is closed
        return b""
