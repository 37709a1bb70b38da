"""The engine's sequences and KV cells: the slots and promised cells of sessions, and the cached sequences."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from umaserve.kvcache.host_cache import HostCache, Place
from umaserve.kvcache.in_progress import PromptsInProgress
from umaserve.kvcache.partitioning import SHARED
from umaserve.kvcache.prefix_cache import MIN_REUSED, Match, PrefixCache, Tokens
from umaserve.sessions.cache_miss import Difference, difference
from umaserve.sessions.engine_api import Capacity, without_parts
from umaserve.sessions.kv_operations import Copy, Divide, KVOperation, Load, Move, Release, Save, Shed
from umaserve.sessions.session import Session


class Room(NamedTuple):
    """Needs of a session: the cells to promise to it, the tokens to compute, and the scope of its cache entries."""

    cells: int
    tokens: Sequence[int]
    scope: str
    shared: bool = True
    """Whether later sessions may reuse its tokens."""


class _Source(NamedTuple):
    """Place where the prefix of a prompt is found: in a slot, or in host memory under the key ``saved``."""

    slot: int | None = None
    saved: int | None = None
    length: int = 0
    cells: int = 0
    """Cells that restoring it takes: all that was saved is loaded, and the rest then cut off."""


class _Kept(NamedTuple):
    """The tokens of a cached sequence, and how many of them, from the first on, are its prompt."""

    length: int
    prompt: int


class Slots:
    """Assigns slots, promises cells and caches sequences: no other class does.

    When a session ends, its sequence stays cached for prompts with the same prefix until its cells or its slot are
    needed. The least recently used one is evicted first, to host memory if there is some. Cached cells count in full
    beside promised ones, even where they are shared, so that promises always hold.

    Sequences that can't be cut to a prefix (``Capacity.cached_cells``) are only cached in host memory: at their ends,
    and at the checkpoints of their prompts.
    """

    def __init__(self, capacity: Capacity) -> None:
        self._cells = capacity.cells
        self._max_slots = capacity.slots
        self._max_cached = capacity.cached_cells
        self._cuttable = capacity.cached_cells > 0
        self._reuses = self._cuttable or capacity.host_bytes > 0
        self._takes_back = capacity.takes_back
        self._remembers = capacity.names
        self._sequences = max(capacity.sequences, capacity.slots)
        self._ways = dict(capacity.divisions)
        self._parts = capacity.divisions[0][0] if capacity.divisions else SHARED
        self._free = list(range(self._parts or self._sequences))
        self._kv_operations: list[KVOperation] = []
        """KV operations for the next tick, in order, before its runs."""
        self._holders: dict[int, Session] = {}
        """Sessions with a slot, by id, including ended ones whose slot is not taken back yet."""
        self._rooms: dict[int, Room] = {}
        """Rooms by slot: what its session needed when it took the slot."""
        self._kept: dict[int, _Kept] = {}
        """Cached sequences by slot, the least recently used first."""
        self._prefixes = PrefixCache()
        self._host = None
        if capacity.host_bytes:
            self._host = HostCache(capacity.host_bytes, capacity.saved_bytes, entire=not self._cuttable)
        self.coming = PromptsInProgress(self._host, cuttable=self._cuttable)
        self.latest: list[tuple[str, Tokens]] = []
        """Scope and tokens of what the latest answers left, the latest first: one of each conversation."""
        self._promised = 0
        self._cached_cells = 0
        self.version = 0
        """Grows with every change of what can be reused."""

    @property
    def holders(self) -> Collection[Session]:
        return self._holders.values()

    @property
    def free(self) -> int:
        """Slots for further sessions; cached sequences are evicted for them."""
        return min(self._max_slots, self._parts or self._max_slots) - len(self._holders)

    @property
    def free_cells(self) -> int:
        """Cells that are promised to nobody; cached sequences in them are evicted."""
        return self._cells - self._promised

    @property
    def max_cells(self) -> int:
        """The most cells that one session can be promised."""
        return self._ways[self._parts] if self._parts else self._cells

    @property
    def visited_cells(self) -> int:
        """Cells that the attention of a row visits, at most."""
        if self._parts:
            return max((session.computed for session in self._holders.values()), default=0)
        return self.used_cells + self._cached_cells

    @property
    def used_cells(self) -> int:
        """Cells that hold tokens of sessions."""
        return sum([session.computed for session in self._holders.values()])

    @property
    def cached_cells(self) -> int:
        """Cells of cached sequences."""
        return self._cached_cells

    @property
    def host(self) -> HostCache | None:
        return self._host

    @property
    def host_bytes(self) -> int:
        """Host memory that saved sequences take."""
        return 0 if self._host is None else self._host.used_bytes

    def reusable(self, scope: str, tokens: Sequence[int]) -> int:
        """Length of the longest reusable prefix of ``tokens``, always without the last one, which gives the logits."""
        return self._source(tokens, *self._matches(scope, tokens)).length

    def take(self, session: Session, room: Room) -> int:
        """Give ``session`` its cells and a slot, which must be free. Sets ``session.computed``, the tokens reused, and
        ``session.difference``."""
        resident, saved = self._matches(room.scope, room.tokens)
        session.difference = self._difference(room, resident, saved)
        source = self._source(room.tokens, resident, saved)
        self._make_way(max(room.cells, source.cells), spare=source.slot)
        scarce = not self._fits(room.cells) or not (self._free or self._kept.keys() - {source.slot})
        if source.slot in self._kept and (scarce or self._continues(source.slot, source.length, room)):
            slot, length = self._take_over(source.slot, source.length), source.length
        else:
            slot = self._lowest_free() if self._free else self._drop_oldest(spare=source.slot)
            length = self._begin(slot, source)
        self._holders[session.id] = session
        self._rooms[slot] = room
        session.slot, session.cells, session.computed = slot, room.cells, length
        self._promised += room.cells
        if length and self._cuttable:
            # Later KV operations find it in place: others may copy it at once.
            self._prefixes.put(slot, room.scope, room.tokens[:length])
        if self._reuses:
            self.coming.begin(session, room.scope, room.tokens, shared=room.shared)
            self.version += 1
        return slot

    def promise(self, session: Session, cells: int) -> bool:
        """Change the promise to ``cells``; ``False``, and no change, if too few are free."""
        more = cells - session.cells
        if more > self.free_cells or (more > 0 and cells > self.max_cells):
            return False
        self._make_way(more, spare=None)
        self._promised += more
        session.cells = cells
        return True

    def share(self, session: Session, tokens: Sequence[int], *, whole: bool = True) -> None:
        """Let others reuse ``tokens``, which ``session`` has computed. ``whole``: its prompt is complete."""
        if not self._reuses or session.slot is None:
            return
        if whole:
            self.coming.complete(session)
        scope = self._rooms[session.slot].scope
        if self._cuttable:
            self._prefixes.put(session.slot, scope, tokens)
        elif self.coming.is_checkpoint(session, len(tokens)):
            self._save(session.slot, scope, tokens)
        self.version += 1

    def give_up(self, session: Session, tokens: Sequence[int], *, keep: bool) -> None:
        """Take the slot back; cache its ``tokens`` if ``keep``. Without tokens, its content is unknown."""
        slot = session.slot
        if slot is None:
            raise RuntimeError(f"session {session.id} has no slot")
        self.coming.forget(session)
        self.version += 1
        room = self._rooms.pop(slot)
        del self._holders[session.id]
        self._promised -= session.cells
        session.cells = 0
        session.slot = None
        # It may hold more: draft tokens that were accepted behind the answer's end.
        usable = self._takes_back or session.computed == len(tokens)
        if not keep or len(tokens) < MIN_REUSED or not self._reuses or not usable:
            self._release(slot)
            return
        if self._takes_back:
            self._kv_operations.append(Release(slot, len(tokens)))
        if self._remembers:
            self._remember(room.scope, tuple(tokens))
        if len(tokens) > self._max_cached:
            self._save(slot, room.scope, tokens)
            self._release(slot)
            return
        self._prefixes.put(slot, room.scope, tokens)
        self._kept[slot] = _Kept(len(tokens), len(room.tokens))
        self._cached_cells += len(tokens)
        while self._cached_cells > self._max_cached:
            self._free.append(self._drop_oldest(spare=None))

    def put_away(self) -> None:
        """Move all cached sequences to host memory."""
        while self._kept:
            self._free.append(self._drop_oldest(spare=None))

    def forget_cached(self) -> None:
        """Drop all cached sequences, and give the host memory back."""
        while self._kept:
            self._free.append(self._drop_oldest(spare=None, save=False))
        self.latest.clear()
        if self._host is not None and self._host.used_bytes:
            self._host.clear()
            self._kv_operations.append(Shed())

    def clear_all(self) -> None:
        """Clear all sequences: the KV cache is in an unknown state. Sessions with a slot have still to give it up."""
        self.forget_cached()
        self._kv_operations += map(Release, [*self._free, *self._rooms])

    @property
    def kv_operations(self) -> Sequence[KVOperation]:
        """KV operations planned for the next tick so far."""
        return self._kv_operations

    def take_kv_operations(self) -> list[KVOperation]:
        """The KV operations for the next tick, each returned once."""
        kv_operations, self._kv_operations = self._kv_operations, []
        return kv_operations

    # -- the division --------------------------------------------------------------------------------------------

    def divide(self, parts: int) -> None:
        """Divide the cells into parts, or share them (``SHARED``); the sessions get slots anew. Cached sequences go to
        host memory."""
        self.put_away()
        sessions = sorted(self._holders.values(), key=lambda session: session.slot or 0)
        kept = [(session.slot or 0, slot) for slot, session in enumerate(sessions)]
        self._kv_operations.append(Divide(parts, kept))
        held = {slot: self._prefixes.held(before) for before, slot in kept}
        self._rooms = {slot: self._rooms[before] for before, slot in kept}
        for before, _ in kept:
            self._prefixes.remove(before)
        for slot, session in enumerate(sessions):
            session.slot = slot
            self._prefixes.put(slot, *held[slot])
        self._parts = parts
        self._free = list(range(len(sessions), parts or self._sequences))
        self.version += 1

    def close_gaps(self, sessions: Collection[Session]) -> None:
        """Move the last of ``sessions``, which decode together, to a free slot before it: in parts, each gap between
        their slots makes llama.cpp compute one pass more."""
        last = max(sessions, key=lambda session: session.slot or 0, default=None)
        if not self._parts or last is None or last.slot is None or not self._free or min(self._free) > last.slot:
            return
        before, slot = last.slot, self._lowest_free()
        self._kv_operations.append(Move(before, slot))
        self._rooms[slot] = self._rooms.pop(before)
        held = self._prefixes.held(before)
        self._prefixes.remove(before)
        self._prefixes.put(slot, *held)
        last.slot = slot
        self._free.append(before)
        self.version += 1

    def _lowest_free(self) -> int:
        slot = min(self._free)
        self._free.remove(slot)
        return slot

    # -- reuse ---------------------------------------------------------------------------------------------------

    def _matches(self, scope: str, tokens: Sequence[int]) -> tuple[Match | None, Match | None]:
        """Find what begins like ``tokens``: in a slot, and in host memory."""
        before_last = tokens[:-1]
        saved = None if self._host is None else self._host.match(scope, before_last)
        return self._prefixes.match(scope, before_last), saved

    def _difference(self, room: Room, resident: Match | None, saved: Match | None) -> Difference | None:
        known = []
        if resident is not None:
            known.append((resident.length, self._prefixes.held(resident.holder)[1]))
        if self._host is not None and saved is not None and self._cuttable:
            known.append((saved.length, self._host.tokens(saved.holder)))
        elif self._host is not None:
            # Not only what may be used.
            known.append(self._host.nearest(room.scope, room.tokens))
        common, tokens = max(known, key=lambda each: (each[0], len(each[1])), default=(0, ()))
        return difference(room.tokens, tokens, common)

    def _source(self, tokens: Sequence[int], resident: Match | None, saved: Match | None) -> _Source:
        resident, saved = _whole(resident, tokens), _whole(saved, tokens)
        source = _Source() if resident is None else _Source(resident.holder, None, resident.length)
        place = None if self._host is None or saved is None else self._host.place(saved.holder)
        if saved is not None and place is not None and saved.length > source.length and self._can_load(place):
            usable = self._cuttable or saved.length == place.tokens
            source = _Source(None, saved.holder, saved.length, place.tokens) if usable else source
        return source if source.length >= MIN_REUSED else _Source()

    def _can_load(self, place: Place) -> bool:
        return place.tokens <= min(self.free_cells, self.max_cells)

    def _begin(self, slot: int, source: _Source) -> int:
        """Fill ``slot`` from ``source``; returns the number of tokens that it then holds."""
        if source.slot is not None:
            self._kv_operations.append(Copy(source.slot, slot, source.length))
            if source.slot in self._kept:
                self._kept[source.slot] = self._kept.pop(source.slot)
            return source.length
        # An evicted sequence may have been saved over it.
        place = None if self._host is None or source.saved is None else self._host.place(source.saved)
        if place is None:
            return 0
        self._kv_operations.append(Load(place.offset, place.size, slot))
        if source.length < place.tokens:
            self._kv_operations.append(Release(slot, source.length))
        return source.length

    # -- what slots held -----------------------------------------------------------------------------------------

    def _remember(self, scope: str, tokens: Tokens) -> None:
        others = [(of, held) for of, held in self.latest if of != scope or held != tokens[: len(held)]]
        self.latest = [(scope, tokens), *others][: self._max_slots]

    def save(self, scope: str, tokens: Tokens) -> bool:
        """Have a cached sequence saved in host memory, where it isn't yet; returns whether it is or will be there."""
        for slot in self._kept:
            if self._prefixes.held(slot) == (scope, tokens):
                self._save(slot, scope, tokens)
        found = None if self._host is None else self._host.match(scope, tokens)
        return found is not None and found.length == len(tokens)

    # -- cached sequences ----------------------------------------------------------------------------------------

    def _fits(self, cells: int) -> bool:
        return self._promised + self._cached_cells + cells <= self._cells

    def _make_way(self, cells: int, spare: int | None) -> None:
        while not self._fits(cells) and any(slot != spare for slot in self._kept):
            self._free.append(self._drop_oldest(spare))

    def _drop_oldest(self, spare: int | None, *, save: bool = True) -> int:
        """Evict the least recently used sequence; the caller uses the returned slot or frees it."""
        slot = next(slot for slot in self._kept if slot != spare)
        if save:
            self._save(slot, *self._prefixes.held(slot))
        self._cached_cells -= self._kept.pop(slot).length
        self._clear(slot)
        return slot

    def _save(self, slot: int, scope: str, tokens: Sequence[int]) -> None:
        place = None if self._host is None else self._host.put(scope, tokens)
        if place is not None:
            self._kv_operations.append(Save(slot, place.offset, place.size))

    def _continues(self, slot: int, length: int, room: Room) -> bool:
        """Whether the prompt continues the whole cached sequence, or repeats its prompt. It then takes over the same
        cells, since attention sums over cells in their order, and another order rounds differently."""
        kept = self._kept[slot]
        return length == kept.length or length + 1 == kept.prompt == len(room.tokens)

    def _take_over(self, slot: int, length: int) -> int:
        self._cached_cells -= self._kept.pop(slot).length
        self._prefixes.remove(slot)
        self._kv_operations.append(Release(slot, length))
        self.version += 1
        return slot

    def _release(self, slot: int) -> None:
        self._clear(slot)
        self._free.append(slot)

    def _clear(self, slot: int) -> None:
        self._prefixes.remove(slot)
        self._kv_operations.append(Release(slot))
        self.version += 1


def _whole(match: Match | None, tokens: Sequence[int]) -> Match | None:
    """Cut before a chunk of media that it would end in: not every model can go on from the middle of an image."""
    return None if match is None else match._replace(length=without_parts(tokens, match.length))
