"""Notices that the files of a loaded model are written or replaced: its weights are mapped, so they change under it."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterable

log = logging.getLogger(__name__)

FileState = tuple[int, int, int]


class FileWatch:
    """Watches the files of one model."""

    def __init__(self, name: str, paths: Iterable[str]) -> None:
        self._name = name
        self._paths = tuple(paths)
        self._loaded = self._seen = self._states()

    def note(self) -> None:
        """Note that the model is loaded from the files as they are now."""
        self._loaded = self._seen = self._states()

    def changed(self) -> bool:
        """Whether they are others than those that were loaded, and nobody writes them any more: they are the same as
        when it was looked last."""
        states = self._states()
        if len(states) < len(self._paths):
            return False  # What was deleted stays mapped.
        seen, self._seen = self._seen, states
        if states == self._loaded:
            return False
        if seen == self._loaded:
            message = "%s: the model's files have changed on disk: its answers may be wrong until it is reloaded"
            log.warning(message, self._name)
        return states == seen

    def _states(self) -> list[FileState]:
        states = []
        for path in self._paths:
            with contextlib.suppress(OSError):
                status = os.stat(path)
                states.append((status.st_ino, status.st_size, status.st_mtime_ns))
        return states
