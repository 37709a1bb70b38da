"""The entries of the file of API keys: what each has, and how it is read and written."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

from umaserve.core.requests import Priority
from umaserve.sessions.rates import RateLimits
from umaserve.settings.kinds import Kind, choice, real, whole
from umaserve.wire.fields import kind_of

MAX_FILE_BYTES = 16 << 20
MAX_MODELS = 256
"""Most models that a key may name."""
MAX_MODEL_BYTES = 256
PRIORITIES = {priority.name.lower(): priority for priority in Priority}
OPERATOR = "operator"
"""The class of keys whose requests are interactive, and which may see and end those of others."""
CLASSES = {**PRIORITIES, OPERATOR: Priority.INTERACTIVE}
"""The classes of keys, and which class their requests have."""


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


NAME = "[A-Za-z0-9._-]{1,64}"
_TIME = _like("[0-9]{4}-[0-9]{2}-[0-9]{2}(T[0-9]{2}:[0-9]{2}:[0-9]{2}Z)?", "a time such as 2026-01-31T12:00:00Z")
FIELDS: Mapping[str, Kind[Any]] = {
    "id": whole(1, 10**15),
    "name": _like(NAME, "1 to 64 of the characters A-Z, a-z, 0-9, ., _ and -"),
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


def parsed_keys(data: bytes) -> tuple[Key, ...]:
    """The keys of the file. Raises ValueError, whose message quotes no value: a key may be where its hash should be."""
    if len(data) > MAX_FILE_BYTES:
        raise ValueError(f"larger than {MAX_FILE_BYTES} bytes")
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"not valid JSON: {error}") from None
    if not isinstance(value, dict) or list(value) != ["keys"] or not isinstance(value["keys"], list):
        raise ValueError('expected an object with one field, the array "keys"')
    return checked_keys(value["keys"])


def checked_keys(entries: Sequence[object]) -> tuple[Key, ...]:
    """The keys of these entries; raises ValueError as ``parsed_keys``."""
    keys = [key_of(entry, f"keys[{i}]") for i, entry in enumerate(entries)]
    new_ids = itertools.count(next_id(keys))
    keys = [key if key.id else replace(key, id=next(new_ids)) for key in keys]
    # One of two equal keys would stay valid after a revocation.
    _check_unique("id", [key.id for key in keys])
    _check_unique("sha256", [key.sha256 for key in keys])
    _check_unique("name", [key.name for key in keys if key.revoked is None])
    return tuple(keys)


def _check_unique(field: str, values: Sequence[object]) -> None:
    if len(set(values)) < len(values):
        raise ValueError(f"keys: two have the same {field}")


def next_id(keys: Sequence[Key]) -> int:
    # Revoked keys stay in the file, so that their ids are not used again.
    return 1 + max((key.id for key in keys), default=0)


def key_of(entry: object, place: str = "") -> Key:
    if not isinstance(entry, dict):
        raise ValueError(f"{place}: expected an object, got {kind_of(entry)}")
    prefix = f"{place}." if place else ""
    if not entry.keys() <= FIELDS.keys():
        raise ValueError(f"{place}: expected the fields {', '.join(FIELDS)} and no other")
    values: dict[str, Any] = {}
    for field, kind in FIELDS.items():
        if field not in entry and field not in _DEFAULTS:
            raise ValueError(f"{prefix}{field}: missing, expected {kind.expected}")
        try:
            values[field] = kind.check(entry[field]) if field in entry else _DEFAULTS[field]
        except ValueError:
            raise ValueError(f"{prefix}{field}: expected {kind.expected}, got {kind_of(entry[field])}") from None
    return Key(group=values.pop("class"), models=values.pop("models") or (), **values)


def entry_of(key: Key) -> dict[str, object]:
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
