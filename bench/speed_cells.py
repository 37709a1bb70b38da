"""What ``bench.speed`` measures: who is asked what, and which figures come of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

from bench import storm
from bench.llama_server import UNIFIED
from bench.loads import Load, started
from bench.processes import Served, trace_of
from bench.sides import OURS, THEIRS, Run, both
from bench.trace import Measures, measures

BARE = "bare loop"

Sides = Mapping[str, Callable[[int], Any]]
"""What each side finds in a round, by its name."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A value of umaserve's runs beside that of the runs of ``beside``."""

    title: str
    value: Callable[[Any], float]
    lower_is_better: bool
    beside: str = THEIRS


@dataclass(frozen=True, slots=True)
class Cell:
    """Sides that are measured in turn. ``start`` enters their servers, which run until the cell is done."""

    name: str
    start: Callable[[contextlib.ExitStack], Sides]
    figures: Sequence[Figure]


@dataclass(frozen=True, slots=True)
class Plan:
    """The sizes of a run. Slow ones come first: what they take is known when the rest of the time is divided."""

    loads: Sequence[Load]
    second: Sequence[Load]
    """Loads of the second model."""
    talk: Load
    agent: Load
    """A conversation that begins with as much as an agent's."""
    shared_words: int
    shared_by: int
    least: int
    most: int
    """Pairs of each cell."""


WHOLE = Plan(
    [Load(clients, words, tokens) for words, tokens in ((300, 32), (24, 64)) for clients in (16, 4, 1)],
    # Not 16 long prompts: with half a billion weights that would take more than half of the time.
    second=[Load(4, 300, 16), Load(16, 24, 16), Load(1, 300, 16), Load(4, 24, 32), Load(1, 24, 32)],
    talk=Load(4, 60, 24, turns=4),
    agent=Load(1, 60, 32, turns=5, opening=2000),
    shared_words=300,
    shared_by=8,
    least=2,
    most=5,
)
QUICK = Plan(
    [Load(2, 16, 4), Load(1, 8, 4)],
    second=[Load(2, 16, 4)],
    talk=Load(2, 8, 4, turns=2),
    agent=Load(1, 8, 4, turns=3, opening=40),
    shared_words=20,
    shared_by=2,
    least=1,
    most=1,
)

_RATE = attrgetter("whole_rate")
_BESIDE_BARE = (Figure("tokens/s", _RATE, lower_is_better=False, beside=BARE),)
_BESIDE_SERVER = (
    Figure("tokens/s", _RATE, lower_is_better=False),
    Figure("TTFT p95", attrgetter("ttft_p95"), lower_is_better=True),
    Figure("gap p95", attrgetter("gap_p95"), lower_is_better=True),
)
_TALK = (
    Figure("tokens/s", _RATE, lower_is_better=False),
    Figure("TTFT p50, later turns", attrgetter("ttft_p50"), lower_is_better=True),
)
_AGENT = (
    Figure("TTFT, second turn", attrgetter("ttft_second"), lower_is_better=True),
    Figure("TTFT p50, later turns", attrgetter("ttft_p50"), lower_is_better=True),
)
_STORM = (
    Figure("gap p95", attrgetter("storm.p95"), lower_is_better=True),
    Figure("gap max", attrgetter("storm.max"), lower_is_better=True),
    Figure("prompt tokens/s", attrgetter("prompt_tokens"), lower_is_better=False),
)
_PREFIX = (Figure("TTFT p50", attrgetter("ttft_p50"), lower_is_better=True),)
_STORM_TARGET_MS = 80
_STORM_BATCH = 512
"""The defaults of both."""


def cells(plan: Plan, models: Sequence[str], binary: str | None) -> list[Cell]:
    """The loads of the first model and, where there is one, the second; and what needs llama-server's ``binary``."""
    model, *second = models
    found = [_load(one, load, binary) for one in second for load in plan.second]
    found += [_load(model, load, binary) for load in plan.loads]
    if binary is not None:
        found.append(Cell(_name(model, f"talks, {plan.talk}"), _servers(model, plan.talk, binary), _TALK))
        agents = _started_anew(_servers(model, plan.agent, binary), [OURS, THEIRS])
        found.append(Cell(_name(model, f"agent, {plan.agent}"), agents, _AGENT))
        shared = _sharing(plan.shared_words, plan.shared_by)
        found.append(Cell(f"prefix of {plan.shared_words} words, {plan.shared_by} clients", _fresh(shared), _PREFIX))
        storms = {OURS: storm.with_target(_STORM_TARGET_MS), THEIRS: storm.with_batch(_STORM_BATCH)}
        found.append(Cell("storm", _fresh(storms), _STORM))
    return found


def _load(model: str, load: Load, binary: str | None) -> Cell:
    figures = [*_BESIDE_BARE, *(_BESIDE_SERVER if binary else ())]
    served = _servers(model, load, binary)

    def start(stack: contextlib.ExitStack) -> Sides:
        return {BARE: partial(load.measure_bare, model), **served(stack)}

    return Cell(_name(model, str(load)), start, figures)


def _servers(model: str, load: Load, binary: str | None) -> Callable[[contextlib.ExitStack], Sides]:
    def start(stack: contextlib.ExitStack) -> Sides:
        servers = started(stack, model, [load], binary, {THEIRS: UNIFIED})
        return {name: partial(load.measure, at) for name, at in servers.items()}

    return start


def _started_anew(
    start: Callable[[contextlib.ExitStack], Sides], names: Sequence[str]
) -> Callable[[contextlib.ExitStack], Sides]:
    """The sides of these ``names``, each run with servers of its own: what one does in its first minute counts."""

    def measured(name: str, round_: int) -> Any:
        with contextlib.ExitStack() as stack:
            return start(stack)[name](round_)

    return lambda _stack: {name: partial(measured, name) for name in names}


def _sharing(words: int, clients: int) -> dict[str, Run[Measures] | None]:
    """Both sides, asked by so many clients at once whose prompts begin with the same words, computed before."""

    def measure(at: Served) -> Measures:
        return measures(trace_of("bench.scenarios", "prefixes", at.http, words, clients))

    return both(measure)


def _fresh(runs: Mapping[str, Callable[[], Any] | None]) -> Callable[[contextlib.ExitStack], Sides]:
    """Sides that start a server for each run: what one has computed would serve the next."""
    return lambda _stack: {name: _in_any_round(run) for name, run in runs.items() if run is not None}


def _in_any_round(run: Callable[[], Any]) -> Callable[[int], Any]:
    return lambda _round: run()


def _name(model: str, load: str) -> str:
    return f"{Path(model).stem}, {load}"
