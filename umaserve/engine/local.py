"""An engine in the daemon's own process."""

from __future__ import annotations

import os
from collections.abc import Callable

from umaserve.engine.engine import LlamaEngine, load_checked
from umaserve.remote.process import End
from umaserve.settings.daemon import Config


class LocalEngine:
    """Implements ``daemon.model_host.EngineHandle``, but never ends by itself."""

    life = None
    pid = os.getpid()

    def __init__(self, chat_template: str | None = None) -> None:
        self._chat_template = chat_template
        self._engine: LlamaEngine | None = None

    def load(self, config: Config, progress: Callable[[float], bool]) -> LlamaEngine:
        self._engine = load_checked(config, progress, self._chat_template)
        return self._engine

    def kill(self) -> None:
        os._exit(1)

    def end(self) -> End:
        raise AssertionError("it ends with this process")

    def close(self) -> None:
        """The host closes the engine."""
