"""The API keys of the relay's clients: a SQLite file of their hashes and terms, and the check of a presented key."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import logging
import math
import os
import re
import secrets
import sqlite3
import stat
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson

from umaserve.core.errors import ConfigError, Fault, RequestError
from umaserve.core.requests import Priority
from umaserve.sessions.rates import RateLimits

log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
WAIT_FOR_WRITERS_S = 2.0
MAX_PRESENTED = 256
"""The longest presented key, in characters; ours have 48."""
_KEY_PREFIX = "umar_"
_NAME = "[A-Za-z0-9._-]{1,64}"

_APPLICATION_ID = int.from_bytes(b"umar")
_SCHEMA_VERSION = 2
_SCHEMA = """
    CREATE TABLE keys (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        name TEXT NOT NULL,
        sha256 BLOB NOT NULL UNIQUE,
        created TEXT NOT NULL,
        revoked TEXT
    )
"""
"""AUTOINCREMENT never reuses an id. ``sha256`` is of the whole key in UTF-8: a fast hash without salt is enough, since
256 random bits can't be guessed."""
_TERMS = (
    "class TEXT NOT NULL DEFAULT 'interactive'",
    "requests_per_minute REAL NOT NULL DEFAULT 0",
    "tokens_per_minute REAL NOT NULL DEFAULT 0",
    "models TEXT NOT NULL DEFAULT '[]'",
)
"""The columns that version 2 has added."""
_TERMS_NAMES = ", ".join(column.partition(" ")[0] for column in _TERMS)

_REMEDIES = {
    sqlite3.SQLITE_BUSY: "another program holds it: try again",
    sqlite3.SQLITE_CANTOPEN: "its directory must exist, and this user must be able to read and write both",
    sqlite3.SQLITE_READONLY: "this user must be able to write it and its directory",
    sqlite3.SQLITE_FULL: "make room on its disk",
    sqlite3.SQLITE_NOTADB: "name another file, which is then made, or the right one",
    sqlite3.SQLITE_CORRUPT: "bring back a copy of it, or move it away and make the keys anew",
}


PRIORITIES = {"interactive": Priority.INTERACTIVE, "background": Priority.BACKGROUND}
"""Priorities by the names of the keys' classes."""


@dataclass(frozen=True, slots=True)
class Terms:
    """Terms of a key: what its holder may do. Rates are by the minute, 0: no limit; no models: all there are."""

    group: str = "interactive"
    """Class of the key: one of ``PRIORITIES``."""
    requests_per_minute: float = 0
    tokens_per_minute: float = 0
    models: tuple[str, ...] = ()

    @property
    def priority(self) -> Priority:
        return PRIORITIES.get(self.group, Priority.INTERACTIVE)

    @property
    def limits(self) -> RateLimits:
        return RateLimits(self.requests_per_minute, self.tokens_per_minute)


@dataclass(frozen=True, slots=True)
class ClientKey:
    """The record of one key, without the key itself. Times are in UTC, as 2026-01-31T12:00:00Z."""

    id: str
    name: str
    created: str
    revoked: str | None
    terms: Terms = Terms()


class ClientKeys:
    """The keys in the database at ``path``. A missing file is created with mode 0600.

    Presented keys are looked up in memory. A change by another process is seen within a second of ``clock``, a new key
    at once; a file that replaces the opened one is not. The constructor and the methods that write or list raise
    ConfigError for an unusable or foreign file.
    """

    def __init__(self, path: str, clock: Callable[[], float]) -> None:
        self._path = path
        self._clock = clock
        self._names: Mapping[bytes, str] = {}
        """The names of the valid keys, by hash."""
        self._terms: Mapping[str, Terms] = {}
        """Terms of the valid keys, by name."""
        self._version = -1
        self._look_at = -math.inf
        self._complaint = ""
        with self._errors(), contextlib.ExitStack() as undo:
            _make_private(path)
            # As a URI, so that a path such as ":memory:" is a file; rw, so that SQLite creates none with its own mode.
            uri = f"{Path(path).absolute().as_uri()}?mode=rw"
            self._database = sqlite3.connect(uri, uri=True, timeout=WAIT_FOR_WRITERS_S, isolation_level=None)
            undo.callback(self._database.close)
            self._prepare()
            self._read()
            undo.pop_all()

    def close(self) -> None:
        self._database.close()

    def create(self, name: str, terms: Terms = Terms()) -> str:
        """Make a key and return it; only its hash is stored.

        Raises RequestError for an invalid name, or one that another valid key has.
        """
        if not re.fullmatch(_NAME, name):
            expected = "1 to 64 of the characters A-Z, a-z, 0-9, ., _ and -"
            raise RequestError(Fault.BAD_REQUEST, "name", f"expected {expected}, got another string")
        presented = _KEY_PREFIX + secrets.token_urlsafe(32)
        with self._writing():
            if self._database.execute("SELECT 1 FROM keys WHERE name = ? AND revoked IS NULL", [name]).fetchone():
                advice = "choose another name, or revoke that key first"
                raise RequestError(Fault.BAD_REQUEST, "name", f"there is a key named {name}: {advice}")
            columns = f"name, sha256, created, {_TERMS_NAMES}"
            values = [name, _digest(presented), _now(), *_stored(terms)]
            self._database.execute(f"INSERT INTO keys ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?)", values)
        return presented

    def list(self) -> Sequence[ClientKey]:
        """All keys, including revoked ones, the oldest first."""
        with self._errors():
            columns = f"id, name, created, revoked, {_TERMS_NAMES}"
            rows = self._database.execute(f"SELECT {columns} FROM keys ORDER BY id").fetchall()
        return [
            ClientKey(str(id_), name, created, revoked, _loaded(*terms)) for id_, name, created, revoked, *terms in rows
        ]

    def revoke(self, id_: str) -> bool:
        """Revoke the key with this id; returns whether there was one that was still valid."""
        if not re.fullmatch("[1-9][0-9]{0,17}", id_):
            return False
        with self._writing():
            changed = self._database.execute(
                "UPDATE keys SET revoked = ? WHERE id = ? AND revoked IS NULL", [_now(), int(id_)]
            ).rowcount
        return changed > 0

    def holds(self, presented: str) -> str | None:
        """The name of the presented key; ``None`` if it isn't valid.

        If the file can't be read any more, that is logged once, and the keys read before stay valid.
        """
        self._look()
        if len(presented) > MAX_PRESENTED:
            return None
        digest = _digest(presented)
        if digest not in self._names:
            self._look(at_once=True)
        # The lookup's timing may leak parts of the hash, which is useless to a client that can't choose the hash.
        return self._names.get(digest)

    def has(self, name: str) -> bool:
        """Whether a valid key has this name; of files that can't be read as ``holds``."""
        self._look()
        return name in self._terms

    def find(self, names: Collection[str]) -> Mapping[str, Terms]:
        """The terms of the valid keys with these names; of files that can't be read as ``holds``."""
        self._look(at_once=any(name not in self._terms for name in names))
        return {name: self._terms[name] for name in names if name in self._terms}

    def terms(self, name: str) -> Terms:
        """Terms of the valid key with this name, as last read; without one, those that keys have by default."""
        return self._terms.get(name, Terms())

    def _prepare(self) -> None:
        """Make the table in an empty database, or add the columns that an old one lacks. Raises ConfigError for a
        foreign database or another schema version."""
        # The loop's thread reads, and must not wait for another process that writes, as it would without a write-ahead
        # log. The pragma fails while another process opens the file, which then sets it itself.
        with contextlib.suppress(sqlite3.OperationalError):
            self._database.execute("PRAGMA journal_mode = WAL")
        with self._transaction():
            (application_id,) = self._database.execute("PRAGMA application_id").fetchone()
            (version,) = self._database.execute("PRAGMA user_version").fetchone()
            (tables,) = self._database.execute("SELECT count(*) FROM sqlite_schema").fetchone()
            if (application_id, version, tables) == (0, 0, 0):
                self._database.execute(_SCHEMA)
                self._database.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
                application_id, version = _APPLICATION_ID, 1
            if (application_id, version) == (_APPLICATION_ID, 1):
                for column in _TERMS:
                    self._database.execute(f"ALTER TABLE keys ADD COLUMN {column}")
                self._database.execute(f"PRAGMA user_version = {_SCHEMA_VERSION}")
            elif application_id != _APPLICATION_ID:
                raise ConfigError(f"client keys {self._path}: a database of another program: name another file")
            elif version != _SCHEMA_VERSION:
                found = f"its version is {version}, this umaserve knows {_SCHEMA_VERSION}"
                raise ConfigError(f"client keys {self._path}: {found}: use the umaserve that made it, or another file")

    def _look(self, *, at_once: bool = False) -> None:
        """Read the file where it has changed. ``at_once``: it may have what was not there at the last look, but a file
        that could not be read is left alone until its time."""
        now = self._clock()
        if now >= self._look_at or (at_once and not self._complaint):
            self._look_at = now + LOOK_EVERY_S
            self._follow()

    def _follow(self) -> None:
        try:
            with self._errors():
                # It changes only with other connections' commits (sqlite.org/pragma.html#pragma_data_version).
                (version,) = self._database.execute("PRAGMA data_version").fetchone()
                if version != self._version:
                    self._read()
                    self._version = version
            self._complaint = ""
        except ConfigError as error:
            if str(error) != self._complaint:
                self._complaint = str(error)
                log.error("%s (until then the keys read before hold)", error)

    def _read(self) -> None:
        columns = f"sha256, name, {_TERMS_NAMES}"
        rows = self._database.execute(f"SELECT {columns} FROM keys WHERE revoked IS NULL").fetchall()
        self._names = {digest: name for digest, name, *_ in rows}
        self._terms = {name: _loaded(*terms) for _, name, *terms in rows}

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        with self._errors():
            with self._transaction():
                yield
            self._read()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        # A write lock from the start: a read transaction can't become one if another process has written meanwhile.
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._database.execute("COMMIT")
        except BaseException:
            # After some failures SQLite has already rolled back.
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            raise

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            # The low byte is the primary result code, the rest extends it (sqlite.org/rescode.html).
            remedy = _REMEDIES.get(getattr(error, "sqlite_errorcode", 0) & 0xFF, "check the file, or name another one")
            raise ConfigError(f"client keys {self._path}: {error}: {remedy}") from None
        except OSError as error:
            remedy = _REMEDIES[sqlite3.SQLITE_CANTOPEN]
            raise ConfigError(f"client keys {self._path}: {error.strerror}: {remedy}") from None


def _stored(terms: Terms) -> Sequence[object]:
    return terms.group, terms.requests_per_minute, terms.tokens_per_minute, orjson.dumps(terms.models).decode()


def _loaded(group: str, requests_per_minute: float, tokens_per_minute: float, models: str) -> Terms:
    return Terms(group, requests_per_minute, tokens_per_minute, tuple(orjson.loads(models)))


def _make_private(path: str) -> None:
    """Create an empty file with mode 0600 unless it exists. SQLite gives its journal files the same mode."""
    with open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)) as file:
        if os.fstat(file.fileno()).st_mode & (stat.S_IROTH | stat.S_IWOTH):
            log.warning("client keys %s: everyone on the box may read or change the file: chmod o-rw it", path)


def _digest(presented: str) -> bytes:
    # A client's string may contain lone surrogates.
    return hashlib.sha256(presented.encode(errors="surrogatepass")).digest()


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
