"""Place of one model's engine: has it loaded and closed, and tells when it ends by itself."""

from __future__ import annotations

import math
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Protocol

from umaserve.core.errors import ConfigError
from umaserve.net.loop import READ, Loop
from umaserve.remote.process import End
from umaserve.remote.run_ahead import RunAhead
from umaserve.sessions.engine_api import Allowance, Engine, EngineLost
from umaserve.settings.daemon import Config
from umaserve.settings.models import ModelSpec
from umaserve.system.progress import ProgressBar
from umaserve.system.threads import JobThread

PROGRESS_S = 0.1


class LoadedEngine(Engine, Protocol):
    """An engine that can be closed."""

    def close(self) -> None: ...


class EngineHandle(Protocol):
    """A place for an engine to be loaded in; made on the loop's thread."""

    @property
    def pid(self) -> int:
        """Id of the process that computes."""

    @property
    def life(self) -> socket.socket | None:
        """Socket that is readable once the engine has ended; ``None`` if it ends with this process."""

    @property
    def run_ahead(self) -> RunAhead | None:
        """Results of ticks that the engine runs ahead."""

    def load(self, config: Config, allowance: Allowance, progress: Callable[[float], bool]) -> LoadedEngine:
        """Load the model: once, on a thread of its own. ``progress`` takes how much is loaded, from 0 to 1, and says
        whether to go on. Raises ``ModelError``, ``TooLarge`` where the ``allowance`` is too small for it, and
        ``EngineLost`` where another program has killed it."""

    def kill(self) -> None:
        """Kill the engine, which does not return from a call."""

    def end(self) -> End:
        """The end of the engine: how it has ended."""

    def close(self) -> None:
        """Free what is left, the engine included."""


NewEngine = Callable[[ModelSpec], EngineHandle]
"""Makes a place for an engine. Raises ``ConfigError`` where a file that the settings name can't be read, ``EngineLost``
where no process can be started."""


class EngineSupervisor:
    """Has one engine at a time."""

    def __init__(
        self,
        spec: ModelSpec,
        loop: Loop,
        new_engine: NewEngine,
        wanted: Callable[[], bool],
        ended: Callable[[End], None],
    ) -> None:
        """``wanted``: whether a load is to go on. ``ended`` is called when a loaded engine has ended by itself."""
        self.progress = 0.0
        """How much of the model is loaded, from 0 to 1."""
        self._spec = spec
        self._loop = loop
        self._new_engine = new_engine
        self._wanted = wanted
        self._ended = ended
        self._thread: JobThread | None = None
        """Thread for loading and closing; none before the first load."""
        self._handle: EngineHandle | None = None
        self._engine: LoadedEngine | None = None
        self._bar = ProgressBar(f"loading {spec.name}", sys.stderr)

    @property
    def pids(self) -> Sequence[int]:
        """The processes that compute for the model."""
        return () if self._handle is None or self._handle.life is None else (self._handle.pid,)

    def load(self, allowance: Allowance, done: Callable[[LoadedEngine | BaseException], None]) -> None:
        """Load the model, then call ``done`` with its engine, or the error."""
        try:
            self._handle = handle = self._new_engine(self._spec)
        except (ConfigError, EngineLost) as error:
            done(error)
            return
        shown = True

        def show_progress() -> None:
            if shown:
                self._bar.show(self.progress)
                self._loop.call_later(PROGRESS_S, show_progress)

        def on_progress(fraction: float) -> bool:
            self.progress = fraction
            return self._wanted()

        def on_loaded(result: LoadedEngine | BaseException) -> None:
            nonlocal shown
            shown = False
            self._bar.clear()
            if isinstance(result, BaseException):
                self._handle = None
                handle.close()
            else:
                self.progress = 1.0
                self._engine = result
                self._watch(handle)
            done(result)

        show_progress()
        if self._thread is None:
            self._thread = JobThread("loading", self._loop.wake, max_s=math.inf)
        self._thread.submit(lambda: handle.load(self._spec.config, allowance, on_progress), on_loaded)

    def _watch(self, handle: EngineHandle) -> None:
        if handle.run_ahead is not None:
            self._loop.set_interest(handle.run_ahead.socket, READ, handle.run_ahead.receive)
        life = handle.life
        if life is None:
            return

        def on_end(_events: int) -> None:
            self._unwatch(handle)
            end = handle.end()
            handle.close()
            self._handle = self._engine = None
            self._ended(end)

        self._loop.set_interest(life, READ, on_end)

    def _unwatch(self, handle: EngineHandle) -> None:
        ahead = None if handle.run_ahead is None else handle.run_ahead.socket
        for watched in (handle.life, ahead):
            if watched is not None:
                self._loop.set_interest(watched, 0, lambda _events: None)

    def kill(self) -> None:
        """Kill the engine, which does not return from a call. One that is no process of its own stays."""
        if self._handle is not None and self._handle.life is not None:
            self._handle.kill()

    def close(self, closed: Callable[[], None]) -> None:
        """Close the engine that is loaded, and call ``closed`` when its memory is free."""
        handle, engine = self._handle, self._engine
        assert handle is not None
        assert engine is not None
        assert self._thread is not None
        self._unwatch(handle)
        self._engine = None

        def close() -> None:
            engine.close()
            handle.close()

        def on_closed(result: BaseException | None) -> None:
            assert result is None
            self._handle = None
            closed()

        self._thread.submit(close, on_closed)

    def collect(self) -> None:
        """Run the callbacks of what was loaded or closed."""
        if self._thread is not None:
            self._thread.collect()

    def stop(self) -> None:
        """Stop the thread for loading and closing: there is no engine, and won't be."""
        if self._thread is not None:
            self._thread.stop(0.0)

    def end(self) -> None:
        """Close the engine at once, after the threads that call it have ended."""
        self.collect()
        if self._engine is not None:
            self._engine.close()
        if self._handle is not None:
            self._handle.close()
