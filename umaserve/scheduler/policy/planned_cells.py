"""Slots and cells within one plan: rules 6 and 7 of ``policy``."""

from __future__ import annotations

from umaserve.core.requests import Priority
from umaserve.scheduler.policy.snapshot import Held, Prompt, Snapshot, Stream, is_background

_Holder = Held | Stream | Prompt


class PlannedCells:
    """Slots and cells for streams that grow and prompts that start, and the sequences preempted for them."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.preempted: dict[int, None] = {}
        self._slots, self._cells = snapshot.free_slots, snapshot.free_cells
        self._full = False
        """Whether no more prompts start in this tick."""
        running: list[Stream | Prompt] = [*snapshot.streams, *(one for one in snapshot.prompts if one.started)]
        running.sort(key=lambda one: (-one.arrived_at, -one.id))
        # Preempted in the order of rule 7.
        self._held: list[_Holder] = list(snapshot.held)
        self._young: list[_Holder] = []
        self._others: list[_Holder] = []
        for one in running:
            (self._young if is_background(one.priority, one.arrived_at, snapshot.now) else self._others).append(one)

    def extend(self, streams: list[Stream]) -> list[Stream]:
        """Take the cells that ``streams`` lack for their next tokens; returns the streams that then have them."""
        lacks = {stream.id: stream.lacks for stream in streams if stream.lacks}
        while sum(lacks.values()) > self._cells and len(self._held) + len(self._young) + len(self._others) > 1:
            lacks.pop(self._preempt(), None)
            self._full = True
        # The rest is promised to prompts that wait for their media: the youngest streams get no token in this tick.
        for one in [*self._young, *self._others]:
            if sum(lacks.values()) > self._cells:
                lacks.pop(one.id, None)
        self._cells -= sum(lacks.values())
        return [one for one in streams if one.id in lacks or (not one.lacks and one.id not in self.preempted)]

    def leave(self, prompt: Prompt) -> None:
        """Reserve what ``prompt``, of other adapters, needs to start in its own tick, so that none overtakes it."""
        if not prompt.started:
            self._slots -= 1
            self._cells -= prompt.cells

    def make(self, prompt: Prompt) -> bool:
        """Take a slot and cells for ``prompt``; returns whether there are enough."""
        if self._full:
            return False
        victims = self._held + self._young if prompt.priority is Priority.INTERACTIVE else self._held
        if self._slots + len(victims) <= 0 or prompt.cells > self._cells + sum(one.cells for one in victims):
            self._full = True
            return False
        while self._slots <= 0 or prompt.cells > self._cells:
            self._preempt()
        self._slots -= 1
        self._cells -= prompt.cells
        return True

    def _preempt(self) -> int:
        """Preempt the first in the order; returns its id."""
        victim = next(filter(None, (self._held, self._young, self._others))).pop(0)
        self.preempted[victim.id] = None
        self._slots += 1
        self._cells += victim.cells
        return victim.id
