"""A box that runs sessions by an invented clock, each tick as a policy plans it and as long as it costs."""

from __future__ import annotations

import math
import random
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from bench.box import Box
from umaserve.core.requests import Priority
from umaserve.kvcache.reservations import AnswerLengths, step
from umaserve.scheduler.policy import policy
from umaserve.scheduler.policy.snapshot import Plan, Prompt, Snapshot, Stream

Policy = Callable[[Snapshot], Plan]


@dataclass(frozen=True, slots=True)
class Load:
    """What sessions ask for. Lengths are lognormal around their median and cut; targets in seconds."""

    prompt_tokens: int = 100
    answer_tokens: int = 40
    spread: float = 0.8
    """The standard deviation of the logarithm of a length."""
    most_times: int = 8
    """No length is above so many medians, and no answer may be."""
    background: float = 0.3
    """The share of sessions that are background work."""
    ttft_s: float = 1.0
    tbt_s: float = 0.1
    background_factor: float = 10.0
    """How many times as long the targets of background work are."""

    @property
    def max_tokens(self) -> int:
        return self.most_times * self.answer_tokens


@dataclass(slots=True)
class Job:
    """One session: what it asks for, and how far it is."""

    id: int
    arrived_at: float
    prompt_tokens: int
    answer_tokens: int
    """Known to nobody before the last one is made."""
    max_tokens: int
    priority: Priority
    target_ttft_s: float
    target_tbt_s: float
    computed: int = 0
    """KV cells filled."""
    generated: int = 0
    cells: int = 0
    """Cells promised to it while it has a slot."""
    first_token_at: float = math.nan
    last_token_at: float = math.nan
    refused: bool = False

    @property
    def placed(self) -> bool:
        return self.cells > 0

    @property
    def most(self) -> int:
        """The cells that it can need."""
        return self.prompt_tokens + self.max_tokens

    @property
    def length(self) -> int:
        """What has to be computed before its next token."""
        return self.prompt_tokens + self.generated

    @property
    def done(self) -> bool:
        return self.generated == self.answer_tokens

    @property
    def ttft_s(self) -> float:
        """NaN where no token was made."""
        return self.first_token_at - self.arrived_at

    @property
    def attained(self) -> bool:
        """Whether it was served, with the first token and, on average, each later one within its target."""
        later = self.generated - 1
        in_time = self.last_token_at - self.first_token_at <= later * self.target_tbt_s
        return self.done and self.ttft_s <= self.target_ttft_s and in_time


def jobs(load: Load, count: int, rate: float, seed: int) -> list[Job]:
    """``count`` sessions, ``rate`` a second on average. Another rate brings the same ones, only faster or slower."""
    dice = random.Random(seed)
    made: list[Job] = []
    now = 0.0
    for id_ in range(count):
        now += dice.expovariate(1.0) / rate
        prompt, answer = _length(dice, load.prompt_tokens, load), _length(dice, load.answer_tokens, load)
        in_background = dice.random() < load.background
        factor = load.background_factor if in_background else 1.0
        priority = Priority.BACKGROUND if in_background else Priority.INTERACTIVE
        targets = factor * load.ttft_s, factor * load.tbt_s
        made.append(Job(id_, now, prompt, answer, load.max_tokens, priority, *targets))
    return made


def _length(dice: random.Random, median: int, load: Load) -> int:
    return min(max(1, round(median * dice.lognormvariate(0.0, load.spread))), load.most_times * median)


def most_rate(box: Box, sessions: Sequence[Job]) -> float:
    """Sessions a second that ``box`` could carry with its slots always full and no target to keep."""
    prompt = sum(job.prompt_tokens for job in sessions) / len(sessions)
    answer = sum(job.answer_tokens for job in sessions) / len(sessions)
    rows = max(1, min(box.slots, int(box.cells / (prompt + answer))))
    cached = int(rows * (prompt + answer / 2))
    prompt_s = prompt * (box.cost.prefill_row_s + box.cost.attention_s * cached / 1000)
    return 1.0 / (prompt_s + answer * box.cost.seconds(rows, 0, cached) / rows)


# The policies.


def first_come(snapshot: Snapshot) -> Plan:
    """Static: prompts are computed whole as soon as there is a slot, and all streams wait meanwhile."""
    prefill = _in_order(snapshot, snapshot.batch_tokens)
    return Plan((), prefill) if prefill else _all_streams(snapshot)


def decode_first(snapshot: Snapshot) -> Plan:
    """Continuous batching: every stream, and prompts in what is left of the batch, however long that takes."""
    streams = _all_streams(snapshot)
    if streams.preempt:
        return streams
    return Plan(streams.decode, _in_order(snapshot, snapshot.batch_tokens - len(streams.decode)))


POLICIES: dict[str, Policy] = {"first come": first_come, "decode first": decode_first, "umaserve": policy.plan}


def _all_streams(snapshot: Snapshot) -> Plan:
    """Where cells are short, the last that came make way."""
    streams = sorted(snapshot.streams, key=lambda one: (one.arrived_at, one.id))
    free, preempted = snapshot.free_cells, []
    while sum(stream.lacks for stream in streams) > free:
        last = streams.pop()
        free += last.cells
        preempted.append(last.id)
    return Plan(tuple((stream.id, 0) for stream in streams), preempt=tuple(preempted))


def _in_order(snapshot: Snapshot, rows: int) -> tuple[tuple[int, int], ...]:
    """Prompts by arrival, whatever their class, until the rows are used up; one without a place holds back the others
    that have none."""
    slots = snapshot.free_slots
    cells = snapshot.free_cells - sum(stream.lacks for stream in snapshot.streams)
    prefill = []
    for prompt in sorted(snapshot.prompts, key=lambda one: (one.arrived_at, one.id)):
        if not prompt.started:
            slots, cells = slots - 1, cells - prompt.cells
        if rows == 0:
            break
        if prompt.started or (slots >= 0 and cells >= 0):
            tokens = min(prompt.remaining, rows)
            prefill.append((prompt.id, tokens))
            rows -= tokens
    return tuple(prefill)


# The run.


@dataclass(slots=True)
class Run:
    """What came of the sessions, which hold their own part of it; times in seconds."""

    sessions: Sequence[Job]
    ended_at: float = 0.0
    ticks: int = 0
    gaps: array[float] = field(default_factory=lambda: array("d"))
    """Between every two tokens of the interactive streams."""


class Simulation:
    """One policy on one box. As a scheduler's snapshot, its own knows no answer's length and no arrival to come.

    A session is refused where ``queue`` others wait for a place; one that gives way goes on later where it was, and
    moving its KV costs nothing. ``noise`` is the standard deviation of the logarithm of a tick's time.
    """

    def __init__(
        self, box: Box, sessions: Sequence[Job], plan: Policy, *, queue: int = 256, noise: float = 0.0, seed: int = 0
    ) -> None:
        """Raises ``ValueError`` for a session that the box could never hold."""
        for job in sessions:
            if job.most > box.cells:
                raise ValueError(f"a session of {job.most} cells can't run on a box with {box.cells}")
        self.now = 0.0
        self._box, self._plan, self._queue, self._noise = box, plan, queue, noise
        self._dice = random.Random(seed)
        self._run = Run([replace(job) for job in sessions])
        self._jobs = {job.id: job for job in self._run.sessions}
        self._to_come = deque(self._run.sessions)
        self._streams: dict[int, Stream] = {}
        self._prompts: dict[int, Prompt] = {}
        """What the policy sees of each session that is here."""
        self._free_slots, self._free_cells, self._cached = box.slots, box.cells, 0
        self._lengths = AnswerLengths()

    def run(self) -> Run:
        """Until every session has ended."""
        while self._to_come or self._streams or self._prompts:
            self._arrive()
            if not self._tick():
                if not self._to_come:
                    raise RuntimeError(f"nothing is planned, and {len(self._prompts)} sessions wait for ever")
                self.now = max(self.now, self._to_come[0].arrived_at)
        self._run.ended_at = self.now
        return self._run

    def _arrive(self) -> None:
        while self._to_come and self._to_come[0].arrived_at <= self.now:
            job = self._to_come.popleft()
            if sum(not prompt.started for prompt in self._prompts.values()) >= self._queue:
                job.refused = True
            else:
                self._show(job)

    def _tick(self) -> bool:
        """Plan and run one tick; whether there was anything to do."""
        for id_ in sorted(self._streams):
            job = self._jobs[id_]
            self._promise(job, min(step(job.length, job.cells, job.most), job.cells + self._free_cells))
        the_plan = self._plan(self._snapshot())
        for id_ in the_plan.preempt:
            self._give_way(self._jobs[id_])
        for id_, _ in the_plan.decode:
            job = self._jobs[id_]
            self._promise(job, max(job.cells, job.length))
        prefill_rows = sum(tokens for _, tokens in the_plan.prefill)
        if not the_plan.decode and not prefill_rows:
            return bool(the_plan.preempt)
        for id_, _ in the_plan.prefill:
            self._place(self._jobs[id_])
        assert len(the_plan.decode) + prefill_rows <= self._box.batch_tokens
        seconds = self._box.cost.seconds(len(the_plan.decode), prefill_rows, self._cached)
        self.now += seconds * (self._dice.lognormvariate(0.0, self._noise) if self._noise else 1.0)
        self._run.ticks += 1
        for id_, tokens in self._rows(the_plan):
            self._advance(self._jobs[id_], tokens)
        return True

    @staticmethod
    def _rows(the_plan: Plan) -> Iterator[tuple[int, int]]:
        yield from ((id_, 1) for id_, _ in the_plan.decode)
        yield from the_plan.prefill

    def _snapshot(self) -> Snapshot:
        return Snapshot(
            now=self.now,
            streams=list(self._streams.values()),
            prompts=list(self._prompts.values()),
            free_slots=self._free_slots,
            free_cells=self._free_cells,
            cached=self._cached,
            batch_tokens=self._box.batch_tokens,
            cost=self._box.cost,
        )

    def _place(self, job: Job) -> None:
        if not job.placed:
            self._free_slots -= 1
            self._cached += job.computed
            self._promise(job, self._prompts[job.id].cells)
            assert self._free_slots >= 0

    def _promise(self, job: Job, cells: int) -> None:
        self._free_cells -= cells - job.cells
        job.cells = cells
        assert self._free_cells >= 0
        if job.id in self._streams:
            lacks = max(0, job.length - cells)
            self._streams[job.id] = self._streams[job.id]._replace(cells=cells, lacks=lacks)

    def _give_way(self, job: Job) -> None:
        assert job.placed
        self._take_back(job)
        self._streams.pop(job.id, None)
        self._show(job)

    def _take_back(self, job: Job) -> None:
        self._free_slots += 1
        self._free_cells += job.cells
        job.cells = 0
        self._cached -= job.computed

    def _advance(self, job: Job, tokens: int) -> None:
        job.computed += tokens
        self._cached += tokens
        assert job.computed <= job.length <= job.cells
        if job.computed < job.length:
            self._show(job)
            return
        self._prompts.pop(job.id, None)
        if not job.generated:
            job.first_token_at = self.now
        elif job.priority is Priority.INTERACTIVE:
            self._run.gaps.append(self.now - job.last_token_at)
        job.last_token_at = self.now
        job.generated += 1
        if job.done:
            self._streams.pop(job.id, None)
            self._take_back(job)
            self._lengths.observe(job.generated)
        else:
            self._streams[job.id] = Stream(
                job.id, job.target_tbt_s, job.priority, job.arrived_at, job.cells, last_token_at=self.now
            )

    def _show(self, job: Job) -> None:
        """Show it as a prompt, with what has to be computed before its next token."""
        self._prompts[job.id] = Prompt(
            id=job.id,
            remaining=job.length - job.computed,
            arrived_at=job.arrived_at,
            target_ttft_s=job.target_ttft_s,
            priority=job.priority,
            started=job.placed,
            cells=job.cells or min(job.most, job.length + self._lengths.more(job.generated)),
            resumes=job.generated > 0,
            own_target=True,
        )
