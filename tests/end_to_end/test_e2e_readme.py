"""The README's blocks that start programs, as they stand there: they show what they say, end where a program has ended,
and leave none behind."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from balancers import free_ports

README = Path(__file__).parents[2] / "README.md"
BLOCK_S = 180
ENDS_S = 30


def blocks() -> list[str]:
    """Those that leave programs in the background."""
    found = re.findall(r"^```sh\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)
    return [block for block in found if re.search(r" &( |$)", block, re.MULTILINE)]


def elsewhere(block: str, folder: Path) -> str:
    """The block with sockets in ``folder``, and ports that nobody has."""
    block = block.replace("/tmp/uma-", f"{folder}/uma-")
    ports = set(re.findall(r":(8\d{3})\b", block))
    for port, free in zip(sorted(ports), free_ports(len(ports)), strict=True):
        block = block.replace(f":{port}", f":{free}")
    return block


def run(block: str, folder: Path, programs: Path = Path(sys.executable).parent) -> str:
    """What a block writes; fails where a program of its is there afterwards."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("UMA_")}
    variables |= {"PATH": f"{programs}:{os.environ['PATH']}", "UMA_WEIGHTS": "as-is"}
    shell = subprocess.Popen(
        ["bash", "-c", elsewhere(block, folder)], cwd=folder, env=variables, start_new_session=True, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        # To the end of what is left in the background, too.
        written, _ = shell.communicate(timeout=BLOCK_S)
    except subprocess.TimeoutExpired:
        os.killpg(shell.pid, signal.SIGKILL)
        pytest.fail(f"it does not end: {shell.communicate()[0]}")
    deadline = time.monotonic() + ENDS_S
    while runs(shell.pid):
        assert time.monotonic() < deadline, f"it leaves a program behind: {written}"
        time.sleep(0.01)
    return written


def runs(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_the_blocks_show_what_they_say(tmp_path: Path) -> None:
    """One after another in one folder: the last one has the secret of the one before."""
    shown = [run(block, tmp_path) for block in blocks()]
    with_keys, several, relayed, operated = shown
    for written in shown:
        assert "Traceback" not in written
        assert "No such process" not in written, written
    assert '"id":"SmolLM2-135M-Instruct.Q4_1"' in with_keys.replace(" ", "")
    assert '"finish_reason":"length"' in several.replace(" ", "")
    assert "unloaded" in several
    assert '"role":"assistant"' in relayed.replace(" ", "")
    assert '"key":' in operated.replace(" ", "")


@pytest.mark.parametrize("number", range(4))
def test_a_block_ends_where_its_programs_have_ended(number: int, tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, text in {"umaserve": "echo no >&2; exit 2", "python": f'exec {sys.executable} "$@"'}.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    assert "no" in run(blocks()[number], tmp_path, programs)
