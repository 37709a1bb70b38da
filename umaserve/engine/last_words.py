"""What this process tells before llama.cpp ends it: some damaged or unusual files make it abort or hang, each in
another place (layers without heads, experts that are not there, a vocabulary without a newline, weights of a type that
it can't multiply), and no check of the header knows them all."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import socket
from collections.abc import Callable

import llama_cpp

from umaserve.core.errors import ModelError
from umaserve.engine.files import gguf

Begins = Callable[[str, str], None]
"""Says which file is worked on from now on: its kind ("model", "mmproj", "voice") and path."""

MAX_S = 120.0
"""Most seconds from one progress to the next, for a file of no size."""
SLOWEST_BYTES_S = 8 << 20
"""Speed of the slowest disk, in bytes per second: the first decode reads all weights, and llama.cpp tells no progress
meanwhile."""


def ignore_begin(_kind: str, _path: str) -> None:
    """Do nothing: a ``Begins`` without a listener."""


class LastWords:
    """Writes to a socket which file is worked on, ended by a zero byte; and at a crash llama.cpp's message and Python's
    calls. From the first file until ``done``, the process ends, with Python's calls, where nothing ``advances``."""

    def __init__(self, to: socket.socket) -> None:
        self._to = to
        self._max_s = 0.0
        faulthandler.enable(to.fileno(), all_threads=False)
        # Kept here because ggml holds no reference to it.
        self._on_abort = ctypes.CFUNCTYPE(None, ctypes.c_char_p)(lambda message: to.sendall(message + b"\n"))
        llama_cpp.llama_cpp._lib.ggml_set_abort_callback(self._on_abort)

    def begins(self, kind: str, path: str) -> None:
        self._to.sendall(os.fsencode(f"{kind} {path}\0"))
        self._max_s = MAX_S + _bytes_of(path) / SLOWEST_BYTES_S
        self.advances()

    def advances(self) -> None:
        if self._max_s:
            faulthandler.dump_traceback_later(self._max_s, file=self._to.fileno(), exit=True)

    def done(self) -> None:
        faulthandler.cancel_dump_traceback_later()


def _bytes_of(path: str) -> int:
    """Bytes of a model's weights, in all its files; 0 where they can't be read, which loading them explains."""
    try:
        return sum(map(os.path.getsize, gguf.files(path)))
    except (OSError, ModelError):
        return 0
