"""Prompts that arrive together while no stream runs: rule 10 of ``policy``."""

from __future__ import annotations

from collections.abc import Sequence

from umaserve.scheduler.policy.snapshot import AGING_S, Prompt, Snapshot
from umaserve.sessions.decodes import WIDE_ROWS
from umaserve.sessions.engine_api import Adapters

BURST_S = 0.2
"""Prompts that arrive within this time are a burst."""
GATHER_S, GATHER_SHARE = 0.03, 0.25
"""How long a burst waits for the requests that are being prepared, in seconds, and as a share of what computing the
prepared ones takes."""

IN_TIME_S = 2.5
"""Seconds before its own target by which a computed prompt begins its answer: two ticks without streams."""


class Burst:
    """Prompts that are computed together while no stream runs, and then start together (rule 10)."""

    def __init__(self, snapshot: Snapshot, queue: Sequence[Prompt], adapters: Adapters, rows: int) -> None:
        """``queue``: all prompts, the most urgent first. ``rows``: those that the tick has for prompts with these
        ``adapters``."""
        self._now, self._began_at = snapshot.now, snapshot.began_at
        self._preparing = snapshot.preparing > 0
        self._alone = len(queue) == 1 and not snapshot.preparing and not snapshot.streams
        running = [prompt for prompt in queue if prompt.started]
        slots, cells = snapshot.free_slots, snapshot.free_cells
        for prompt in queue:
            if prompt.started:
                continue
            slots, cells = slots - 1, cells - prompt.cells
            if min(slots, cells) < 0:
                break
            running.append(prompt)
        self._unready = [prompt for prompt in running if not _is_ready(prompt)]
        several = len(running) + snapshot.preparing > 1
        self._possible = snapshot.prompts_apart and several and not snapshot.streams
        self._at_once = (
            not snapshot.preparing
            and len(self._unready) == len(running)
            and all(prompt.adapters == adapters and _may_end(prompt, prompt.remaining) for prompt in running)
            and sum([prompt.remaining for prompt in running]) <= rows
        )

    def holds(self, prompt: Prompt) -> bool:
        """Whether the computed ``prompt`` waits for others."""
        if not self._possible or prompt.resumes or not _is_ready(prompt):
            return False
        if self._preparing and self._now < prompt.arrived_at + BURST_S:
            return True
        if prompt.own_target and 0 <= prompt.arrived_at + prompt.target_ttft_s - self._now < IN_TIME_S:
            return False
        return self._now < AGING_S + max(prompt.arrived_at, self._began_at) and any(
            other.arrived_at <= prompt.arrived_at + BURST_S and other.priority <= prompt.priority
            for other in self._unready
        )

    def keeps_last(self, prompt: Prompt, tokens: int) -> bool:
        """Whether the last of its ``tokens`` has to wait for a later tick."""
        if tokens < prompt.remaining or tokens == 1:
            return False
        if self._alone:
            return not _may_end(prompt, tokens)
        return self._possible and not self._at_once


def gathers(snapshot: Snapshot) -> bool:
    """Whether nothing is to be computed yet: none of the prompts has started, and more are ready in a moment."""
    prompts = snapshot.prompts
    beside = bool(snapshot.streams) or snapshot.elsewhere.streaming
    if not prompts or not snapshot.preparing or not snapshot.prompts_apart or beside:
        return False
    if any(prompt.started for prompt in prompts):
        return False
    computing_s = snapshot.cost.seconds(0, sum([prompt.remaining for prompt in prompts]), 0)
    waited_s = snapshot.now - min([prompt.arrived_at for prompt in prompts])
    return waited_s < min(GATHER_S, GATHER_SHARE * computing_s)


def _may_end(prompt: Prompt, tokens: int) -> bool:
    """Whether the last of its ``tokens`` may have no tick of its own (rule 4)."""
    return tokens < WIDE_ROWS or prompt.random


def _is_ready(prompt: Prompt) -> bool:
    """Whether all but its last token is computed."""
    return prompt.started and prompt.remaining == 1
