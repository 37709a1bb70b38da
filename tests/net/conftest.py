"""A loop in invented seconds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from clock import Clock
from watched_loop import WatchedLoop


@pytest.fixture
def clock() -> Clock:
    return Clock(100.0)


@pytest.fixture
def loop(clock: Clock) -> Iterator[WatchedLoop]:
    loop = WatchedLoop(clock)
    yield loop
    loop.close()
