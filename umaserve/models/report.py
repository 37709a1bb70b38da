"""What is told of the models: their entries in lists, and their metrics."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence

from umaserve.core.events import ListedModel, ModelState
from umaserve.models.model_host import ModelHost
from umaserve.models.residency_snapshot import State

_STATES = {
    State.UNLOADED: ModelState.UNLOADED,
    State.LOADING: ModelState.LOADING,
    State.LOADED: ModelState.LOADED,
    State.UNLOADING: ModelState.UNLOADING,
    State.FAILED: ModelState.FAILED,
}
_OF_EACH = ("active_sessions", "waiting_sessions", "threads", "kv_cells_used", "kv_cells_cached", "kv_cells_total")
"""Metrics of all models together that are told of each, too."""


def listed(host: ModelHost, *, default: bool, room_bytes: int | None, since_1970: float) -> ListedModel:
    """The model's entry in a list. ``room_bytes``: the largest model that can be loaded now; ``since_1970``: seconds
    from 1970 to the time 0 of the loop's clock."""
    used, state = host.last_used_at, host.state
    if host.awaited and state in (State.UNLOADED, State.FAILED):
        state = State.LOADING  # Once there is room, or its pause is over.
    return ListedModel(
        name=host.name,
        aliases=host.spec.aliases,
        description=host.spec.description,
        default=default,
        size_bytes=host.spec.size_bytes,
        state=_STATES[state],
        progress=host.place.progress if host.state in (State.LOADING, State.LOADED) else 0.0,
        needed_bytes=host.loading.needed_bytes,
        last_used_at=None if used == -math.inf else used + since_1970,
        info=host.info,
        architecture=host.spec.architecture if host.info is None else host.info.architecture,
        takes=_takes(host),
        context_tokens=host.loading.context_tokens if host.info is None else host.info.context_tokens,
        tags=host.spec.tags,
        room_bytes=None if state in (State.LOADED, State.UNLOADING) else room_bytes,
    )


def metrics_of_all(hosts: Sequence[ModelHost]) -> Mapping[str, int | float | str]:
    """The metrics of these models together: sums of numbers, and the first text that isn't empty."""
    each = [host.snapshot() for host in hosts]
    return {name: functools.reduce(_together, (one[name] for one in each)) for name in each[0]}


def metrics(host: ModelHost, model: ListedModel) -> Mapping[str, int | str]:
    """The metrics of one model, whose entry is ``model``."""
    now = host.snapshot()
    return {
        "state": model.state.value,
        "memory_bytes": model.needed_bytes if host.state in (State.LOADED, State.UNLOADING) else 0,
        "last_used": int(model.last_used_at or 0),
        **{name: int(now[name]) for name in _OF_EACH},
        **host.totals(),
    }


def _takes(host: ModelHost) -> Sequence[str] | None:
    """Kinds of media that the model takes, as ``ListedModel.takes``."""
    if host.info is None:
        return None if host.spec.config.mmproj else ()
    kinds = (("image", host.info.sees), ("audio", host.info.hears), ("video", host.info.sees))
    return tuple(kind for kind, taken in kinds if taken)


def _together(one: int | float | str, other: int | float | str) -> int | float | str:
    return one or other if isinstance(one, str) or isinstance(other, str) else one + other
