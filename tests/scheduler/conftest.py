"""A scheduler on a stand-in engine."""

from __future__ import annotations

import pytest
from scheduler_world import SchedulerWorld


@pytest.fixture
def world() -> SchedulerWorld:
    return SchedulerWorld()
