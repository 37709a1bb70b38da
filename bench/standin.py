"""A stand-in for the model behind the real server: its ticks take no time, so that what is left is the wire's.

Run as a process of its own; settings come from UMA_* variables, as the daemon's do.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

from umaserve.core.errors import Fault, RequestError
from umaserve.core.events import ModelInfo
from umaserve.core.queries import Answer, Embed, Embedded, Query
from umaserve.core.requests import Generate
from umaserve.daemon.server import Server
from umaserve.remote.process import End
from umaserve.sessions.engine_api import (
    Capacity,
    Chunk,
    Listing,
    NamedFile,
    Outcome,
    Prepared,
    Tick,
    TickResult,
    YieldPoint,
)
from umaserve.settings.daemon import SETTINGS
from umaserve.settings.models import Catalogue, ModelSpec
from umaserve.system import logs

_PROMPT = [0] * 30
_TOKEN = 0
_SAMPLER = object()
_UNBOUNDED = 1 << 30
_TOLD_S = 1e-3
"""What a tick says it took: the cost model needs some time to divide by."""


class StandInEngine:
    """Implements ``sessions.engine_api.Engine`` without a model: every stream gets the same token in every tick."""

    name = "stand-in"
    run_ahead = None
    capacity = Capacity(slots=256, cells=_UNBOUNDED, sequence_tokens=_UNBOUNDED, batch_tokens=8192)
    end_tokens: frozenset[int] = frozenset()
    pieces: Sequence[bytes] = (b" token",)
    info = ModelInfo(
        name=name,
        architecture="none",
        quantization="none",
        parameters=0,
        size_bytes=0,
        context_tokens=_UNBOUNDED,
        training_tokens=_UNBOUNDED,
        vocabulary=1,
        embedding_length=0,
        chat_template=None,
        bos="",
        eos="",
    )

    def prepare(
        self,
        request: Generate,
        tenant: str = "",
        wanted: Callable[[], bool] = lambda: True,
        generated: Sequence[int] = (),
    ) -> Prepared:
        assert request.max_tokens is not None
        return Prepared(_PROMPT, request.max_tokens, _SAMPLER)

    def prepare_choice(self, request: Generate, first: Prepared) -> Prepared:
        return self.prepare(request)

    def change(self, prepared: Prepared, request: Generate, generated: Sequence[int]) -> Prepared:
        return prepared

    def answer(self, query: Query) -> Answer:
        raise RequestError(Fault.BAD_REQUEST, type(query).__name__, "a stand-in has no vocabulary")

    def encode(self, chunk: Chunk, pause: YieldPoint, wanted: Callable[[], bool]) -> None:
        raise AssertionError("a stand-in takes no media")

    def shed(self) -> None:
        """There is nothing."""

    def embed(self, query: Embed, pause: YieldPoint) -> Embedded:
        raise RequestError(Fault.NOT_SUPPORTED, "model", "a stand-in makes no embeddings")

    def run(self, tick: Tick) -> TickResult:
        tokens = [() if run.sampler is None else (_TOKEN,) for run in tick.runs]
        return TickResult(Outcome.DONE, tokens, _TOLD_S)

    def look(self) -> Listing:
        raise AssertionError("a stand-in keeps nothing")

    def keep(self, *_sequence: object) -> str | None:
        raise AssertionError("a stand-in keeps nothing")

    def fetch(self, *_sequence: object) -> bool:
        raise AssertionError("a stand-in keeps nothing")

    def give_name(self, *_names: object) -> int:
        raise AssertionError("a stand-in keeps nothing")

    def take_back(self, *_name: object) -> NamedFile:
        raise AssertionError("a stand-in keeps nothing")

    def close(self) -> None:
        """Nothing to free."""


class StandInHandle:
    """Implements ``models.engine_supervisor.EngineHandle`` for it, in this process."""

    life = None
    run_ahead = None
    pid = os.getpid()

    def load(self, *_how: object) -> StandInEngine:
        return StandInEngine()

    def kill(self) -> None:
        raise AssertionError("a stand-in never hangs")

    def end(self) -> End:
        raise AssertionError("a stand-in ends with this process")

    def close(self) -> None:
        """Nothing to free."""


if __name__ == "__main__":
    settings = SETTINGS.load({}, os.environ).config
    logs.configure(settings.log_level, settings.log_format)
    sys.exit(Server(Catalogue(ModelSpec("stand-in", settings)), lambda _spec: StandInHandle()).run())
