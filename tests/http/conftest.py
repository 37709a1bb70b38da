"""One HTTP connection; it ends with nothing in the log that would be a mistake of ours."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from http_world import HttpWorld
from standin import StandInVoice


@pytest.fixture
def world(caplog: pytest.LogCaptureFixture) -> Iterator[HttpWorld]:
    world = HttpWorld()
    yield world
    world.close()
    assert "a callback failed" not in caplog.text
    assert "internal error while serving the connection" not in caplog.text


@pytest.fixture
def spoken(caplog: pytest.LogCaptureFixture) -> Iterator[HttpWorld]:
    """A world with a voice that fails on "Fail"."""
    world = HttpWorld(voice=StandInVoice("Fail"))
    yield world
    world.close()
    assert "a callback failed" not in caplog.text
    assert "Traceback" not in caplog.text
    assert world.speech.idle
