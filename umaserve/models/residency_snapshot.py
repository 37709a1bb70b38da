"""Snapshot that a plan of the loaded models depends on, and the plan itself."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


class State(enum.Enum):
    UNLOADED = enum.auto()
    LOADING = enum.auto()
    LOADED = enum.auto()
    UNLOADING = enum.auto()
    """State of a model that is being unloaded: its memory is not free yet."""
    FAILED = enum.auto()
    """State of a model that could not be loaded, or whose process ended: it takes no memory, and is not tried again
    before ``retry_at``."""


@dataclass(frozen=True, slots=True)
class Model:
    """One of the models; times are in seconds of the snapshot's clock."""

    name: str
    needed_bytes: int
    """Memory that loading the model takes; of a loaded one, that it takes."""
    state: State = State.UNLOADED
    idle: bool = True
    """Whether no answer, question or speech that was given to it is unfinished."""
    waiting: int = 0
    """Requests that were not given to it, since it is not loaded or takes no new ones."""
    waiting_since: float = math.inf
    """Time when the first of the waiting requests came."""
    loaded_at: float = -math.inf
    """When it was loaded last; ``-inf``: not since the start."""
    last_used_at: float = -math.inf
    """When it had work last."""
    load_s: float = 0.0
    """Seconds that loading the model takes."""
    retry_at: float = -math.inf
    pinned: bool = False
    """Whether it stays once it is loaded."""
    preload: bool = False
    """Whether to load it before anybody asks for it."""
    idle_unload_s: float = 0.0
    """Seconds without work after which it is unloaded; 0: never."""
    leaving: bool = False
    """Whether the operator wants it unloaded."""
    default: bool = False
    least_bytes: int = 0
    """Memory with which it can be loaded, with a shorter context; 0: it can't be with less than ``needed_bytes``."""

    @property
    def unused_since(self) -> float:
        return max(self.last_used_at, self.loaded_at)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Snapshot of all that the plan depends on."""

    now: float
    models: Sequence[Model]
    """Models, in the order of the settings."""
    available_bytes: int
    """Memory that can be had without swapping, and without dropping mapped weights of loaded models."""
    promised_bytes: int = 0
    """Memory that loads in progress need and have not taken yet."""
    reserve_bytes: int = 0
    """Memory to leave free."""


@dataclass(frozen=True, slots=True)
class Moves:
    """Moves of a plan, by the names of models."""

    load: tuple[str, ...] = ()
    """Loads to start now: one at most."""
    unload: tuple[str, ...] = ()
    """Unloads to start now."""
    hold: frozenset[str] = frozenset()
    """Loaded models that get no new requests, since they must make way or the operator wants them unloaded: what they
    run is to end, and they are unloaded by a later plan."""
    refuse: Mapping[str, str] = field(default_factory=dict)
    """The problem that all waiting requests of a model are refused with: it can't fit."""
    again_at: float = math.inf
    """The plan stays the same until then, if nothing but the time changes."""
