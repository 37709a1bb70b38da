"""What watchers of the box cost: the verdict."""

from __future__ import annotations

import pytest

from bench import watched


@pytest.mark.parametrize(("seen", "verdict"), [(0.0105, "the goal is met"), (0.0106, "the goal is missed")])
def test_the_median_of_all_rounds_decides(seen: float, verdict: str):
    text = watched.report([(0.01, 0.5), (0.01, seen), (0.01, 0.001)], 10)
    assert verdict in text
    assert "p95 with 10" in text
