"""Host memory that is written in order, over and over, with its pages ready before they are needed."""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import queue
import threading

log = logging.getLogger(__name__)

AHEAD_BYTES = 32 << 20
STEP_BYTES = 2 << 20
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, Linux 5.14; Python's mmap lacks the name

_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class HostMemory:
    """So many bytes, of which the kernel gives those that are used.

    Its pages are asked for on a thread of their own, ``AHEAD_BYTES`` before what is used: on a virtual machine a fresh
    page can take longer than all that is written to it, and whoever writes holds up every stream.
    """

    def __init__(self, n_bytes: int) -> None:
        self._bytes = n_bytes
        # Private, since shared pages outlive being given back.
        self._map = mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self._ready = 0
        """Bytes from the start whose pages are there, or asked for."""
        self._wanted: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
        threading.Thread(target=self._populate, name="host memory", daemon=True).start()
        self._look_ahead(0)

    def place(self, offset: int, size: int) -> ctypes.Array[ctypes.c_uint8]:
        """The bytes from ``offset`` on, to be read or written."""
        self._look_ahead(offset + size)
        return (ctypes.c_uint8 * size).from_buffer(self._map, offset)

    def give_back(self) -> None:
        """Let the kernel have all of it; what it held is lost."""
        self._map.madvise(mmap.MADV_DONTNEED)
        self._ready = 0

    def _look_ahead(self, used: int) -> None:
        end = min(used + AHEAD_BYTES, self._bytes)
        while self._ready < end:
            step = min(STEP_BYTES, self._bytes - self._ready)
            self._wanted.put((self._ready, step))
            self._ready += step

    def _populate(self) -> None:
        while True:
            offset, size = self._wanted.get()
            # By ctypes, which lets the other threads run meanwhile, as mmap's own method does not.
            if _libc.madvise(self._address + offset, size, _POPULATE_WRITE):
                # They come when they are written to.
                log.debug("pages are not made ready: %s", os.strerror(ctypes.get_errno()))
