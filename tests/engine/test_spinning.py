"""How long libgomp's idle threads spin, which it reads when llama_cpp loads it."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from umaserve.engine import engine


@pytest.mark.parametrize(("given", "expected"), [({}, "1000"), ({"GOMP_SPINCOUNT": "300"}, "300")])
def test_idle_threads_spin_as_long_as_pays_unless_told_otherwise(given: dict[str, str], expected: str):
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("GOMP_", "OMP_"))}
    command = [sys.executable, "-c", f"import {engine.__name__}"]
    variables = {**environment, "OMP_DISPLAY_ENV": "verbose", **given}
    shown = subprocess.run(command, env=variables, capture_output=True, text=True, check=True).stderr
    if "GOMP_" not in shown:
        pytest.skip("this build of llama.cpp does not use GCC's OpenMP (libgomp)")
    assert re.search(r"GOMP_SPINCOUNT = '(\d+)'", shown)[1] == expected
