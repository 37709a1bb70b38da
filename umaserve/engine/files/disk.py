"""Saved sequences between host memory and the folder on disk."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from umaserve.engine.files.disk_file import Kind
from umaserve.engine.files.disk_folder import DiskFolder
from umaserve.engine.files.fingerprint import fingerprint
from umaserve.engine.files.slot_folder import SlotFolder
from umaserve.engine.llama.cells import Cells
from umaserve.engine.llama.model import Model
from umaserve.sessions.engine_api import Listing, NamedFile, SavedBytes
from umaserve.settings.daemon import Config

log = logging.getLogger(__name__)


class Disk:
    """Implements the engine's ``look``, ``keep``, ``fetch``, ``give_name`` and ``take_back``."""

    def __init__(self, folder: DiskFolder, names: SlotFolder | None, cells: Cells) -> None:
        """``names``: the folder for sequences with names; ``None``: there is none."""
        self._folder = folder
        self._names = names
        self._cells = cells

    @property
    def has_names(self) -> bool:
        return self._names is not None

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

    def give_name(self, name: str, filename: str) -> int:
        assert self._names is not None
        return self._names.give_name(name, filename)

    def take_back(self, filename: str) -> NamedFile:
        assert self._names is not None
        return self._names.take_back(filename)

    def close(self) -> None:
        if self._names is not None:
            self._names.close()
        self._folder.close()


def open_disk(
    model: Model, config: Config, adapters: Mapping[str, str], cells: Cells, saved_bytes: SavedBytes
) -> Disk | None:
    """The configured folder; ``None`` without one. A folder that can't be used is logged: all works without it."""
    if not config.kv_cache or not saved_bytes.each + saved_bytes.fixed:
        return None
    try:
        kind = Kind(fingerprint(model, config, adapters, saved_bytes), model.n_vocab, saved_bytes)
        folder = DiskFolder(config.kv_cache, config.kv_cache_bytes, kind)
        names = _opened_names(config, kind, folder) if config.slot_save_path else None
        return Disk(folder, names, cells)
    except OSError as error:
        log.warning("the disk cache is off: %s. Correct this, or choose another folder with --kv-cache", error)
        return None


def _opened_names(config: Config, kind: Kind, folder: DiskFolder) -> SlotFolder | None:
    """The folder for sequences with names; ``None`` where it can't be used, which is logged."""
    try:
        return SlotFolder(config.slot_save_path, config.kv_cache_bytes, kind, folder)
    except OSError as error:
        log.warning("slots can't be saved: %s. Correct this, or choose another folder with --slot-save-path", error)
        return None
