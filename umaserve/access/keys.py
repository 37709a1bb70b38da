"""The file of API keys: its entries, their changes, and the check of a presented key."""

from __future__ import annotations

import contextlib
import datetime
import errno
import fcntl
import hashlib
import hmac
import logging
import math
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Iterator, Mapping, MutableSequence, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from umaserve.core.errors import ConfigError
from umaserve.core.requests import Priority
from umaserve.settings.kinds import Kind, choice, real
from umaserve.wire.fields import kind_of

log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
MAX_FILE_BYTES = 1 << 20
MAX_PRESENTED = 256
"""The longest presented key, in characters; ours have 47."""
_KEY_PREFIX = "uma_"
_TEMPORARY = ".umaserve-keys-"
OPERATOR = "operator"
"""The class of keys whose requests are interactive, and which may see and end those of others."""
CLASSES = {**{priority.name.lower(): priority for priority in Priority}, OPERATOR: Priority.INTERACTIVE}
"""The classes of keys, and which class their requests have."""
_ADVICE = {
    errno.ENOSPC: "make room on its disk",
    errno.EDQUOT: "make room in this user's quota of its disk",
    errno.EROFS: "its file system is read-only: name a file elsewhere",
    errno.EIO: "check its disk",
}
"""Advice on what to do when a file can't be written."""


@dataclass(frozen=True, slots=True)
class Key:
    """One entry of the file. A rate of None means the daemon's setting, 0 no limit."""

    name: str
    sha256: str
    """Hash of the whole key in UTF-8, in hex. A fast hash without salt is enough: 256 random bits can't be guessed."""
    group: str
    """Class of the key, one of ``CLASSES``: "class" in the file."""
    requests_per_minute: float | None
    tokens_per_minute: float | None
    created: str
    """The date in UTC, as 2026-01-31."""

    @property
    def priority(self) -> Priority:
        return CLASSES[self.group]

    @property
    def operator(self) -> bool:
        """Whether it may see and end the requests of others."""
        return self.group == OPERATOR


class KeyFile:
    """The keys in the file at ``path``, read at once, and again by `match` and `holds` after a change.

    Raises ConfigError for an unreadable or invalid file; with ``missing_ok`` an absent file counts as empty.
    """

    def __init__(self, path: str, *, missing_ok: bool = False) -> None:
        self._path = path
        self._missing_ok = missing_ok
        self._keys: tuple[Key, ...] = ()
        self._signature: tuple[int, int, int] | None = None
        self._look_at = -math.inf
        self._complaint = ""
        self._read()

    def add(
        self,
        name: str,
        *,
        group: str = "interactive",
        requests_per_minute: float | None = None,
        tokens_per_minute: float | None = None,
    ) -> str:
        """Make a key, write its entry, and return the key; only its hash is stored.

        Raises ConfigError for a name that is taken, an invalid value, and a file that can't be written.
        """
        presented = _KEY_PREFIX + secrets.token_urlsafe(32)
        entry = {
            "name": name,
            "sha256": _digest(presented),
            "class": group,
            "requests_per_minute": requests_per_minute,
            "tokens_per_minute": tokens_per_minute,
            "created": datetime.datetime.now(datetime.UTC).date().isoformat(),
        }
        try:
            key = _key(entry, "")
        except ValueError as error:
            raise ConfigError(str(error)) from None
        with self._edit() as keys:
            if any(other.name == name for other in keys):
                found = f"API keys {self._path}: there is a key named {name}"
                raise ConfigError(f"{found}: choose another name, or revoke it first")
            keys.append(key)
        return presented

    def list(self) -> Sequence[Key]:
        """The keys as last read, the oldest first."""
        return self._keys

    def revoke(self, name: str) -> bool:
        """Remove the key with this name from the file; returns whether there was one. Raises ConfigError like `add`."""
        with self._edit() as keys:
            kept = [key for key in keys if key.name != name]
            found = len(kept) < len(keys)
            keys[:] = kept
        return found

    def match(self, presented: str, now: float) -> Key | None:
        """The entry of the presented key, compared in constant time. ``now`` is in monotonic seconds.

        Checks for a changed file at most once a second. If it can't be used, that is logged once, and the old keys
        stay.
        """
        self._look(now)
        if len(presented) > MAX_PRESENTED:
            return None
        digest = _digest(presented)
        found = None
        for key in self._keys:
            if hmac.compare_digest(key.sha256, digest):
                found = key
        return found

    def holds(self, name: str, now: float) -> bool:
        """Whether there still is a key with this name; checks for a changed file like `match`."""
        self._look(now)
        return any(key.name == name for key in self._keys)

    def operates(self, name: str, now: float) -> bool:
        """Whether there still is an operator's key with this name; checks for a changed file like `match`."""
        self._look(now)
        return any(key.name == name and key.operator for key in self._keys)

    def reread(self) -> None:
        """Read the file now. If it can't be used, that is logged, and the old keys stay."""
        self._signature, self._complaint = None, ""
        self._follow()

    def _look(self, now: float) -> None:
        if now >= self._look_at:
            self._look_at = now + LOOK_EVERY_S
            self._follow()

    def _follow(self) -> None:
        try:
            changed = _signature(os.stat(self._path)) != self._signature
        except OSError:
            changed = True  # Reading it gives the error.
        try:
            if changed:
                self._read()
                log.info("the API keys were read anew", extra={"fields": {"keys": len(self._keys)}})
            self._complaint = ""
        except ConfigError as error:
            if str(error) != self._complaint:
                self._complaint = str(error)
                log.error("%s (until then the keys read before hold)", error)

    def _read(self) -> None:
        try:
            with open(self._path, "rb") as file:
                status = os.fstat(file.fileno())
                data = file.read(MAX_FILE_BYTES + 1)
        except OSError as error:
            if self._missing_ok and isinstance(error, FileNotFoundError):
                self._keys, self._signature = (), None
                return
            advice = "make it with umaserve keys add, or let this user read it"
            raise ConfigError(f"API keys {self._path}: can't be read: {error.strerror}: {advice}") from None
        try:
            keys = _parsed(data)
        except ValueError as error:
            advice = "repair the file, or move it away and make keys with umaserve keys add"
            raise ConfigError(f"API keys {self._path}: {error}: {advice}") from None
        signature = _signature(status)
        if signature != self._signature and status.st_mode & (stat.S_IROTH | stat.S_IWOTH):
            log.warning("API keys %s: everyone on the box may read or change the file: chmod o-rw it", self._path)
        self._keys, self._signature = keys, signature

    @contextlib.contextmanager
    def _edit(self) -> Iterator[MutableSequence[Key]]:
        """The keys, read again, and written if the block has changed them."""
        path = os.path.realpath(self._path)  # Replace a link's target, not the link.
        try:
            directory = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise self._unwritable(error) from None
        try:
            # So that concurrent edits don't lose changes. The directory, since the file itself is replaced.
            fcntl.flock(directory, fcntl.LOCK_EX)
            self._read()
            keys = [*self._keys]
            yield keys
            if keys != [*self._keys]:
                self._write(path, keys)
                os.fsync(directory)
        except OSError as error:
            raise self._unwritable(error) from None
        finally:
            os.close(directory)

    def _write(self, path: str, keys: Sequence[Key]) -> None:
        data = orjson.dumps({"keys": [_entry(key) for key in keys]}, option=orjson.OPT_INDENT_2) + b"\n"
        if len(data) > MAX_FILE_BYTES:
            raise ConfigError(f"API keys {self._path}: the file would pass {MAX_FILE_BYTES} bytes: revoke keys first")
        directory = os.path.dirname(path)
        # While we hold the directory's lock, any temporary file was left by a process that was killed.
        for leftover in Path(directory).glob(f"{_TEMPORARY}*"):
            with contextlib.suppress(OSError):
                leftover.unlink()
        descriptor, temporary = tempfile.mkstemp(prefix=_TEMPORARY, dir=directory)
        try:
            with open(descriptor, "wb") as file:
                file.write(data)
                _keep_owner_and_mode(path, descriptor)
                file.flush()
                os.fsync(descriptor)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
        self._keys = tuple(keys)

    def _unwritable(self, error: OSError) -> ConfigError:
        advice = _ADVICE.get(error.errno or 0, "its directory must exist and be writable")
        return ConfigError(f"API keys {self._path}: can't be written: {error.strerror}: {advice}")


def _keep_owner_and_mode(path: str, descriptor: int) -> None:
    """Give the new file the old one's owner and mode. A first file keeps mkstemp's: this user, 0600."""
    try:
        old = os.stat(path)
    except FileNotFoundError:
        return
    new = os.fstat(descriptor)
    try:
        if (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid):
            os.fchown(descriptor, old.st_uid, old.st_gid)
    except PermissionError:
        log.warning("API keys %s: the file is now this user's: chown it back if the daemon can't read it", path)
    os.fchmod(descriptor, stat.S_IMODE(old.st_mode))


def _signature(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_mtime_ns, status.st_size, status.st_ino


def _digest(presented: str) -> str:
    # A client's string may contain lone surrogates.
    return hashlib.sha256(presented.encode(errors="surrogatepass")).hexdigest()


# The entries.


def _like(pattern: str, expected: str) -> Kind[str]:
    def check(value: object) -> str:
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            raise ValueError
        return value

    return Kind("", expected, check)


def _or_null(kind: Kind[float]) -> Kind[float | None]:
    def check(value: object) -> float | None:
        return None if value is None else kind.check(value)

    return Kind("", f"null or {kind.expected}", check)


_FIELDS: Mapping[str, Kind[Any]] = {
    "name": _like("[A-Za-z0-9._-]{1,64}", "1 to 64 of the characters A-Z, a-z, 0-9, ., _ and -"),
    "sha256": _like("[0-9a-f]{64}", "64 hex digits in lower case"),
    "class": choice(*CLASSES),
    "requests_per_minute": _or_null(real("requests/minute", 0, 10**9)),
    "tokens_per_minute": _or_null(real("tokens/minute", 0, 10**9)),
    "created": _like("[0-9]{4}-[0-9]{2}-[0-9]{2}", "a day such as 2026-01-31"),
}


def _parsed(data: bytes) -> tuple[Key, ...]:
    """The keys of the file. Raises ValueError, whose message quotes no value: a key may be where its hash should be."""
    if len(data) > MAX_FILE_BYTES:
        raise ValueError(f"larger than {MAX_FILE_BYTES} bytes")
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"not valid JSON: {error}") from None
    if not isinstance(value, dict) or list(value) != ["keys"] or not isinstance(value["keys"], list):
        raise ValueError('expected an object with one field, the array "keys"')
    keys = tuple(_key(entry, f"keys[{i}]") for i, entry in enumerate(value["keys"]))
    for field in ("name", "sha256"):  # One of two equal keys would stay valid after a revocation.
        if len({getattr(key, field) for key in keys}) < len(keys):
            raise ValueError(f"keys: two have the same {field}")
    return keys


def _key(entry: object, place: str) -> Key:
    if not isinstance(entry, dict):
        raise ValueError(f"{place}: expected an object, got {kind_of(entry)}")
    prefix = f"{place}." if place else ""
    values = {}
    for field, kind in _FIELDS.items():
        if field not in entry:
            raise ValueError(f"{prefix}{field}: missing, expected {kind.expected}")
        try:
            values[field] = kind.check(entry[field])
        except ValueError:
            raise ValueError(f"{prefix}{field}: expected {kind.expected}, got {kind_of(entry[field])}") from None
    if len(entry) > len(_FIELDS):
        raise ValueError(f"{place}: expected the fields {', '.join(_FIELDS)} and no other")
    return Key(group=values.pop("class"), **values)


def _entry(key: Key) -> dict[str, object]:
    return {
        "name": key.name,
        "sha256": key.sha256,
        "class": key.group,
        "requests_per_minute": key.requests_per_minute,
        "tokens_per_minute": key.tokens_per_minute,
        "created": key.created,
    }
