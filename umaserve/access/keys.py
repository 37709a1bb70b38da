"""The file of API keys: its entries, their changes, and the check of a presented key. For daemons and relays alike."""

from __future__ import annotations

import contextlib
import datetime
import errno
import fcntl
import hashlib
import itertools
import logging
import math
import os
import re
import secrets
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, MutableSequence, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson

from umaserve.core.errors import ConfigError, Fault, RequestError
from umaserve.core.requests import Priority
from umaserve.sessions.rates import RateLimits
from umaserve.settings.kinds import Kind, choice, real, whole
from umaserve.wire.fields import kind_of

log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
WAIT_FOR_WRITERS_S = 5.0
MAX_FILE_BYTES = 16 << 20
MAX_PRESENTED = 256
"""The longest presented key, in characters; ours have 47 or 48."""
MAX_MODELS = 256
"""Most models that a key may name."""
MAX_MODEL_BYTES = 256
PREFIX = "uma_"
"""Beginning of the keys that ``umaserve keys add`` makes."""
_OLDER_SUFFIX = ".db"
"""How relays called their file of keys before they had this one."""
_TEMPORARY = ".umaserve-keys-"
_SQLITE = b"SQLite format 3\0"
PRIORITIES = {priority.name.lower(): priority for priority in Priority}
OPERATOR = "operator"
"""The class of keys whose requests are interactive, and which may see and end those of others."""
CLASSES = {**PRIORITIES, OPERATOR: Priority.INTERACTIVE}
"""The classes of keys, and which class their requests have."""
_ADVICE = {
    errno.EAGAIN: "another program is changing it: try again",
    errno.ENOSPC: "make room on its disk",
    errno.EDQUOT: "make room in this user's quota of its disk",
    errno.EROFS: "its file system is read-only: name a file elsewhere",
    errno.EIO: "check its disk",
}
"""Advice on what to do when a file can't be written."""


@dataclass(frozen=True, slots=True)
class Key:
    """One entry of the file. Times are in UTC, as 2026-01-31T12:00:00Z; older files have a date."""

    id: int
    """Number of the key, never that of another one."""
    name: str
    """Unique among the keys that are not revoked."""
    sha256: str
    """Hash of the whole key in UTF-8, in hex. A fast hash without salt is enough: 256 random bits can't be guessed."""
    group: str
    """Class of the key, one of ``CLASSES``: "class" in the file."""
    requests_per_minute: float | None
    """``None``: the daemon's setting, and no limit at a relay; 0: no limit. So are tokens."""
    tokens_per_minute: float | None
    models: tuple[str, ...]
    """The models that it may use; empty: all."""
    created: str
    revoked: str | None

    @property
    def priority(self) -> Priority:
        return CLASSES[self.group]

    @property
    def operator(self) -> bool:
        """Whether it may see and end the requests of others."""
        return self.group == OPERATOR

    @property
    def limits(self) -> RateLimits:
        return RateLimits(self.requests_per_minute, self.tokens_per_minute)


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
                raise ConfigError(f"API keys {path}: missing, but {older} has those of an older version: type {advice}")
            with cls(path, missing_ok=True)._edit():
                pass  # Written where it is missing.
            log.info("API keys %s: made, since it was missing: no client has a key yet", path)
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
        if not re.fullmatch(_NAME, name):
            raise RequestError(Fault.BAD_REQUEST, "name", f"expected {_FIELDS['name'].expected}, got another string")
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
            key = _key(entry)
        except ValueError as error:
            raise RequestError.of_text(Fault.BAD_REQUEST, str(error)) from None
        with self._edit() as keys:
            if name in self._by_name:
                advice = "choose another name, or revoke that key first"
                raise RequestError(Fault.BAD_REQUEST, "name", f"there is a key named {name}: {advice}")
            keys.append(replace(key, id=_next_id(keys)))
        return presented

    def fill(self, entries: Sequence[Mapping[str, object]]) -> None:
        """Write these entries to the file, which has none yet. Raises ConfigError also where one is not right."""
        with self._edit() as keys:
            if keys:
                raise ConfigError(f"API keys {self._path}: it has keys already: name a new file")
            try:
                keys.extend(_checked(entries))
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
                log.info("the API keys were read anew", extra={"fields": {"keys": len(self._by_name)}})
            self._complaint = ""
        except ConfigError as error:
            if str(error) != self._complaint:
                self._complaint = str(error)
                log.error("%s (until then the keys read before hold)", error)

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
            keys = _parsed(data)
        except ValueError as error:
            advice = "repair the file, or move it away and make keys with umaserve keys add"
            raise ConfigError(f"API keys {self._path}: {error}: {advice}") from None
        signature = _signature(status)
        if signature != self._signature and status.st_mode & (stat.S_IROTH | stat.S_IWOTH):
            log.warning("API keys %s: everyone on the box may read or change the file: chmod o-rw it", self._path)
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
        data = orjson.dumps({"keys": [_entry(key) for key in keys]}, option=orjson.OPT_INDENT_2) + b"\n"
        if len(data) > MAX_FILE_BYTES:
            advice = "delete the oldest entries of revoked keys"
            raise ConfigError(f"API keys {self._path}: the file would pass {MAX_FILE_BYTES} bytes: {advice}")
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
        log.warning("API keys %s: the file is now this user's: chown it back if the daemon can't read it", path)
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


# The entries.


def _like(pattern: str, expected: str) -> Kind[str]:
    def check(value: object) -> str:
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            raise ValueError
        return value

    return Kind("", expected, check)


def _or_null(kind: Kind[Any]) -> Kind[Any]:
    return Kind("", f"null or {kind.expected}", lambda value: None if value is None else kind.check(value))


def _models(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_MODELS:
        raise ValueError
    if not all(isinstance(one, str) and 1 <= len(one.encode()) <= MAX_MODEL_BYTES for one in value):
        raise ValueError
    return tuple(value)


_NAME = "[A-Za-z0-9._-]{1,64}"
_TIME = _like("[0-9]{4}-[0-9]{2}-[0-9]{2}(T[0-9]{2}:[0-9]{2}:[0-9]{2}Z)?", "a time such as 2026-01-31T12:00:00Z")
_FIELDS: Mapping[str, Kind[Any]] = {
    "id": whole(1, 10**15),
    "name": _like(_NAME, "1 to 64 of the characters A-Z, a-z, 0-9, ., _ and -"),
    "sha256": _like("[0-9a-f]{64}", "64 hex digits in lower case"),
    "class": choice(*CLASSES),
    "requests_per_minute": _or_null(real("requests/minute", 0, 10**9)),
    "tokens_per_minute": _or_null(real("tokens/minute", 0, 10**9)),
    "models": _or_null(Kind("", f"an array of 1 to {MAX_MODELS} names of 1 to {MAX_MODEL_BYTES} bytes", _models)),
    "created": _TIME,
    "revoked": _or_null(_TIME),
}
_DEFAULTS = {"id": 0, "models": None, "revoked": None}
"""Values of the fields that older files don't have. Their keys get the next ids, in their order."""


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
    return _checked(value["keys"])


def _checked(entries: Sequence[object]) -> tuple[Key, ...]:
    """The keys of these entries; raises ValueError as ``_parsed``."""
    keys = [_key(entry, f"keys[{i}]") for i, entry in enumerate(entries)]
    new_ids = itertools.count(_next_id(keys))
    keys = [key if key.id else replace(key, id=next(new_ids)) for key in keys]
    # One of two equal keys would stay valid after a revocation.
    _check_unique("id", [key.id for key in keys])
    _check_unique("sha256", [key.sha256 for key in keys])
    _check_unique("name", [key.name for key in keys if key.revoked is None])
    return tuple(keys)


def _check_unique(field: str, values: Sequence[object]) -> None:
    if len(set(values)) < len(values):
        raise ValueError(f"keys: two have the same {field}")


def _next_id(keys: Sequence[Key]) -> int:
    # Revoked keys stay in the file, so that their ids are not used again.
    return 1 + max((key.id for key in keys), default=0)


def _key(entry: object, place: str = "") -> Key:
    if not isinstance(entry, dict):
        raise ValueError(f"{place}: expected an object, got {kind_of(entry)}")
    prefix = f"{place}." if place else ""
    if not entry.keys() <= _FIELDS.keys():
        raise ValueError(f"{place}: expected the fields {', '.join(_FIELDS)} and no other")
    values: dict[str, Any] = {}
    for field, kind in _FIELDS.items():
        if field not in entry and field not in _DEFAULTS:
            raise ValueError(f"{prefix}{field}: missing, expected {kind.expected}")
        try:
            values[field] = kind.check(entry[field]) if field in entry else _DEFAULTS[field]
        except ValueError:
            raise ValueError(f"{prefix}{field}: expected {kind.expected}, got {kind_of(entry[field])}") from None
    return Key(group=values.pop("class"), models=values.pop("models") or (), **values)


def _entry(key: Key) -> dict[str, object]:
    return {
        "id": key.id,
        "name": key.name,
        "sha256": key.sha256,
        "class": key.group,
        "requests_per_minute": key.requests_per_minute,
        "tokens_per_minute": key.tokens_per_minute,
        "models": key.models or None,
        "created": key.created,
        "revoked": key.revoked,
    }
