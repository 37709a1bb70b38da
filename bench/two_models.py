"""Who serves two models: one daemon, two, llama-server, and what stands for no choice of models at all."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from bench import llama_server
from bench.processes import Served, daemon, trace_of
from bench.sides import THEIRS, Run
from bench.trace import Stream, Trace
from bench.two_models_load import STREAM_TOKENS, Place
from umaserve.engine.llama.model import find
from umaserve.settings.daemon import Config

ONE, TWO, ONE_MODEL = "one daemon", "two daemons", "one daemon, one model"
NEW, NEW_OF_THEIRS = "a new daemon", f"a new {THEIRS}"
TWO_OF_THEIRS, ROUTER = f"two {THEIRS}s", f"{THEIRS} as router"
_SETTINGS = {
    "UMA_WEIGHTS": "as-is",
    "UMA_N_CTX": "16384",
    "UMA_MAX_TOKENS": str(STREAM_TOKENS),
    # A stream that guesses its own repetitions has gaps of nothing, which would flatter the rest.
    "UMA_SPECULATION": "false",
}
_FIRST, _OTHER = "first", "other"


@dataclass(frozen=True, slots=True)
class Files:
    """Two models, whose files are all that is in ``folder``."""

    folder: str

    @property
    def first(self) -> str:
        return f"{self.folder}/{_FIRST}.gguf"

    @property
    def other(self) -> str:
        return f"{self.folder}/{_OTHER}.gguf"


Servers = AbstractContextManager[tuple[Place, Place]]


@contextlib.contextmanager
def files_of(settings: Config) -> Iterator[Files]:
    """Two copies of the model: engines that map the same file would share its pages."""
    with tempfile.TemporaryDirectory(prefix="bench-models-") as folder:
        files = Files(folder)
        for file in (files.first, files.other):
            shutil.copyfile(os.path.abspath(find(settings.model)), file)
        yield files


def both_loaded(files: Files, scenario: str, *numbers: int) -> dict[str, Run[Trace] | None]:
    """The sides that have both models loaded, and one daemon with one model for all requests."""
    return {
        ONE: _traced(lambda: _together(_one(files)), scenario, *numbers),
        TWO: _traced(lambda: _apart(_daemon(files.first), _daemon(files.other)), scenario, *numbers),
        TWO_OF_THEIRS: _traced_theirs(
            lambda binary: _apart(_llama_server(binary, files.first), _llama_server(binary, files.other)),
            scenario,
            *numbers,
        ),
        ONE_MODEL: _traced(lambda: _together(_daemon(files.first)), scenario, *numbers),
    }


def loading(files: Files, scenario: str) -> dict[str, Run[Trace] | None]:
    """The sides that load the other model when it is asked for."""
    return {
        ONE: _traced(lambda: _together(_one(files)), scenario),
        ROUTER: _traced_theirs(lambda binary: _together(_router(binary, files)), scenario),
    }


def started(files: Files) -> dict[str, Run[Trace] | None]:
    """A server that starts with the other model alone, as the scenario ``switch`` finds a model that is loaded."""
    binary = llama_server.binary()
    return {
        NEW: lambda: _start(_daemon(files.other)),
        NEW_OF_THEIRS: None if binary is None else lambda: _start(_llama_server(binary, files.other)),
    }


def _start(server: AbstractContextManager[Served]) -> Trace:
    began = time.monotonic()
    with server as at:
        ready = time.monotonic()
        place = Place(at.http, _OTHER)
        waited, after = trace_of("bench.two_models_load", "answers", *place, *place).streams
    # The load generator's own start is not the server's.
    waited = replace(waited, asked=waited.asked - (ready - began))
    return Trace([Stream(began, [ready]), waited, after], 0.0)


def _traced(servers: Callable[[], Servers], scenario: str, *numbers: int) -> Run[Trace]:
    def run() -> Trace:
        with servers() as (one, other):
            return trace_of("bench.two_models_load", scenario, *one, *other, *numbers)

    return run


def _traced_theirs(servers: Callable[[str], Servers], scenario: str, *numbers: int) -> Run[Trace] | None:
    binary = llama_server.binary()
    return None if binary is None else _traced(lambda: servers(binary), scenario, *numbers)


@contextlib.contextmanager
def _together(server: AbstractContextManager[Served]) -> Iterator[tuple[Place, Place]]:
    """One server for both."""
    with server as at:
        yield Place(at.http, _FIRST), Place(at.http, _OTHER)


@contextlib.contextmanager
def _apart(
    first: AbstractContextManager[Served], other: AbstractContextManager[Served]
) -> Iterator[tuple[Place, Place]]:
    """One for each."""
    with first as one, other as another:
        yield Place(one.http, _FIRST), Place(another.http, _OTHER)


def _one(files: Files) -> AbstractContextManager[Served]:
    return daemon("umaserve", UMA_MODELS_DIR=files.folder, UMA_MODEL=files.first, **_SETTINGS)


def _daemon(model: str) -> AbstractContextManager[Served]:
    """Run a daemon with one model, whatever the name in a request."""
    return daemon("umaserve", UMA_MODEL=model, **_SETTINGS)


def _llama_server(binary: str, model: str) -> AbstractContextManager[Served]:
    return llama_server.llama_server(binary, UMA_MODEL=model, **_SETTINGS)


def _router(binary: str, files: Files) -> AbstractContextManager[Served]:
    return llama_server.router(binary, files.folder, **_SETTINGS)
