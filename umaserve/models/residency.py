"""Plans which models are loaded: a pure function of a snapshot, so that tests and simulations can choose the time.

It is called after every event (a request came or ended, a load or an unload ended), at ``again_at``, and now and then,
since other programs take and free memory too. The rules, and why:

1. Those that wait are served in the order in which their first requests came. A model is loaded as soon as it fits
   beside all others, with the reserve left free. It may overtake others only if it leaves them the room that they will
   need: else a large one could wait for ever.
2. One load at a time: a load reads and repacks weights with one thread of low priority, and two would only both be
   later. None starts while a model is being unloaded: the first in the order is to choose from all the room.
3. Where a model doesn't fit, idle ones that are not pinned are unloaded: the least recently used first, and then none
   whose memory the others make unnecessary. None is unloaded unless all together suffice, and never while another is
   loading, since they can serve meanwhile. One that runs requests is never unloaded.
4. A loaded model stays for a time that grows with its loading time (``stay_s``), so that loading takes at most half of
   the time, if it takes less than ``MAX_STAY_S``. Idle ones that have stayed go before those that have not.
5. Requests for a model that would displace others are gathered for a time that grows with the price of the swap, which
   is loading it and loading the others again (``gather_s``). It ends early where the others have had no work for that
   long, and the sooner, the more requests wait.
6. Where idle models don't suffice, models with work must make way, those loaded first before others. They may work on
   until the first in the order has waited ``patience_s``. Then they take no new requests, and are unloaded when those
   that run have ended. So a model whose queue never empties keeps nobody waiting for ever. The requests that came for
   it in the meantime wait like all others. While models make way, nothing else is loaded or displaced.
7. Requests for a model that would not fit if all others that are not pinned were unloaded are refused, unless it fits
   with a shorter context, which its settings leave open.
8. A model without work for ``idle_unload_s`` is unloaded. Where less than the reserve is left, since other programs
   took it, idle ones are unloaded even if nobody waits and they have not stayed.
9. Models to preload are loaded once, while nobody waits for another that could be loaded: the default one first, then
   in the order of the settings. They displace nothing.
10. A model that failed is tried again only if somebody waits for it, and after pauses that double (``retry_pause_s``).
11. A model that the operator wants unloaded takes no new requests, and is unloaded when those that run have ended.
    Requests that wait for it then have it loaded again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from umaserve.models.residency_snapshot import Model, Moves, Snapshot, State

MIN_STAY_S, MAX_STAY_S = 5.0, 60.0
GATHERING_SHARE = 0.5
"""Share of the time that a swap takes for which requests are gathered."""
MAX_GATHERING_S = 10.0
PATIENCE_SWAPS = 3.0
MIN_PATIENCE_S, MAX_PATIENCE_S = 15.0, 120.0
RETRY_S, MAX_RETRY_S = 2.0, 300.0


def stay_s(model: Model) -> float:
    """How long a model stays after it was loaded (rule 4)."""
    return min(max(MIN_STAY_S, model.load_s), MAX_STAY_S)


def gather_s(model: Model, displaced: Iterable[Model]) -> float:
    """How long requests for ``model`` are gathered, from the first one on (rule 5)."""
    return min(GATHERING_SHARE * _swap_s(model, displaced), MAX_GATHERING_S) / max(1, model.waiting)


def patience_s(model: Model, displaced: Iterable[Model]) -> float:
    """How long models with work may keep ``model`` waiting before they must make way (rule 6)."""
    return min(max(MIN_PATIENCE_S, PATIENCE_SWAPS * _swap_s(model, displaced)), MAX_PATIENCE_S)


def retry_pause_s(failures: int) -> float:
    """The pause after so many failures in a row, at least one (rule 10)."""
    return min(RETRY_S * 2.0 ** min(failures - 1, 16), MAX_RETRY_S)


def most_bytes(snapshot: Snapshot) -> int:
    """Bytes that would be free if all models that are not pinned were unloaded; a model that needs more can't be
    loaded."""
    free = snapshot.available_bytes - snapshot.promised_bytes - snapshot.reserve_bytes
    taken = (State.LOADING, State.LOADED, State.UNLOADING)
    return free + _total(one for one in snapshot.models if one.state in taken and not one.pinned)


def plan(snapshot: Snapshot) -> Moves:
    """Plan what to load, unload and refuse now."""
    planning = _Planning(snapshot)
    planning.let_leave()
    planning.unload_unused()
    planning.keep_reserve()
    waiting = [planning.shortened(one) for one in snapshot.models if one.waiting and planning.may_start(one)]
    for model in sorted(waiting, key=lambda one: (one.waiting_since, not one.default)):
        planning.serve(model)
    planning.preload()
    return planning.moves()


class _Planning:
    """The moves so far, and the memory that they leave."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._again_at = math.inf
        loading, loaded, unloading = (
            [one for one in snapshot.models if one.state is state]
            for state in (State.LOADING, State.LOADED, State.UNLOADING)
        )
        self._room = snapshot.available_bytes - snapshot.promised_bytes - snapshot.reserve_bytes
        """Bytes that are free now."""
        self._most = most_bytes(snapshot)
        self._left = self._room + _total(unloading)
        """Bytes that are free once all that was chosen is unloaded, and those so far in the order are loaded."""
        self._stays = [one for one in loaded if not one.pinned]
        """Models that may be displaced, without those that were chosen."""
        self._loading = bool(loading)
        self._may_move = not loading and not unloading
        self._nobody_waits = True
        """Whether nobody waits, so far in the order."""
        self._load: list[str] = []
        self._unload: list[str] = []
        self._hold: list[str] = []
        self._refuse: dict[str, str] = {}

    def moves(self) -> Moves:
        return Moves(tuple(self._load), tuple(self._unload), frozenset(self._hold), dict(self._refuse), self._again_at)

    def may_start(self, model: Model) -> bool:
        """Whether it is not loaded, and has paused since it failed (rule 10)."""
        return model.state is State.UNLOADED or (model.state is State.FAILED and self._reached(model.retry_at))

    def shortened(self, model: Model) -> Model:
        """The model with no more memory than there is, where a shorter context does for it (rule 7)."""
        if not model.least_bytes or model.needed_bytes <= self._most:
            return model
        return replace(model, needed_bytes=max(model.least_bytes, self._most))

    def let_leave(self) -> None:
        """Apply rule 11."""
        for model in [one for one in self._stays if one.leaving]:
            if model.idle:
                self._displace([model])
            else:
                self._hold.append(model.name)
                self._stays.remove(model)
                self._left += model.needed_bytes

    def unload_unused(self) -> None:
        """Apply rule 8."""
        for model in list(self._stays):
            limit = model.idle_unload_s
            if limit and not _has_work(model) and self._reached(model.unused_since + limit):
                self._displace([model])

    def keep_reserve(self) -> None:
        """Apply rule 8 where memory is short."""
        idle = sorted((one for one in self._stays if not _has_work(one)), key=lambda one: one.unused_since)
        if self._left < 0 and idle:
            self._displace(_enough(idle, -self._left) or idle)

    def serve(self, model: Model) -> None:
        """Load a model that is waited for, or make room for it, or leave it waiting."""
        if model.needed_bytes > self._most:
            self._refuse[model.name] = _problem(model.needed_bytes, self._most)
            return
        first, self._nobody_waits = self._nobody_waits, False
        missing = model.needed_bytes - self._left
        if missing > 0:
            displaced = self._displaced(missing)
            self._stays = [one for one in self._stays if one not in displaced]
            # Only the first in the order has others make way (rule 6).
            if displaced and (first or not any(_has_work(one) for one in displaced)):
                self._make_way(model, displaced)
            missing -= _total(displaced)
        else:
            self._start(model)
        self._left = -missing

    def preload(self) -> None:
        """Apply rule 9."""
        wanted = [
            self.shortened(one)
            for one in self._snapshot.models
            if one.preload and one.state is State.UNLOADED and one.loaded_at == -math.inf and not one.waiting
        ]
        for model in sorted(wanted, key=lambda one: not one.default):
            if self._nobody_waits:
                self._start(model)

    def _start(self, model: Model) -> None:
        if self._may_move and model.needed_bytes <= self._room:
            self._may_move = False
            self._load.append(model.name)
            if model.pinned:
                self._most -= model.needed_bytes

    def _displaced(self, missing: int) -> list[Model]:
        """Models that are unloaded to free ``missing`` bytes: idle ones if they suffice; none where all can't."""
        idle = sorted(
            (one for one in self._stays if not _has_work(one)),
            key=lambda one: (not self._has_stayed(one), one.unused_since),
        )
        with_work = sorted((one for one in self._stays if _has_work(one)), key=lambda one: one.loaded_at)
        return _enough(idle, missing) or _enough([*idle, *with_work], missing) or []

    def _make_way(self, model: Model, displaced: Sequence[Model]) -> None:
        """Unload ``displaced``, or hold those that have work, if the time has come."""
        if any(_has_work(one) for one in displaced):
            due = model.waiting_since + patience_s(model, displaced)
        else:
            last_used = max(one.unused_since for one in displaced)
            due = min(model.waiting_since, last_used) + gather_s(model, displaced)
        if self._loading or not all(self._has_stayed(one) for one in displaced) or not self._reached(due):
            return
        if self._may_move and all(one.idle for one in displaced):
            self._unload_now(displaced)
        elif any(_has_work(one) for one in displaced):
            self._hold += [one.name for one in displaced]
        self._may_move = False

    def _displace(self, models: Sequence[Model]) -> None:
        self._unload_now(models)
        self._stays = [one for one in self._stays if one not in models]
        self._left += _total(models)

    def _unload_now(self, models: Iterable[Model]) -> None:
        self._unload += [one.name for one in models]
        self._may_move = False

    def _has_stayed(self, model: Model) -> bool:
        return self._reached(model.loaded_at + stay_s(model))

    def _reached(self, time: float) -> bool:
        """Every comparison with the time is made here, so ``again_at`` misses none."""
        if self._snapshot.now >= time:
            return True
        self._again_at = min(self._again_at, time)
        return False


def _has_work(model: Model) -> bool:
    return not model.idle or model.waiting > 0


def _enough(models: Sequence[Model], missing: int) -> list[Model] | None:
    """The first of ``models`` that together take ``missing`` bytes, without those that the others make unnecessary;
    ``None`` where all together take less."""
    chosen: list[Model] = []
    for model in models:
        if _total(chosen) >= missing:
            break
        chosen.append(model)
    if _total(chosen) < missing:
        return None
    for model in reversed(list(chosen)):
        if _total(chosen) - model.needed_bytes >= missing:
            chosen.remove(model)
    return chosen


def _swap_s(model: Model, displaced: Iterable[Model]) -> float:
    return model.load_s + sum(one.load_s for one in displaced)


def _total(models: Iterable[Model]) -> int:
    return sum(one.needed_bytes for one in models)


def _problem(needed: int, most: int) -> str:
    return (
        f"it takes {needed >> 20} MiB of memory, and {max(0, most) >> 20} MiB are available once all other models"
        " that are not pinned are unloaded: choose a smaller model, or lower its n_ctx or parallel"
    )
