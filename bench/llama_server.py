"""llama.cpp's own server with the daemon's settings, where the variable LLAMA_SERVER names its binary."""

from __future__ import annotations

import contextlib
import http.client
import os
from collections.abc import Iterator, Sequence

from bench.processes import Served, free_address, running
from umaserve.core.errors import ConfigError
from umaserve.engine.context_size import settle
from umaserve.engine.files.weights import choose
from umaserve.engine.llama.model import find
from umaserve.settings.daemon import SETTINGS, Config
from umaserve.system.cores import usable_cores
from umaserve.system.memory import available_bytes

VARIABLE = "LLAMA_SERVER"

LAYOUTS = {
    "-np N": ("--parallel", "N"),
    "-np N -kvu": ("--parallel", "N", "--kv-unified"),
    "-np N -kvu -ub 64": ("--parallel", "N", "--kv-unified", "--batch-size", "64", "--ubatch-size", "64"),
    "default": (),
}
"""Ways to run it, by name: flags, with N for the number of clients. ``-np`` alone gives each slot KV cells of its own;
without it there are four slots that share them."""
UNIFIED = LAYOUTS["-np N -kvu"]


def binary() -> str | None:
    """The path that the environment names, if it does. Raises ``ConfigError`` where nothing can be run."""
    path = os.environ.get(VARIABLE) or None
    if path is not None and not (os.path.isfile(path) and os.access(path, os.X_OK)):
        raise ConfigError(f"environment {VARIABLE}: expected the path of a program, got {path!r}")
    return path


@contextlib.contextmanager
def llama_server(path: str, layout: Sequence[str] = UNIFIED, **settings: str) -> Iterator[Served]:
    """Run it with the environment's settings and these, named as the daemon's variables are; ready when given.
    ``layout``: one of ``LAYOUTS``, whose flags replace the settings'."""
    loaded = SETTINGS.load({}, {**os.environ, **settings}).config
    # The same weights as the daemon's, and as many cells.
    model = choose(find(loaded.model), loaded, lambda _fraction: True).path
    loaded, _bytes = settle(model, loaded, available_bytes(), lambda: True)
    with _running(path, ["--model", model], layout, loaded) as at:
        yield at


@contextlib.contextmanager
def router(path: str, folder: str, **settings: str) -> Iterator[Served]:
    """Run it as a router of the models in ``folder``, each in a process of its own that starts when it is asked for.
    The settings have the number of cells."""
    loaded = SETTINGS.load({}, {**os.environ, **settings}).config
    with _running(path, ["--models-dir", folder], UNIFIED, loaded) as at:
        yield at


@contextlib.contextmanager
def _running(path: str, models: Sequence[str], layout: Sequence[str], settings: Config) -> Iterator[Served]:
    address = free_address()
    flags = [str(settings.parallel) if flag == "N" else flag for flag in layout]
    with running([path, *models, *_flags(settings, address), *flags], lambda: _is_ready(address)) as pid:
        yield Served(address, pid)


def _flags(settings: Config, address: str) -> list[str]:
    host, port = address.split(":")
    threads = settings.threads or usable_cores()
    values: dict[str, object] = {
        "--host": host,
        "--port": port,
        "--ctx-size": settings.n_ctx,
        "--batch-size": settings.n_batch,
        "--ubatch-size": settings.n_ubatch,
        "--threads": threads,
        "--threads-batch": settings.threads_batch or threads,
        "--flash-attn": settings.flash_attn,
        "--cache-type-k": settings.kv_types[0],
        "--cache-type-v": settings.kv_types[1],
        "--fit": "off",
        "--cache-ram": 0,
        "--log-verbosity": 1,
    }
    if settings.n_gpu_layers >= 0:
        values["--n-gpu-layers"] = settings.n_gpu_layers
    return ["--no-webui", "--offline", *(str(part) for pair in values.items() for part in pair)]


def _is_ready(address: str) -> bool:
    connection = http.client.HTTPConnection(address)
    with contextlib.closing(connection):
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
