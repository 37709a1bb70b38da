"""Relays in the tests' process, ended after each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis_server import MISSING, PROGRAM, RedisServer
from relay_peers import Relay


@pytest.fixture
def start() -> Iterator[Callable[..., Relay]]:
    """Starts relays with settings of the test's own."""
    made: list[Relay] = []

    def make(**settings: Any) -> Relay:
        made.append(Relay(**settings))
        return made[-1]

    yield make
    for relay in made:
        relay.end()


@pytest.fixture
def relay(start: Callable[..., Relay]) -> Relay:
    return start()


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    """It is not started yet."""
    if PROGRAM is None:
        pytest.skip(MISSING)
    server = RedisServer(tmp_path)
    yield server
    server.kill()
