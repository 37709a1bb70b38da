"""The file of API keys: its changes, and the check of a presented key. For daemons and relays alike."""

from __future__ import annotations

import contextlib
import datetime
import errno
import fcntl
import hashlib
import logging
import math
import os
import re
import secrets
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, MutableSequence, Sequence
from dataclasses import replace
from pathlib import Path

import orjson

from umaserve.access.key_entries import (
    FIELDS,
    MAX_FILE_BYTES,
    NAME,
    Key,
    checked_keys,
    entry_of,
    key_of,
    next_id,
    parsed_keys,
)
from umaserve.core.errors import ConfigError, Fault, RequestError

log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
WAIT_FOR_WRITERS_S = 5.0
MAX_PRESENTED = 256
"""The longest presented key, in characters; ours have 47 or 48."""
PREFIX = "uma_"
"""Beginning of the keys that ``umaserve keys add`` makes."""
_OLDER_SUFFIX = ".db"
"""How relays called their file of keys before they had this one."""
_TEMPORARY = ".umaserve-keys-"
_SQLITE = b"SQLite format 3\0"
_ADVICE = {
    errno.EAGAIN: "another program is changing it: try again",
    errno.ENOSPC: "free space on its disk",
    errno.EDQUOT: "free space in this user's disk quota",
    errno.EROFS: "its file system is read-only: name a file elsewhere",
    errno.EIO: "check its disk",
}
"""Advice on what to do when a file can't be written."""


class KeyFile:
    """The keys in the file at ``path``, read at once, and again after a change.

    `match` and `named` look for a change once a second of ``clock``, and at once for what they don't know. If the file
    can't be used any more, that is logged once, and the keys read before hold. The other methods raise ConfigError for
    an unreadable or invalid file. With ``missing_ok`` an absent file counts as empty.
    """

    def __init__(self, path: str, clock: Callable[[], float] = time.monotonic, *, missing_ok: bool = False) -> None:
        self._path = path
        self._clock = clock
        self._missing_ok = missing_ok
        self._keys: tuple[Key, ...] = ()
        self._by_hash: Mapping[str, Key] = {}
        self._by_name: Mapping[str, Key] = {}
        """Without revoked keys, as ``_by_hash``."""
        self._signature: tuple[int, int, int] | None = None
        self._look_at = -math.inf
        self._complaint = ""
        self._read()

    @classmethod
    def made(cls, path: str, clock: Callable[[], float]) -> KeyFile:
        """The keys in the file at ``path``, which is made without any if it is missing. Raises ConfigError where an
        older relay's file lies beside: without its keys, no client would be let in any more."""
        if not os.path.exists(path):
            older = Path(path).with_suffix(_OLDER_SUFFIX)
            if older.exists():
                advice = f"umaserve keys convert {older} {path}"
                raise ConfigError(f"API keys {path}: missing, but {older} has keys of an older version: run {advice}")
            with cls(path, missing_ok=True)._edit():
                pass  # Written where it is missing.
            log.info("API keys %s: file created; it has no keys yet, and umaserve keys add makes one", path)
        return cls(path, clock)

    def add(
        self,
        name: str,
        *,
        group: str = "interactive",
        requests_per_minute: float | None = None,
        tokens_per_minute: float | None = None,
        models: Sequence[str] = (),
        prefix: str = PREFIX,
    ) -> str:
        """Make a key, write its entry, and return the key; only its hash is stored.

        Raises RequestError for an invalid value, and for a name that another key has.
        """
        if not re.fullmatch(NAME, name):
            raise RequestError(Fault.BAD_REQUEST, "name", f"expected {FIELDS['name'].expected}, got another string")
        presented = prefix + secrets.token_urlsafe(32)
        entry = {
            "name": name,
            "sha256": _digest(presented),
            "class": group,
            "requests_per_minute": requests_per_minute,
            "tokens_per_minute": tokens_per_minute,
            "models": [*models] or None,
            "created": _now(),
        }
        try:
            key = key_of(entry)
        except ValueError as error:
            raise RequestError.of_text(Fault.BAD_REQUEST, str(error)) from None
        with self._edit() as keys:
            if name in self._by_name:
                advice = "choose another name, or revoke that key first"
                raise RequestError(Fault.BAD_REQUEST, "name", f"a key named {name} exists already: {advice}")
            keys.append(replace(key, id=next_id(keys)))
        return presented

    def fill(self, entries: Sequence[Mapping[str, object]]) -> None:
        """Write these entries to the file, which has none yet. Raises ConfigError also where one is not right."""
        with self._edit() as keys:
            if keys:
                raise ConfigError(f"API keys {self._path}: the file has keys already: name a new file")
            try:
                keys.extend(checked_keys(entries))
            except ValueError as error:
                raise ConfigError(f"API keys {self._path}: {error}") from None

    def list(self) -> Sequence[Key]:
        """All keys, including revoked ones, the oldest first."""
        self._refresh()
        return self._keys

    def revoke(self, name: str) -> bool:
        """Revoke the key with this name; returns whether there was one."""
        return self._revoke(lambda key: key.name == name)

    def revoke_by_id(self, id_: str) -> bool:
        """Revoke the key with this id; returns whether there was one that was not revoked."""
        return self._revoke(lambda key: str(key.id) == id_)

    def _revoke(self, meant: Callable[[Key], bool]) -> bool:
        found = False
        with self._edit() as keys:
            for index, key in enumerate(keys):
                if key.revoked is None and meant(key):
                    keys[index], found = replace(key, revoked=_now()), True
        return found

    def match(self, presented: str) -> Key | None:
        """The entry of the presented key; ``None`` if it isn't valid."""
        if len(presented) > MAX_PRESENTED:
            return None
        digest = _digest(presented)
        self._look(at_once=digest not in self._by_hash)
        # The lookup's timing may leak parts of the hash, which is useless to a client that can't choose the hash.
        return self._by_hash.get(digest)

    def named(self, name: str) -> Key | None:
        """The valid key with this name."""
        self._look(at_once=name not in self._by_name)
        return self._by_name.get(name)

    def reread(self) -> None:
        """Read the file now. If it can't be used, that is logged, and the old keys stay."""
        self._signature, self._complaint = None, ""
        self._follow()

    def _look(self, *, at_once: bool) -> None:
        """Read the file where it has changed. ``at_once``: it may have what was not there at the last look, but a file
        that could not be read is left alone until its time."""
        now = self._clock()
        if now >= self._look_at or (at_once and not self._complaint):
            self._look_at = now + LOOK_EVERY_S
            self._follow()

    def _follow(self) -> None:
        try:
            if self._refresh():
                log.info("API keys reloaded", extra={"fields": {"keys": len(self._by_name)}})
            self._complaint = ""
        except ConfigError as error:
            if str(error) != self._complaint:
                self._complaint = str(error)
                log.error("%s (what was loaded before stays in use)", error)

    def _refresh(self) -> bool:
        """Read the file where it has changed; returns whether it has."""
        try:
            changed = _signature(os.stat(self._path)) != self._signature
        except OSError:
            changed = True  # Reading it gives the error.
        if changed:
            self._read()
        return changed

    def _read(self) -> None:
        try:
            with open(self._path, "rb") as file:
                status = os.fstat(file.fileno())
                data = file.read(MAX_FILE_BYTES + 1)
        except OSError as error:
            if self._missing_ok and isinstance(error, FileNotFoundError):
                self._take((), None)
                return
            advice = "make it with umaserve keys add, or let this user read it"
            raise ConfigError(f"API keys {self._path}: can't be read: {error.strerror}: {advice}") from None
        if data.startswith(_SQLITE):
            advice = f"convert it with umaserve keys convert {self._path} NEW.json, and name that"
            raise ConfigError(f"API keys {self._path}: an older umaserve's database: {advice}")
        try:
            keys = parsed_keys(data)
        except ValueError as error:
            advice = "repair the file, or move it away and make keys with umaserve keys add"
            raise ConfigError(f"API keys {self._path}: {error}: {advice}") from None
        signature = _signature(status)
        if signature != self._signature and status.st_mode & (stat.S_IROTH | stat.S_IWOTH):
            log.warning(
                "API keys %s: every user of this machine can read or change the file: run chmod o-rw on it", self._path
            )
        self._take(keys, signature)

    def _take(self, keys: tuple[Key, ...], signature: tuple[int, int, int] | None) -> None:
        valid = [key for key in keys if key.revoked is None]
        self._by_hash = {key.sha256: key for key in valid}
        self._by_name = {key.name: key for key in valid}
        self._keys, self._signature = keys, signature

    @contextlib.contextmanager
    def _edit(self) -> Iterator[MutableSequence[Key]]:
        """The keys, read again, and written if the block has changed them, or the file is missing."""
        path = os.path.realpath(self._path)  # Replace a link's target, not the link.
        try:
            directory = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise self._unwritable(error) from None
        try:
            # So that concurrent edits don't lose changes. The directory, since the file itself is replaced.
            _lock(directory)
            self._refresh()
            keys = [*self._keys]
            yield keys
            if self._signature is None or keys != [*self._keys]:
                self._write(path, tuple(keys))
                os.fsync(directory)
        except OSError as error:
            raise self._unwritable(error) from None
        finally:
            os.close(directory)

    def _write(self, path: str, keys: tuple[Key, ...]) -> None:
        data = orjson.dumps({"keys": [entry_of(key) for key in keys]}, option=orjson.OPT_INDENT_2) + b"\n"
        if len(data) > MAX_FILE_BYTES:
            advice = "delete the oldest entries of revoked keys"
            raise ConfigError(f"API keys {self._path}: the file would exceed {MAX_FILE_BYTES} bytes: {advice}")
        directory = os.path.dirname(path)
        # While we hold the directory's lock, any temporary file was left by a process that was killed.
        for leftover in Path(directory).glob(f"{_TEMPORARY}*"):
            with contextlib.suppress(OSError):
                leftover.unlink()
        descriptor, temporary = tempfile.mkstemp(prefix=_TEMPORARY, dir=directory)
        try:
            with open(descriptor, "wb") as file:
                file.write(data)
                keep_owner_and_mode(path, descriptor)
                file.flush()
                os.fsync(descriptor)
                signature = _signature(os.fstat(descriptor))
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
        self._take(keys, signature)

    def _unwritable(self, error: OSError) -> ConfigError:
        advice = _ADVICE.get(error.errno or 0, "its directory must exist and be writable")
        return ConfigError(f"API keys {self._path}: can't be written: {error.strerror}: {advice}")


def keep_owner_and_mode(path: str, descriptor: int) -> None:
    """Give a new file the owner and mode of the one at ``path``. A first file keeps mkstemp's: this user, 0600."""
    try:
        old = os.stat(path)
    except FileNotFoundError:
        return
    new = os.fstat(descriptor)
    try:
        if (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid):
            os.fchown(descriptor, old.st_uid, old.st_gid)
    except PermissionError:
        log.warning(
            "API keys %s: the file now belongs to this user: restore its owner with chown if the daemon can't read it",
            path,
        )
    os.fchmod(descriptor, stat.S_IMODE(old.st_mode))


def _lock(directory: int) -> None:
    """Lock it; raises OSError if another process keeps it too long: a relay serves nobody meanwhile."""
    until = time.monotonic() + WAIT_FOR_WRITERS_S
    while True:
        try:
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= until:
                raise
            time.sleep(0.01)


def _signature(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_mtime_ns, status.st_size, status.st_ino


def _digest(presented: str) -> str:
    # A client's string may contain lone surrogates.
    return hashlib.sha256(presented.encode(errors="surrogatepass")).hexdigest()


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
