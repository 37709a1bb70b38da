"""The contents of clients' files: on disk, written and read by a thread of its own."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection
from functools import partial

from umaserve.core.errors import ConfigError
from umaserve.dialects.batches.files import Sent, read_sent
from umaserve.settings.sources import printable
from umaserve.system.threads import DISK_NICE, JobThread

log = logging.getLogger(__name__)

NAME = "files"
PIECE_BYTES = 256 * 1024
"""Bytes of a file that are read at a time for a client."""

Done = Callable[[object], None]
"""Gets a job's result, or the exception that it raised, on the loop's thread."""


class FileFolder:
    """The folder ``files`` in the store's. Raises ``ConfigError`` where it can't be used."""

    def __init__(self, store: str, wake: Callable[[], None]) -> None:
        self._path = os.path.join(store, NAME)
        try:
            os.makedirs(self._path, 0o700, exist_ok=True)
        except OSError as error:
            advice = "choose a folder of this daemon's own that it can write to, with --store"
            raise ConfigError(f"store {printable(self._path)}: {error.strerror}: {advice}") from error
        self.thread = JobThread("files", wake, nice=DISK_NICE)

    def path(self, name: str) -> str:
        return os.path.join(self._path, name)

    def tidy(self, wanted: Collection[str]) -> None:
        """Delete all but those of these names, which a daemon has left that had no time to."""
        self.thread.submit(partial(self._tidy, frozenset(wanted)), _complain)

    def keep(self, name: str, body: bytes, content_type: str, done: Done) -> None:
        """Read a form, and write its file; the result is what was ``Sent``, without its content, and its length."""
        self.thread.submit(partial(self._keep, name, body, content_type), done)

    def read(self, name: str, start: int, done: Done) -> None:
        """Read up to ``PIECE_BYTES`` from this byte on."""
        self.thread.submit(partial(self._read, name, start), done)

    def delete(self, name: str) -> None:
        self.thread.submit(partial(self._delete, name), _complain)

    # -- on the thread -------------------------------------------------------------------------------------------

    def _tidy(self, wanted: frozenset[str]) -> None:
        for name in set(os.listdir(self._path)) - wanted:
            self._delete(name)

    def _keep(self, name: str, body: bytes, content_type: str) -> tuple[str, int]:
        sent: Sent = read_sent(body, content_type)
        file = os.open(self.path(name), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            with open(file, "wb", buffering=0) as written:
                rest = sent.content
                while rest:
                    rest = rest[written.write(rest) :]
        except BaseException:
            self._delete(name)
            raise
        return sent.filename, len(sent.content)

    def _read(self, name: str, start: int) -> bytes:
        with open(self.path(name), "rb", buffering=0) as file:
            file.seek(start)
            return file.read(PIECE_BYTES)

    def _delete(self, name: str) -> None:
        try:
            os.unlink(self.path(name))
        except FileNotFoundError:
            log.debug("file %s: deleted already", name)


def _complain(result: object) -> None:
    if isinstance(result, BaseException):
        # Any other exception is a bug, so log its traceback.
        bug = None if isinstance(result, OSError) else result
        log.error("store: a file that is no longer wanted can't be deleted: %s", result, exc_info=bug)
