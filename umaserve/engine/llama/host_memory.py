"""Host memory for saved sequences: what is kept is written in order, again and again, to pages that were populated
before; what is only passed on has a place of its own."""

from __future__ import annotations

import ctypes
import logging
import mmap
import queue
import threading

from umaserve.system import madvise
from umaserve.system.threads import be_called

log = logging.getLogger(__name__)

AHEAD_BYTES = 32 << 20
STEP_BYTES = 2 << 20
MAX_KEPT_BYTES = 32 << 20
"""Bytes of the largest place that a ``Scratch`` keeps."""


class HostMemory:
    """A mapping of ``n_bytes``; only used pages take memory.

    A thread of its own populates pages ``AHEAD_BYTES`` ahead of use: on a virtual machine a page fault can take longer
    than filling the page, and the writer holds up all streams.
    """

    def __init__(self, n_bytes: int) -> None:
        self._bytes = n_bytes
        # Private, because the kernel takes no shared pages back.
        self._map = mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self._ready = 0
        """Number of bytes from the start whose pages are populated, or queued for it."""
        self._wanted: queue.SimpleQueue[tuple[int, int] | None] = queue.SimpleQueue()
        """Offsets and sizes of the pages to populate, in bytes; ``None`` ends the thread."""
        self._look_ahead(0)
        self._begun = threading.Lock()
        """Lock that is taken once the thread is there. That is not now: the thread that loads the model may be of low
        priority, and what it starts would be too."""
        while not self._wanted.empty():
            self._populate_next()

    def place(self, offset: int, size: int) -> ctypes.Array[ctypes.c_uint8]:
        """The ``size`` bytes from ``offset`` on, to read or write."""
        self._look_ahead(offset + size)
        if self._begun.acquire(blocking=False):
            threading.Thread(target=self._populate, name="host memory", daemon=True).start()
        return (ctypes.c_uint8 * size).from_buffer(self._map, offset)

    def give_back(self) -> None:
        """Return all pages to the kernel; their content is lost."""
        madvise.give_back(self._map)
        self._ready = 0

    def close(self) -> None:
        """End the thread, which keeps the mapping."""
        self._wanted.put(None)

    def _look_ahead(self, used: int) -> None:
        end = min(used + AHEAD_BYTES, self._bytes)
        while self._ready < end:
            step = min(STEP_BYTES, self._bytes - self._ready)
            self._wanted.put((self._ready, step))
            self._ready += step

    def _populate(self) -> None:
        be_called("host memory")
        while self._populate_next():
            pass

    def _populate_next(self) -> bool:
        """Populate what is wanted next; returns whether there may be more."""
        wanted = self._wanted.get()
        if wanted is None:
            return False
        offset, size = wanted
        if why := madvise.populate(self._address + offset, size):
            log.debug("memory pages are not populated in advance: %s", why)
        return True


class Scratch:
    """Memory for one sequence at a time, from source to target: getting fresh pages takes up to six times as long as
    filling them, so a small place is kept, and a large one has huge pages where the kernel has some."""

    def __init__(self) -> None:
        self._kept = mmap.mmap(-1, mmap.PAGESIZE)

    def place(self, size: int) -> ctypes.Array[ctypes.c_uint8]:
        """``size`` bytes of any content, until the next call."""
        memory = self._kept
        if len(memory) < size:
            memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            madvise.prefer_huge(memory)
        if len(memory) <= MAX_KEPT_BYTES:
            self._kept = memory
        return (ctypes.c_uint8 * size).from_buffer(memory)
