"""The protocol version that each relay acknowledged last, kept across restarts where there is a state directory."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

import orjson

log = logging.getLogger(__name__)

VERSIONS = ("1", "2026-04-bridge-v1")
"""In the order of trying: the contract's, and that of ModelRelay's server, which refuses all others with 1002."""
MAX_BYTES = 64 * 1024


class RelayVersions:
    """Protocol versions by a relay's URL. ``path`` is the file that keeps them, ``None``: this process only."""

    def __init__(self, path: Path | None, urls: Sequence[str]) -> None:
        self._path = path
        self._by_url = {url: version for url, version in _read(path).items() if url in urls and version in VERSIONS}

    def get(self, url: str) -> str:
        """The version to announce: the one acknowledged last, or else the first of ``VERSIONS``."""
        return self._by_url.get(url, VERSIONS[0])

    def put(self, url: str, version: str) -> None:
        """The relay acknowledged ``version``. A file that can't be written is logged, and costs a try at next start."""
        if self.get(url) == version:
            return
        self._by_url[url] = version
        if self._path is None:
            return
        try:
            made = self._path.with_suffix(".new")
            made.write_bytes(orjson.dumps(self._by_url))
            made.replace(self._path)
        except OSError as error:
            log.warning("the protocol version of a relay can't be stored in %s: %s", self._path, error.strerror)


def kept_in_state_directory() -> Path | None:
    """The file in the state directory of this service (systemd.exec(5), StateDirectory=); ``None`` without one."""
    directory = os.environ.get("STATE_DIRECTORY", "").partition(":")[0]
    return Path(directory) / "relay-versions.json" if directory else None


def _read(path: Path | None) -> dict[str, str]:
    if path is None:
        return {}
    try:
        with path.open("rb") as file:
            values = orjson.loads(file.read(MAX_BYTES))
    except FileNotFoundError:
        return {}
    except (OSError, orjson.JSONDecodeError) as error:
        log.warning("%s can't be read, and will be replaced: %s", path, error)
        return {}
    return values if isinstance(values, dict) else {}
