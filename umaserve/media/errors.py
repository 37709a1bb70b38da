"""Why a client's image, recording or film can't be used; one reason is that the packages to read it are missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class MediaError(Exception):
    """What was expected and what came instead, in words that go on after the field's name and a colon."""


@contextmanager
def needed() -> Iterator[None]:
    """Around the imports of what only the extra ``media`` installs; raises ``MediaError`` without it."""
    try:
        yield
    except ImportError as error:
        raise MediaError(
            f"can't be read, since the server lacks the Python package {error.name}: pip install 'umaserve[media]'"
        ) from error
