"""Counts work instead of timing it: the same on a fast box, on a slow one, and beside other programs."""

from __future__ import annotations

import io
import select
import socket
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import umaserve

_PACKAGE = str(Path(umaserve.__file__).parent)
_GENERATED = "<string>"
"""The file of the methods that dataclasses and named tuples are given."""
_INLINED = {"<listcomp>", "<dictcomp>", "<setcomp>"}
"""No calls from Python 3.12 on (PEP 709)."""

_WAITED_FOR = [getattr(select, name) for name in ("epoll", "kqueue") if hasattr(select, name)]
_IN_KERNEL = (*_WAITED_FOR, socket.socket, io.FileIO, io.BufferedWriter, io.BufferedReader, io.TextIOWrapper)
_NOT_IN_KERNEL = {"fileno", "fspath", "gettimeout"}

_LENGTHS = struct.Struct("<II")


class Calls(NamedTuple):
    """Calls that the package's own code makes, so that they don't depend on the versions of Python and of libraries.
    Those into llama.cpp are not among them: Python reports no calls of ctypes."""

    python: float = 0.0
    """Of functions in Python. Each resumption of a generator is one."""
    c: float = 0.0
    """Of functions in C."""
    system: float = 0.0
    """System calls, libraries' included: on sockets, selectors, files, and in ``os``. What waits for another thread of
    the process is none: whether that enters the kernel depends on who comes first."""


class CallCounter:
    """The profile function of one thread."""

    def __init__(self, mark: CodeType) -> None:
        """``mark``: the code of the function with whose call a round begins."""
        self.rounds: list[Calls] = []
        """The whole ones; what comes before the first is the first."""
        self._mark = mark
        self._python = self._c = self._system = 0
        self._own: dict[CodeType, bool] = {}

    def __call__(self, frame: FrameType, event: str, called: Any) -> None:
        if event == "call":
            if frame.f_code is self._mark:
                self.rounds.append(Calls(self._python, self._c, self._system))
                self._python = self._c = self._system = 0
            caller = frame.f_back
            own = self._is_own(frame.f_code) or (caller is not None and self._is_own(caller.f_code))
            self._python += own and frame.f_code.co_name not in _INLINED
        elif event == "c_call":
            self._c += self._is_own(frame.f_code)
            self._system += _is_system_call(called)

    def _is_own(self, code: CodeType) -> bool:
        own = self._own.get(code)
        if own is None:
            own = self._own[code] = code.co_filename.startswith(_PACKAGE) or code.co_filename == _GENERATED
        return own


def _is_system_call(called: Any) -> bool:
    if called.__name__ in _NOT_IN_KERNEL:
        return False
    return isinstance(called.__self__, _IN_KERNEL) or called.__module__ == "posix"


def mean(rounds: Sequence[Calls]) -> Calls:
    """Of one round."""
    return Calls(*(sum(each) / len(rounds) for each in zip(*rounds, strict=True)))


class TappedSocket(socket.socket):
    """Takes the place of ``end``, and keeps what crosses."""

    def __init__(self, end: socket.socket) -> None:
        super().__init__(fileno=end.detach())
        self.sent, self.received = bytearray(), bytearray()

    def sendall(self, data: Any, *flags: int) -> None:
        self.sent += data
        super().sendall(data, *flags)

    def recv(self, size: int, flags: int = 0) -> bytes:
        data = super().recv(size, flags)
        if not flags & socket.MSG_PEEK:
            self.received += data
        return data


def frame_sizes(streams: Iterable[bytearray]) -> list[int]:
    """The sizes of the frames between the daemon and the engine's process, each with its header."""
    sizes = []
    for stream in streams:
        at = 0
        while at < len(stream):
            sizes.append(_LENGTHS.size + sum(_LENGTHS.unpack_from(stream, at)))
            at += sizes[-1]
        assert at == len(stream), "a part of a frame"
    return sizes
