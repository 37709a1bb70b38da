"""Advice to the kernel about pages of memory (madvise(2))."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os

from umaserve.system import macos

_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, Linux 5.14; Python's mmap lacks the name

_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def populate(address: int, size: int) -> str:
    """Make pages ready to be written to; returns why they aren't, empty where they are. Then page faults do it."""
    # Through ctypes, which releases the GIL; mmap's own method doesn't.
    return os.strerror(ctypes.get_errno()) if _libc.madvise(address, size, _POPULATE_WRITE) else ""


def give_back(memory: mmap.mmap) -> None:
    """Return all pages of a private mapping to the kernel; their content is lost."""
    # macOS only moves pages that aren't needed to where it takes some first; those that are free it takes.
    memory.madvise(mmap.MADV_FREE if macos.HERE else mmap.MADV_DONTNEED)


def prefer_huge(memory: mmap.mmap) -> None:
    """Have it in huge pages, where the kernel was built with them."""
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
