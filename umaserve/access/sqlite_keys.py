"""Makes a file of keys of the SQLite file that relays of older versions kept."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path

import orjson

from umaserve.access.keys import KeyFile, keep_owner_and_mode
from umaserve.core.errors import ConfigError

WAIT_FOR_WRITERS_S = 2.0
_APPLICATION_ID = int.from_bytes(b"umar")
_COLUMNS = {
    1: "id, name, sha256, created, revoked",
    2: "id, name, sha256, created, revoked, class, requests_per_minute, tokens_per_minute, models",
}
"""Columns of the table by the version of its schema."""


def convert(old: str, new: str) -> int:
    """Write the keys of the SQLite file ``old`` to the file ``new`` and return their number; ``new`` gets the owner and
    mode of ``old``.

    Raises ConfigError where ``old`` can't be read, and where ``new`` has keys already, or is another kind of file.
    """
    entries = _entries(old)
    KeyFile(new, missing_ok=True).fill(entries)
    with open(new, "rb") as file:
        keep_owner_and_mode(old, file.fileno())
    return len(entries)


def _entries(path: str) -> Sequence[Mapping[str, object]]:
    uri = f"{Path(path).absolute().as_uri()}?mode=ro"
    try:
        with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=WAIT_FOR_WRITERS_S)) as database:
            (application_id,) = database.execute("PRAGMA application_id").fetchone()
            (version,) = database.execute("PRAGMA user_version").fetchone()
            if application_id != _APPLICATION_ID or version not in _COLUMNS:
                raise ConfigError(f"{path}: a database, but not the key file of an older umaserve: name that file")
            return [_entry(*row) for row in database.execute(f"SELECT {_COLUMNS[version]} FROM keys ORDER BY id")]
    except sqlite3.Error as error:
        raise ConfigError(f"{path}: {error}: expected a relay's SQLite file that this user may read") from None


def _entry(
    id_: int,
    name: str,
    sha256: bytes,
    created: str,
    revoked: str | None,
    group: str = "interactive",
    requests_per_minute: float = 0,
    tokens_per_minute: float = 0,
    models: str = "[]",
) -> Mapping[str, object]:
    return {
        "id": id_,
        "name": name,
        "sha256": sha256.hex(),
        "class": group,
        "requests_per_minute": requests_per_minute,
        "tokens_per_minute": tokens_per_minute,
        "models": orjson.loads(models) or None,
        "created": created,
        "revoked": revoked,
    }
