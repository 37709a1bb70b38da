"""What a plan of the loaded models depends on, and the plan itself."""

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
    """Its memory is not free yet."""
    FAILED = enum.auto()
    """It could not be loaded, or its process ended: it takes no memory, and is not tried again before ``retry_at``."""


@dataclass(frozen=True, slots=True)
class Model:
    """One of the models; times are in seconds of the snapshot's clock."""

    name: str
    needed_bytes: int
    """What loading it takes; of a loaded one, what it takes."""
    state: State = State.UNLOADED
    idle: bool = True
    """Whether no answer, question or speech that was given to it is unfinished."""
    waiting: int = 0
    """Requests that were not given to it, since it is not loaded or takes no new ones."""
    waiting_since: float = math.inf
    """When the first of them came."""
    loaded_at: float = -math.inf
    """When it was loaded last; ``-inf``: not since the start."""
    last_used_at: float = -math.inf
    """When it had work last."""
    load_s: float = 0.0
    """How long loading it takes."""
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

    @property
    def unused_since(self) -> float:
        return max(self.last_used_at, self.loaded_at)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that the plan depends on."""

    now: float
    models: Sequence[Model]
    """In the order of the settings."""
    available_bytes: int
    """What can be had without swapping, and without dropping mapped weights of loaded models."""
    promised_bytes: int = 0
    """Of what loads in progress need, the part that they have not taken yet."""
    reserve_bytes: int = 0
    """To leave free."""


@dataclass(frozen=True, slots=True)
class Moves:
    """By name."""

    load: tuple[str, ...] = ()
    """To start now: one at most."""
    unload: tuple[str, ...] = ()
    """To start now."""
    hold: frozenset[str] = frozenset()
    """Loaded models that get no new requests, since they must make way or the operator wants them unloaded: what they
    run is to end, and they are unloaded by a later plan."""
    refuse: Mapping[str, str] = field(default_factory=dict)
    """The problem that all waiting requests of a model are refused with: it can't fit."""
    again_at: float = math.inf
    """The plan stays the same until then, if nothing but the time changes."""
