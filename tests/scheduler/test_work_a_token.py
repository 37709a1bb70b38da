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

BOUNDS = {1: ((217, 148, 3), (57, 40, 3), 72, 62, 60), 16: ((1268, 979, 18), (240, 72, 3), 506, 152, 60)}
"""By the number of streams: calls in Python, in C and into the kernel of the loop's thread and of the one that calls
the engine; bytes to the engine and from it; bytes to each client. Measured: (215.8, 145.3, 3), (55, 38, 3), 69.7, 59,
59; and (1259.8, 969.4, 18), (235, 68, 3), 498.2, 149, 59. The margin is less than a call for each of 16 streams: where
threads meet, one or two more are made."""


@pytest.mark.parametrize("streams", BOUNDS)
def test_a_tick_takes_no_more_work(streams: int, tmp_path: Path) -> None:
    command = [sys.executable, str(SUPPORT / "counted_daemon.py"), str(tmp_path), str(streams)]
    paths = os.pathsep.join([str(SUPPORT), str(SUPPORT.parent.parent)])
    done = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": paths}, timeout=HANGS_S
    )
    loop, compute, calls, answers, *sizes = json.loads(done.stdout)
    assert (calls, answers) == (1, 1), "one frame to the engine and one back"
    loop_bound, compute_bound, *size_bounds = BOUNDS[streams]
    assert all(n <= most for n, most in zip(loop, loop_bound, strict=True)), (loop, loop_bound)
    assert all(n <= most for n, most in zip(compute, compute_bound, strict=True)), (compute, compute_bound)
    assert all(n <= most for n, most in zip(sizes, size_bounds, strict=True)), (sizes, size_bounds)
