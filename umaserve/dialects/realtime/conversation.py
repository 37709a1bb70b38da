"""The conversation of a session: its items in their order, of bounded number and size."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile

from umaserve.core.errors import Fault, RequestError
from umaserve.dialects.realtime.items import Item
from umaserve.wire.fields import out_of_range

MAX_ITEMS = 1024
MAX_BYTES = 16 << 20
"""Bytes of all items, sounds included: 350 s of PCM."""
ROOT = "root"


class Conversation:
    """Items by their ids."""

    def __init__(self) -> None:
        self._items: dict[str, Item] = {}

    def __iter__(self) -> Iterator[Item]:
        return iter(self._items.values())

    @property
    def n_bytes(self) -> int:
        return sum(item.n_bytes for item in self)

    @property
    def last(self) -> str | None:
        """The id of the last item."""
        return next(reversed(self._items), None)

    def item(self, id_: str, field: str) -> Item:
        """The item of this id; raises ``RequestError``, which names ``field``, where there is none."""
        found = self._items.get(id_)
        if found is None:
            raise RequestError(Fault.NOT_FOUND, field, f'expected the id of an item, got "{id_[:64]}"')
        return found

    def check_room(self, n_bytes: int) -> None:
        """Refuse an item of ``n_bytes`` where there is no room for it."""
        advice = "delete items, or begin another session"
        if len(self._items) >= MAX_ITEMS:
            raise out_of_range("conversation", f"at most {MAX_ITEMS} items", f"another one: {advice}")
        if self.n_bytes + n_bytes > MAX_BYTES:
            raise out_of_range("conversation", f"at most {MAX_BYTES} bytes", f"more: {advice}")

    def insert(self, item: Item, previous: str | None = None) -> str | None:
        """Put an item behind ``previous``, or at the end; returns the id of the one before it. Raises
        ``RequestError``."""
        if item.id in self._items or item.id == ROOT:
            raise out_of_range("item.id", "an id that no item has", f'"{item.id}"')
        self.check_room(item.n_bytes)
        return self.add(item, previous)

    def add(self, item: Item, previous: str | None = None) -> str | None:
        """Put an item of an answer, as ``insert``, for which there is always room: the answer's tokens bound it."""
        if previous is None or previous == self.last:
            before = self.last
            self._items[item.id] = item
            return before
        if previous != ROOT:
            self.item(previous, "previous_item_id")
            ahead = [*takewhile(lambda id_: id_ != previous, self._items), previous]
        else:
            ahead = []
        items = {id_: self._items[id_] for id_ in ahead} | {item.id: item}
        self._items = items | self._items
        return previous if ahead else None

    def delete(self, id_: str) -> Item:
        """Take an item out; raises ``RequestError`` where there is none."""
        found = self.item(id_, "item_id")
        del self._items[id_]
        return found
