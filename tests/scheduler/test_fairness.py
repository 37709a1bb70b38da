"""The policy on simulated boxes: nobody starves."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator

import pytest

from umaserve.core.requests import Priority
from umaserve.scheduler.policy.policy import (
    plan,
)
from umaserve.scheduler.policy.snapshot import AGING_S, Plan, Prompt, Snapshot, Stream
from umaserve.sessions.cost_model import Cost

COST = Cost(0.002, 0.004, 0.003, 0.0005)


def prefilled(the_plan: Plan) -> int:
    return sum(tokens for _, tokens in the_plan.prefill)


@dataclasses.dataclass
class Job:
    """A request that comes at its time, and how far it is."""

    arrives_at: float
    prompt_tokens: int
    answer_tokens: int
    priority: Priority = Priority.INTERACTIVE
    target_ttft_s: float = 1.0
    computed: int = 0
    generated: int = 0
    started: bool = False
    first_token_at: float = math.inf
    ended_at: float = math.inf

    @property
    def cells(self) -> int:
        return self.prompt_tokens + self.answer_tokens


class Box:
    """Ticks as the scheduler runs them, each as long as the cost model says."""

    def __init__(self, jobs: Iterator[Job], slots: int = 4, cells: int = 4000) -> None:
        self.now = 0.0
        self.slots, self.cells = slots, cells
        self.longest_gap = 0.0
        self._future = jobs
        self._next = next(jobs)
        self.jobs: list[Job] = []
        self._waiting: dict[int, Job] = {}

    def tick(self) -> None:
        while self._next.arrives_at <= self.now:
            self._waiting[len(self.jobs)] = self._next
            self.jobs.append(self._next)
            self._next = next(self._future)
        waiting = self._waiting
        holders = [job for job in waiting.values() if job.started]
        cached = sum(job.computed for job in holders)
        the_plan = plan(
            Snapshot(
                now=self.now,
                streams=[Stream(id_, 0.1) for id_, job in waiting.items() if job.computed >= job.prompt_tokens],
                prompts=[
                    Prompt(
                        id_,
                        job.prompt_tokens - job.computed,
                        job.arrives_at,
                        job.target_ttft_s,
                        job.priority,
                        job.started,
                        job.cells,
                    )
                    for id_, job in waiting.items()
                    if job.computed < job.prompt_tokens
                ],
                free_slots=self.slots - len(holders),
                free_cells=self.cells - sum(job.cells for job in holders),
                cached=cached,
                batch_tokens=256,
                cost=COST,
            )
        )
        if not the_plan.decode and not the_plan.prefill:
            self.now = self._next.arrives_at
            return
        seconds = COST.seconds(len(the_plan.decode), prefilled(the_plan), cached)
        self.now += seconds
        if the_plan.decode:
            self.longest_gap = max(self.longest_gap, seconds)
        for id_, _ in the_plan.decode:
            self._token(id_)
        for id_, tokens in the_plan.prefill:
            job = self.jobs[id_]
            job.started = True
            job.computed += tokens
            if job.computed == job.prompt_tokens:
                job.first_token_at = self.now
                self._token(id_)

    def _token(self, id_: int) -> None:
        job = self.jobs[id_]
        job.generated += 1
        if job.generated == job.answer_tokens:
            job.ended_at = self.now
            del self._waiting[id_]


def steady(every_s: float, others: list[Job]) -> Iterator[Job]:
    """Short interactive requests for ever, and the others among them."""
    arrivals = (Job(number * every_s, 60, 12) for number in itertools.count())
    waiting = sorted(others, key=lambda job: job.arrives_at)
    for job in arrivals:
        while waiting and waiting[0].arrives_at <= job.arrives_at:
            yield waiting.pop(0)
        yield job


@pytest.mark.parametrize(
    "every_s",
    [pytest.param(0.35, id="a busy box"), pytest.param(0.18, id="more than the box can do")],
)
@pytest.mark.parametrize(
    "other",
    [
        pytest.param(lambda: Job(5.0, 60, 12, Priority.BACKGROUND), id="background"),
        pytest.param(lambda: Job(5.0, 3000, 12, Priority.BACKGROUND), id="long background"),
        pytest.param(lambda: Job(5.0, 3000, 12, target_ttft_s=60.0), id="long prompt"),
        pytest.param(lambda: Job(5.0, 60, 3900), id="needs nearly all the cells"),
    ],
)
def test_background_work_and_long_prompts_finish_under_a_steady_stream(
    other: Callable[[], Job], every_s: float
) -> None:
    job = other()
    box = Box(steady(every_s, [job]))
    # On an overloaded box, whoever came up to AGING_S later may still be ahead, and takes so much the longer.
    while job.ended_at == math.inf and box.now < 6 * AGING_S:
        box.tick()
    assert job.ended_at < math.inf
    assert box.longest_gap < 0.1, "and the running streams keep their target all the while"


def test_interactive_requests_hardly_notice_background_work() -> None:
    background = [Job(2.0 + number, 300, 5, Priority.BACKGROUND) for number in range(5)]
    box = Box(steady(0.5, background))
    while any(job.ended_at == math.inf for job in background):
        box.tick()
    interactive = [job for job in box.jobs if job.priority is Priority.INTERACTIVE and job.started]
    assert len(interactive) > 10
    assert max(min(job.first_token_at, box.now) - job.arrives_at for job in interactive) < 1.0
