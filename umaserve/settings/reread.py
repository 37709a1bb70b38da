"""Reading a file that a setting names again, while the program runs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from umaserve.core.errors import ConfigError

log = logging.getLogger(__name__)

T = TypeVar("T")


def reread(read: Callable[[], T], kept: T) -> T:
    """The result of ``read``; where it raises ConfigError, that is logged and ``kept`` returned."""
    try:
        return read()
    except ConfigError as error:
        log.error("%s (what was loaded before stays in use)", error)
        return kept
