"""The MCP servers whose tools the daemon calls for its clients: tables of the configuration file."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from umaserve.core.errors import ConfigError
from umaserve.settings.kinds import GIB, KIB, MIB, TIB, Kind, quoted, real, size, switch, url, word, words
from umaserve.settings.sources import checked, checked_table, nearest, printable, read_toml

TABLE = "tools"
ANYBODY = "*"
MAX_SERVERS = 32
_NAME = re.compile("[A-Za-z0-9_-]{1,64}")
_MAX_TEXT = 4096


@dataclass(frozen=True, slots=True)
class ToolServer:
    """An MCP server, reached at ``url``, or started as ``command``."""

    name: str
    allow: tuple[str, ...]
    """The keys that may have its tools called, by their names or classes; ``ANYBODY``: all."""
    url: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    """Headers of requests to ``url``."""
    command: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    """Variables of the program's environment, beside the few that each has."""
    network: bool = False
    """Whether the program has the network."""
    user: str = ""
    """The user whom the program runs as; empty: the daemon's."""
    memory: int = GIB
    """The most bytes of memory that the program has."""
    only: tuple[str, ...] = ()
    """The tools that there are; empty: all."""
    timeout: float = 60.0
    """The longest that a call may take, in seconds."""
    max_result: int = 64 * KIB
    """Characters of a result that the model gets."""

    def allows(self, key: str, classes: Collection[str]) -> bool:
        """Whether who has the key of this name, and of these classes, may have its tools called."""
        return not {ANYBODY, key, *classes}.isdisjoint(self.allow)


def read(file: str) -> Sequence[ToolServer]:
    """The servers of the configuration file, if there is one. Raises ConfigError."""
    if not file:
        return ()
    shown = printable(file)
    tables = checked_table(read_toml(file).get(TABLE, {}), f"{shown}: {TABLE}")
    if len(tables) > MAX_SERVERS:
        raise ConfigError(f"{shown}: {TABLE}: expected at most {MAX_SERVERS} tables, got {len(tables)}")
    return [_server(name, table, f"{shown}: {TABLE}.{printable(name)}") for name, table in tables.items()]


def _server(name: str, given: object, place: str) -> ToolServer:
    """The server of the table ``[tools.NAME]``."""
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{place}: expected a name of 1 to 64 letters, digits, _ or -")
    table: dict[str, Any] = {}
    for key, value in checked_table(given, place).items():
        if key not in _KINDS:
            raise ConfigError(f"{place}.{printable(key)}: no such setting of a tool server{nearest(key, _KINDS)}")
        table[key] = checked(_KINDS[key], value, f"{place}.{key}")
    if ("url" in table) == ("command" in table):
        got = "both" if "url" in table else "neither"
        raise ConfigError(f"{place}: expected url or command, got {got}")
    of_other = _OF_PROGRAMS if "url" in table else _OF_ADDRESSES
    if misplaced := [key for key in table if key in of_other]:
        way = "url" if "url" in table else "command"
        raise ConfigError(f"{place}.{misplaced[0]}: expected to be absent where {way} is given")
    if not table.get("allow"):
        who = 'names or classes of keys, as ["alice", "operator"], or ["*"] for everybody'
        raise ConfigError(f"{place}.allow: expected who may have its tools called, {who}, got none")
    return ToolServer(name, **table)


def _command() -> Kind[tuple[str, ...]]:
    def check(value: object) -> tuple[str, ...]:
        if not isinstance(value, list) or not 1 <= len(value) <= 64 or not all(map(_is_text, value)) or not value[0]:
            raise ValueError
        return tuple(value)

    return Kind("", f"an array of a program and up to 63 arguments, each of up to {_MAX_TEXT} characters", check)


def _texts(expected: str) -> Kind[tuple[tuple[str, str], ...]]:
    def check(value: object) -> tuple[tuple[str, str], ...]:
        if not isinstance(value, dict) or len(value) > 64:
            raise ValueError
        if not all(name.isascii() and name.isprintable() and name and _is_text(text) for name, text in value.items()):
            raise ValueError
        return tuple(value.items())

    return Kind("", expected, check, render=lambda texts: ", ".join(quoted(name) for name, _text in texts), secret=True)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= _MAX_TEXT and "\0" not in value and "\n" not in value


_OF_PROGRAMS: Mapping[str, Kind[Any]] = {
    "command": _command(),
    "env": _texts("a table of up to 64 variables"),
    "network": switch(),
    "user": word(),
    "memory": size(64 * MIB, TIB),
}
_OF_ADDRESSES: Mapping[str, Kind[Any]] = {"url": url("http", "https"), "headers": _texts("a table of up to 64 headers")}
_KINDS: Mapping[str, Kind[Any]] = {
    **_OF_ADDRESSES,
    **_OF_PROGRAMS,
    "allow": words(),
    "only": words(),
    "timeout": real("seconds", 1, 600),
    "max_result": size(KIB, MIB),
}
KEYS = (*_KINDS,)
"""The keys of a tool server's table."""
