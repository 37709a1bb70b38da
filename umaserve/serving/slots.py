"""The engine's slots and KV cells: who holds which, and what is promised to whom."""

from __future__ import annotations

from collections.abc import Collection

from umaserve.serving.sessions import Session
from umaserve.serving.ticks import Capacity


class Slots:
    """Sequence ids of the engine with the cells promised to their sessions; the only writer of both."""

    def __init__(self, capacity: Capacity) -> None:
        self._cells = capacity.cells
        self._free = list(reversed(range(capacity.slots)))
        self._ended: list[int] = []
        self._holders: dict[int, Session] = {}
        """By session id, also when the session has ended and its slot is still to be taken back."""
        self._promised = 0

    @property
    def holders(self) -> Collection[Session]:
        return self._holders.values()

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def free_cells(self) -> int:
        return self._cells - self._promised

    @property
    def used_cells(self) -> int:
        """Cells that hold tokens, whatever is promised."""
        return sum(session.computed for session in self._holders.values())

    def take(self, session: Session, cells: int) -> int:
        """Give ``session`` a slot, which must be free."""
        slot = session.slot = self._free.pop()
        session.cells = cells
        self._holders[session.id] = session
        self._promised += cells
        return slot

    def promise(self, session: Session, cells: int) -> bool:
        """Promise another number of cells; whether there are as many."""
        if cells - session.cells > self.free_cells:
            return False
        self._promised += cells - session.cells
        session.cells = cells
        return True

    def give_up(self, session: Session) -> None:
        """The slot is free again, once the next tick has cleared it before its own work."""
        if session.slot is None:
            raise RuntimeError(f"session {session.id} has no slot")
        del self._holders[session.id]
        self._ended.append(session.slot)
        self._free.append(session.slot)
        self._promised -= session.cells
        session.cells = 0

    def take_ended(self) -> list[int]:
        """Slots for the next tick to clear."""
        ended, self._ended = self._ended, []
        return ended
