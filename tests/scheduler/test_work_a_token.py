"""What the daemon does for a token, counted: more of it fails here, on whatever box."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SUPPORT = Path(__file__).parent.parent / "support"
HANGS_S = 300

BOUNDS = {
    ("uds", 1): ((147, 103, 4), 62, 60),
    ("uds", 16): ((933, 741, 19), 152, 60),
    ("sse", 1): ((164, 114, 4), 62, 228),
    ("sse", 16): ((1203, 916, 19), 152, 228),
}
"""By the client and the number of streams: calls in Python, in C and into the kernel of the loop's thread; bytes from
the engine; bytes to each client. Measured: (144.6, 101.2, 4), 59, 59; (918.3, 726.0, 18.9), 149, 59; and as events
(161.5, 112.1, 4) and (1188.2, 900.9, 18.9), with 227 bytes to each client. The margin is less than a call for each of
16 streams."""


@pytest.mark.parametrize(("client", "streams"), BOUNDS)
def test_a_tick_takes_no_more_work(client: str, streams: int, tmp_path: Path) -> None:
    command = [sys.executable, str(SUPPORT / "counted_daemon.py"), str(tmp_path), str(streams), client]
    paths = os.pathsep.join([str(SUPPORT), str(SUPPORT.parent.parent)])
    done = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": paths}, timeout=HANGS_S
    )
    loop, calls, grants, answers, *sizes = json.loads(done.stdout)
    assert (calls, grants, answers) == (0, 1, 1), "a byte to the engine and a frame back, and no other thread"
    loop_bound, *size_bounds = BOUNDS[client, streams]
    assert all(n <= most for n, most in zip(loop, loop_bound, strict=True)), (loop, loop_bound)
    assert all(n <= most for n, most in zip(sizes, size_bounds, strict=True)), (sizes, size_bounds)
