"""The two that are compared, the daemon and, where it is there, llama-server; each run is a fresh process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TypeVar

from bench import llama_server
from bench.processes import Served, daemon
from bench.report import progress

T = TypeVar("T")
Measure = Callable[[Served], T]
Run = Callable[[], T]

OURS = "umaserve"
THEIRS = "llama-server"


def ours(measure: Measure[T], **settings: str) -> Run[T]:
    """What ``measure`` finds of a daemon with these settings."""
    return lambda: _measured(daemon("umaserve", **settings), measure)


def theirs(measure: Measure[T], **settings: str) -> Run[T] | None:
    """What ``measure`` finds of llama-server, its settings named as the daemon's variables; None without one."""
    binary = llama_server.binary()
    if binary is None:
        return None
    return lambda: _measured(llama_server.llama_server(binary, **settings), measure)


def both(measure: Measure[T], **settings: str) -> dict[str, Run[T] | None]:
    return {OURS: ours(measure, **settings), THEIRS: theirs(measure, **settings)}


def rounds(what: str, runs: Mapping[str, Run[T] | None], repeats: int) -> dict[str, list[T]]:
    """What each run that there is finds in each round; every other round goes backwards."""
    present = {name: run for name, run in runs.items() if run is not None}
    found: dict[str, list[T]] = {name: [] for name in present}
    for repeat in range(repeats):
        for name in list(present) if repeat % 2 == 0 else reversed(present):
            progress(f"{what}, round {repeat + 1} of {repeats}, {name}")
            found[name].append(present[name]())
    return found


def missing_note() -> str:
    """A line for the report where llama-server was not measured."""
    return "" if llama_server.binary() else f"{THEIRS}: not measured, {llama_server.VARIABLE} is not set.\n"


def _measured(starting: AbstractContextManager[Served], measure: Measure[T]) -> T:
    with starting as at:
        return measure(at)
