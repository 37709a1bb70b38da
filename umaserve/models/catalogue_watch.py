"""Reads the catalogue of models again: at SIGHUP, and when its folder has changed."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable

from umaserve.models.registry import Models
from umaserve.settings.model_files import changed_at
from umaserve.settings.models import Catalogue
from umaserve.settings.reread import reread

log = logging.getLogger(__name__)


class CatalogueWatch:
    """Watches ``folder``, the one of models; empty: there is none."""

    def __init__(self, models: Models, folder: str, read: Callable[[], Catalogue], changed: Callable[[], None]) -> None:
        """``read`` raises ``ConfigError`` for a catalogue that can't be used. ``changed`` is called when there is
        another one."""
        self._models = models
        self._folder = folder
        self._read = read
        self._changed = changed
        self._changed_at = changed_at(folder)

    def look(self) -> None:
        """Read the catalogue again if the folder has changed."""
        if changed_at(self._folder) != self._changed_at:
            self.reread()

    def reread(self, then: Callable[[], None] = lambda: None) -> None:
        """Read the catalogue again, and call ``then``."""
        self._changed_at = changed_at(self._folder)
        # Many files take longer than the streams should wait.
        self._models.threads.preparing.submit(lambda: reread(self._read, None), functools.partial(self._on_read, then))

    def _on_read(self, then: Callable[[], None], result: Catalogue | BaseException | None) -> None:
        if isinstance(result, BaseException):
            log.error("the list of models could not be reloaded", exc_info=result)
        elif result is not None:
            self._models.take(result)
            self._changed()
        then()
