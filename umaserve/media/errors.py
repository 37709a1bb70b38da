"""Errors of media that can't be used, among them missing packages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class MediaError(Exception):
    """Media that can't be used. The message says what was expected and what came; callers put the field's name and a
    colon before it."""


@contextmanager
def needed() -> Iterator[None]:
    """Wraps imports of packages from the extra ``media``; raises ``MediaError`` if they are missing."""
    try:
        yield
    except ImportError as error:
        raise MediaError(
            f"can't be read, since the server lacks the Python package {error.name}: pip install 'umaserve[media]'"
        ) from error
