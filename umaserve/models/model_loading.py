"""Has one model loaded, as often as it takes, and knows from that what loading takes and when to try again."""

from __future__ import annotations

import math
from collections.abc import Callable

from umaserve.models.engine_supervisor import EngineSupervisor
from umaserve.models.file_watch import FileWatch
from umaserve.models.known_models import files_of
from umaserve.models.model_context import ModelContext
from umaserve.models.residency import retry_pause_s
from umaserve.net.timers import Timer
from umaserve.sessions.cost_model import Cost
from umaserve.sessions.engine_api import Allowance, Engine
from umaserve.settings.kinds import AUTO
from umaserve.settings.models import ModelSpec
from umaserve.system.memory import resident_bytes

MAX_PAUSE_S = 60.0
"""Longest pause, in seconds, between two trials to load a model whose engine ends at once: from none on, twice as long
each time."""
PATIENCE = 3
"""Trials that requests wait for: of a lost engine, and where it is not the model's fault that it was not loaded."""
BESIDES_WEIGHTS = 32 << 20
"""Bytes that a model takes besides its files: a low guess. Where it takes more than there is, its engine says so before
it is loaded; a model that is thought to need too much would be refused."""
READ_RATE = 500e6
"""Bytes of weights loaded a second: a low guess, too."""

Loaded = Callable[[Engine | BaseException], None]


class ModelLoading:
    """Loads one model. Times are those of the loop."""

    def __init__(self, spec: ModelSpec, place: EngineSupervisor, around: ModelContext) -> None:
        self.under_way = False
        """Whether it is being loaded, or is to be again after a pause."""
        self._spec = spec
        self._known = around.known
        self._key = self._known.key(spec.config)
        self.files = FileWatch(spec.name, files_of(spec.config))
        self.needed_bytes = self._known.needed_bytes(self._key) or spec.size_bytes + BESIDES_WEIGHTS
        """The memory that it takes, as far as is known."""
        self.least_bytes = spec.size_bytes + BESIDES_WEIGHTS if spec.config.n_ctx == AUTO else 0
        """The memory with which it can be loaded, as far as is known; 0: with ``needed_bytes`` only."""
        self.cells = self._known.cells(self._key)
        """KV cells that it has when it is loaded, as far as is known."""
        self.cost = self._known.cost(self._key)
        """Cost of the model's ticks, as far as is known; of a model that is loaded, when it was kept last."""
        self.load_s = spec.size_bytes / READ_RATE
        self.loaded_at = -math.inf
        self.retry_at = -math.inf
        """When it may be tried again after a failure."""
        self.failures = 0
        """Failures in a row; engines that ended by themselves before they had made anything count, too."""
        self._place = place
        self._around = around
        self._now = around.loop.now
        self._begun_at = 0.0
        self._loaded: Loaded = _nobody
        self._pause: Timer | None = None

    @property
    def context_tokens(self) -> int:
        """Tokens that a sequence may have, as far as is known before it is loaded."""
        tokens = self._spec.context_tokens
        return min(tokens, self.cells) or tokens

    @property
    def pausing(self) -> bool:
        """Whether it takes no memory yet, and others may be loaded meanwhile."""
        return self._pause is not None

    def begin(self, loaded: Loaded) -> None:
        """Load the model, then call ``loaded`` with its engine, or the error."""
        self._announce(loaded)
        self._load()

    def begin_again(self, loaded: Loaded) -> None:
        """Load the model again after its engine has ended: as ``begin``, after a pause that doubles."""
        pause_s = min(2.0 ** (self.failures - 1), MAX_PAUSE_S) if self.failures else 0.0
        self.failures += 1
        self._announce(loaded)
        if pause_s:
            self._pause = self._around.loop.call_later(pause_s, self.end_pause)
        else:
            self._around.loop.call_soon(self._load_if_wanted)

    def end_pause(self) -> None:
        """Load it now, if it pauses."""
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
            self._load_if_wanted()

    def _load_if_wanted(self) -> None:
        if self._around.wanted():
            self._load()

    def give_up(self) -> None:
        """Load the model no more, if it pauses."""
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
            self.under_way = False

    def _announce(self, loaded: Loaded) -> None:
        self.under_way = True
        self._loaded = loaded
        self._place.progress = 0.0
        self._begun_at = self._now()

    def _load(self) -> None:
        def ended(result: Engine | BaseException) -> None:
            self.under_way = False
            if isinstance(result, BaseException):
                # One that the daemon's end has stopped is as good as before.
                if self._around.wanted():
                    self.forget()
            else:
                self.loaded_at = self._now()
                self.load_s = self.loaded_at - self._begun_at
                # What it has not touched yet is not resident, and what nobody could measure is.
                taken = resident_bytes(self._place.pids) - resident_bytes()
                self.needed_bytes = max(result.info.needed_bytes, taken)
                self.cells = result.capacity.cells
                self._known.learn(self._key, self._spec.name, self.needed_bytes, self.cost, cells=self.cells)
            self._loaded(result)

        # Its files may have been replaced.
        self.files.note()
        key = self._known.key(self._spec.config)
        if key != self._key:
            self._key, self.cells, self.cost = key, self._known.cells(key), self._known.cost(key)
        beside = any(pid not in self._place.pids for pid in self._around.children())
        known_bytes = self._known.needed_bytes(self._key)
        known_cells = self._known.cells(self._key)
        self._place.load(Allowance(self._around.available_bytes(), beside, known_bytes, known_cells), ended)

    def keep_cost(self, cost: Cost | None) -> None:
        """Keep the cost of the model's ticks: the next engine, and the next daemon, start from that."""
        if cost is not None and cost != self.cost:
            self.cost = cost
            self._known.learn(self._key, self._spec.name, self.needed_bytes, cost, cells=self.cells)

    def forget(self) -> None:
        """Have it measured and tried out at its next loading, whatever is known of it."""
        self._known.forget(self._key)

    def takes_more(self, needed_bytes: int) -> bool:
        """Whether a model that takes so much, as a failed loading says, takes more than was known until now."""
        if needed_bytes <= (self.least_bytes or self.needed_bytes):
            return False
        self.needed_bytes = needed_bytes
        self.least_bytes = self.least_bytes and needed_bytes
        return True

    def failed(self) -> None:
        """Count a failure: the model is not to be tried again before ``retry_at``."""
        self.failures += 1
        self.retry_at = self._now() + retry_pause_s(self.failures)

    @property
    def patience_is_over(self) -> bool:
        return self.failures >= PATIENCE

    @property
    def eta_s(self) -> float | None:
        """Seconds until it is loaded; ``None`` where nobody knows."""
        so_far, progress = self._now() - self._begun_at, self._place.progress
        return so_far / progress - so_far if self.under_way and progress else None


def _nobody(_result: Engine | BaseException) -> None:
    """Waits for it."""
