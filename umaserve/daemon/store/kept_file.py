"""The file in which responses, conversations and others outlive the daemon: a copy of what it keeps in memory."""

from __future__ import annotations

import contextlib
import copy
import functools
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from umaserve.core.errors import ConfigError
from umaserve.dialects.responses.kept import Entry
from umaserve.dialects.responses.kept_rows import Rows
from umaserve.settings.sources import printable
from umaserve.system.threads import JobThread

if TYPE_CHECKING:
    import sqlite3

log = logging.getLogger(__name__)

NAME = "kept.sqlite"
WAIT_FOR_OTHERS_S = 2.0
_APPLICATION_ID, _VERSION = int.from_bytes(b"umak"), 1
_TABLE = (
    "CREATE TABLE kept (kind TEXT, tenant TEXT, id TEXT, changed REAL, content BLOB, PRIMARY KEY (kind, tenant, id))"
)


class Key(NamedTuple):
    """Which row of the file."""

    kind: str
    tenant: str
    id: str


Row = tuple[Key, float, Callable[[], bytes] | None]
"""A row to be written: when it was changed, in seconds since 1970, and what makes its content; ``None``: there is none
any more."""


class KeptFile:
    """The file in ``folder``, which a thread of its own writes; none where ``folder`` is empty.

    What has changed is written with all that changed while the thread wrote what was before: so no more waits than is
    in memory. What can't be written is tried again. Raises ``ConfigError`` where the file can't be used, or another
    daemon has it.
    """

    def __init__(
        self, folder: str, kinds: Iterable[Rows[Any]], wake: Callable[[], None], clock: Callable[[], float] = time.time
    ) -> None:
        """``kinds`` get what is in the file. ``clock``: seconds since 1970."""
        self._kinds: Mapping[str, Rows[Any]] = {rows.entries.kind: rows for rows in kinds}
        self._clock = clock
        self._changed: dict[Key, None] = {}
        self._jobs = 0
        self._failed = False
        self._thread: JobThread | None = None
        if folder:
            self._database = _Database(folder)
            self._read()
            self._thread = JobThread("store", wake)
            for name, kind in self._kinds.items():
                kind.entries.changed = functools.partial(self._note, name)
            self._write()

    @property
    def threads(self) -> list[JobThread]:
        """Threads of its own, to be watched."""
        return [] if self._thread is None else [self._thread]

    def tidy(self) -> None:
        """Forget what is too old, and try again what could not be written."""
        self._expire()
        self._write()

    def stop(self, timeout: float) -> bool:
        """Write what has changed; returns whether that ended within ``timeout`` seconds."""
        if self._thread is not None:
            self._submit()
            if not self._thread.stop(timeout):
                return False
            self._thread.collect()
            self._thread = None
            self._database.close()
        return True

    def _read(self) -> None:
        keys = []
        for key, changed, content in self._database.rows():
            keys.append(key)
            try:
                self._take(key, changed, content)
            except (ValueError, TypeError) as error:
                log.warning("store: a row was skipped and is deleted: %s", error)
        self._expire()
        self._changed = {key: None for key in keys if self._of(key) is None}

    def _expire(self) -> None:
        for kind in self._kinds.values():
            kind.entries.expire()

    def _take(self, key: Key, changed: object, content: object) -> None:
        kind = self._kinds.get(key.kind)
        if kind is None or not isinstance(changed, float) or not isinstance(content, bytes):
            raise ValueError("its columns have unexpected types")
        if not isinstance(key.tenant, str) or not isinstance(key.id, str):
            raise ValueError("its tenant or id is not a string")
        kind.entries.keep(key.tenant, kind.unpack(key.id, content), max(0.0, self._clock() - changed))

    def _of(self, key: Key) -> Entry | None:
        kind = self._kinds.get(key.kind)
        return None if kind is None else kind.entries.find(key.tenant, key.id)

    def _packing(self, key: Key) -> Callable[[], bytes] | None:
        entry = self._of(key)
        # A copy, since the one in memory may change while it is written.
        return None if entry is None else functools.partial(self._kinds[key.kind].pack, copy.copy(entry))

    def _note(self, kind: str, tenant: str, entry_id: str) -> None:
        self._changed[Key(kind, tenant, entry_id)] = None
        self._write()

    def _write(self) -> None:
        if self._thread is not None and self._changed and not self._jobs:
            self._submit()

    def _submit(self) -> None:
        assert self._thread is not None
        keys, self._changed = [*self._changed], {}
        now = self._clock()
        rows = [(key, now, self._packing(key)) for key in keys]

        def done(result: object) -> None:
            self._jobs -= 1
            if isinstance(result, BaseException):
                self._changed = dict.fromkeys(keys) | self._changed
                self._complain(result)
            else:
                self._failed = False
                self._write()

        self._jobs += 1
        self._thread.submit(functools.partial(self._database.write, rows), done)

    def _complain(self, error: BaseException) -> None:
        """Log a failure, once until a write succeeds."""
        if not self._failed:
            # Any other exception is a bug, so log its traceback.
            bug = None if isinstance(error, self._database.errors) else error
            log.error("store: what is kept for clients can't be written, and is tried again: %s", error, exc_info=bug)
        self._failed = True


class _Database:
    """The file on disk. Used only by the writing thread, except for the constructor and ``rows``."""

    def __init__(self, folder: str) -> None:
        # Imported only where it is wanted: it takes memory.
        import sqlite3

        self.errors = (sqlite3.Error, OSError)
        self._path = os.path.join(folder, NAME)
        with self._usable():
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder, 0o700)
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                os.fchmod(file, 0o600)
            finally:
                os.close(file)
            self._connection = sqlite3.connect(
                self._path, timeout=WAIT_FOR_OTHERS_S, isolation_level=None, check_same_thread=False
            )
            try:
                self._begin()
            except BaseException:
                self._connection.close()
                raise

    def close(self) -> None:
        self._connection.close()

    def rows(self) -> Iterator[tuple[Key, object, object]]:
        """All rows as they are, the oldest first. Raises ``ConfigError``."""
        with self._usable():
            for kind, tenant, entry_id, changed, content in self._connection.execute(
                "SELECT kind, tenant, id, changed, content FROM kept ORDER BY changed"
            ):
                yield Key(kind, tenant, entry_id), changed, content

    def write(self, rows: Sequence[Row]) -> None:
        """Write all rows, or none. Raises one of ``errors``."""
        with self._transaction() as connection:
            for key, changed, packed in rows:
                if packed is None:
                    connection.execute("DELETE FROM kept WHERE kind IS ? AND tenant IS ? AND id IS ?", key)
                else:
                    connection.execute("REPLACE INTO kept VALUES (?, ?, ?, ?, ?)", (*key, changed, packed()))

    def _begin(self) -> None:
        # Texts that were deleted are overwritten, and no other daemon may write between what this one writes.
        self._connection.execute("PRAGMA secure_delete = ON")
        self._connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        with self._transaction() as connection:
            (application,) = connection.execute("PRAGMA application_id").fetchone()
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            if not tables:
                connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version = {_VERSION}")
                connection.execute(_TABLE)
            elif (application, version) != (_APPLICATION_ID, _VERSION):
                raise OSError(None, "it was not written by this version of umaserve")

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        self._connection.execute("BEGIN EXCLUSIVE")
        try:
            yield self._connection
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise

    @contextlib.contextmanager
    def _usable(self) -> Iterator[None]:
        try:
            yield
        except self.errors as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            if getattr(error, "sqlite_errorname", "") == "SQLITE_BUSY":
                why = "another daemon has it"
            advice = "choose a folder of this daemon's own that it can write to, with --store, or move the file away"
            raise ConfigError(f"store {printable(self._path)}: {why}: {advice}") from error
