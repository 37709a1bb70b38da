"""Saved sequences between host memory and the folder on disk."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from umaserve.engine.files.disk_file import Kind
from umaserve.engine.files.disk_folder import DiskFolder
from umaserve.engine.files.fingerprint import fingerprint
from umaserve.engine.llama.cells import Cells
from umaserve.engine.llama.model import Model
from umaserve.sessions.engine_api import Listing, SavedBytes
from umaserve.settings.daemon import Config

log = logging.getLogger(__name__)


class Disk:
    """Implements the engine's ``look``, ``keep`` and ``fetch``."""

    def __init__(self, folder: DiskFolder, cells: Cells) -> None:
        self._folder = folder
        self._cells = cells

    def look(self) -> Listing:
        return self._folder.look()

    def keep(
        self,
        scope: str,
        tokens: Sequence[int],
        offset: int,
        size: int,
        replaced: Sequence[str],
        wanted: Callable[[], bool],
    ) -> str | None:
        return self._folder.keep(scope, tokens, self._cells.saved(offset, size), replaced, wanted)

    def fetch(self, name: str, offset: int, size: int, wanted: Callable[[], bool]) -> bool:
        # Sequences on disk have no gaps: they are text.
        self._cells.positions.forget_saved(offset)
        return self._folder.fetch(name, self._cells.saved(offset, size), wanted)

    def close(self) -> None:
        self._folder.close()


def open_disk(
    model: Model, config: Config, adapters: Mapping[str, str], cells: Cells, saved_bytes: SavedBytes
) -> Disk | None:
    """The configured folder; ``None`` without one. A folder that can't be used is logged: all works without it."""
    if not config.kv_cache or not saved_bytes.each + saved_bytes.fixed:
        return None
    try:
        kind = Kind(fingerprint(model, config, adapters, saved_bytes), model.n_vocab, saved_bytes)
        return Disk(DiskFolder(config.kv_cache, config.kv_cache_bytes, kind), cells)
    except OSError as error:
        log.warning("the disk cache is off: %s. Correct this, or choose another folder with --kv-cache", error)
        return None
