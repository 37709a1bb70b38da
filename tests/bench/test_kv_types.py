"""The comparison of KV types: coarser cells diverge further from f16."""

from __future__ import annotations

from bench.kv_types import EXACT, report
from umaserve.engine.llama.model import find
from umaserve.settings.daemon import Config


def test_coarser_cells_diverge_further() -> None:
    text = report(find(""), Config(threads=1), 10, (EXACT, ("q8_0", "f16"), ("q4_0", "q4_0")))
    lines = [line.split("|")[1:-1] for line in text.splitlines() if ", V " in line]
    exact, fine, coarse = (float(cells[1]) for cells in lines)
    assert exact == 0.0 < fine < coarse < 1
