"""Whether the box's clock can be right."""

from __future__ import annotations

import ctypes
import os
import time

_TIME_ERROR = 5
_TIMEX_BYTES = 256
"""Above the size of C's struct timex; all zeros only ask."""


def is_behind() -> bool:
    """Whether the clock is before the time at which this package was installed."""
    return time.time() < os.stat(__file__).st_ctime


def is_synchronized() -> bool | None:
    """Whether the kernel's clock is kept right by a time server (adjtimex(2)); ``None`` where that can't be asked."""
    try:
        state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    except AttributeError:
        return None
    return None if state < 0 else state != _TIME_ERROR
