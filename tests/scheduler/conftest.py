"""A scheduler on a stand-in engine, whose ticks that run ahead are those that a whole plan comes to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from scheduler_world import SchedulerWorld

from umaserve.scheduler.planner import Planner
from umaserve.scheduler.work import Work

_after = Planner.after


def _planned_after(planner: Planner, work: Work) -> Work | None:
    following = _after(planner, work)
    assert following is None or planner._is_planned_again(work), "a whole plan comes to another tick"
    return following


@pytest.fixture(scope="session", autouse=True)
def whole_plans() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Planner, "after", _planned_after)
        yield


@pytest.fixture
def world() -> SchedulerWorld:
    return SchedulerWorld()
