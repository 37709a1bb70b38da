"""What is kept for clients, in memory and in the folder of ``--store``."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from umaserve.daemon.store.kept_file import KeptFile
from umaserve.dialects.responses.kept import MAX_AGE_S, AllKept
from umaserve.dialects.responses.kept_rows import rows_of
from umaserve.settings.daemon import Config
from umaserve.system.threads import JobThread

if TYPE_CHECKING:
    from umaserve.daemon.store.kept_files import KeptFiles


class Store:
    """Responses and conversations, and with a folder also files. Raises ``ConfigError`` where the folder can't be
    used."""

    def __init__(self, config: Config, now: Callable[[], float], wake: Callable[[], None]) -> None:
        """``now``: seconds of a clock that only goes forward."""
        max_age_s = (config.store_age * 86400 or math.inf) if config.store else MAX_AGE_S
        self.kept = kept = AllKept(now, config.store_bytes, max_age_s, on_disk=bool(config.store))
        self.files: KeptFiles | None = None
        """Clients' files; ``None`` without a folder."""
        self.threads: list[JobThread] = []
        """Threads of its own: their results are to be collected."""
        if not config.store:
            self._file = KeptFile("", rows_of(kept), wake)
            return
        # Imported only where it is wanted: it takes memory.
        from umaserve.daemon.store.file_folder import FileFolder
        from umaserve.daemon.store.kept_files import KeptFiles
        from umaserve.dialects.batches.kept import AllFiles

        files = AllFiles(now, config.store_bytes, max_age_s)
        self._file = KeptFile(config.store, (*rows_of(kept), *files.rows()), wake)
        self.files = KeptFiles(FileFolder(config.store, wake), files)
        self.threads += [*self._file.threads, self.files.folder.thread]

    def tidy(self) -> None:
        """Forget what is too old, and try again what could not be written."""
        self._file.tidy()

    def stop(self, timeout: float) -> bool:
        """End what is in work, and write what has changed; returns whether that ended within ``timeout`` seconds."""
        until = time.monotonic() + timeout
        if self.files is not None:
            if not self.files.folder.thread.stop(timeout):
                return False
            self.files.folder.thread.collect()
        return self._file.stop(max(0.0, until - time.monotonic()))
