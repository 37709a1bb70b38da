"""Settings declared as fields of a dataclass; each value comes from a flag, the environment, a file or the default.

A setting's flag, variable, file key, help and checks are derived from its field.
"""

from __future__ import annotations

import argparse
import difflib
import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from umaserve.core.errors import ConfigError
from umaserve.settings.kinds import Kind, quoted

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")
C = TypeVar("C", bound="DataclassInstance")


# Declaring settings.


def setting(default: T, kind: Kind[T], group: str, help: str, *, about: str = "", env: str = "") -> T:
    """Declare a field.

    ``help`` says in a line what it is for, for ``--help``; ``about`` explains it, in paragraphs that are lines; empty:
    ``help`` does. ``env``: its environment variable, if it isn't the program's prefix and the key.
    """
    of = {"kind": kind, "group": group, "help": help, "about": about, "env": env}
    return field(default=default, repr=not kind.secret, metadata=of)


class Conflict(ConfigError):
    """Settings that are valid each, but not together; ``keys`` names them."""

    def __init__(self, message: str, *keys: str) -> None:
        super().__init__(message)
        self.keys = keys


def both_or_neither(one: str, other: str, value: object, others: object) -> None:
    """Raise `Conflict` where only one of the settings ``one`` and ``other`` is set; ``value`` and ``others`` are their
    values."""
    if bool(value) != bool(others):
        given, missing = (one, other) if value else (other, one)
        raise Conflict(f"{given} is set and {missing} is not: set both or neither", given, missing)


def not_both(one: str, other: str, value: object, others: object) -> None:
    """Raise `Conflict` where both settings are set; the arguments are as in `both_or_neither`."""
    if value and others:
        raise Conflict(f"{one} and {other} are both set: set only one of them", one, other)


class Setting(NamedTuple):
    """A declared setting, with the names derived from its field."""

    key: str
    flag: str
    env: str
    default: Any
    kind: Kind[Any]
    group: str
    help: str
    about: str
    """The explanation, in paragraphs that are lines; ends with a full stop."""


# Loading settings.


@dataclass(frozen=True, slots=True)
class Loaded(Generic[C]):
    """The settings in force, and the origin of each: "flag", "environment UMA_…", "file …" or "default"."""

    config: C
    origins: Mapping[str, str]
    file: str = ""
    """The configuration file; empty: none."""
    tables: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """The file's tables, by their keys; what is in them is unchecked."""


class _Given(NamedTuple):
    key: str
    value: object
    origin: str
    place: str
    """The start of an error about the value."""


class Settings(Generic[C]):
    """The settings of a program: the fields of ``config``, all declared by `setting`.

    Their environment variables begin with ``prefix``. Unknown variables with that prefix are refused, except those that
    begin with one of ``elsewhere``, which belong to other programs. ``tables``: keys of the file that are no settings.
    ``secrets``: tables in those whose values are never shown. ``first``: the settings that matter first.
    """

    by_key: Mapping[str, Setting]
    """Every setting, in the order of the fields."""

    def __init__(
        self,
        config: type[C],
        prefix: str,
        *,
        elsewhere: tuple[str, ...] = (),
        tables: tuple[str, ...] = (),
        secrets: tuple[str, ...] = (),
        first: tuple[str, ...] = (),
    ) -> None:
        self.first = first
        self._secrets = secrets
        self._config = config
        self._tables = tables
        self._prefix = prefix
        self._elsewhere = elsewhere
        self._file_variable = prefix + "CONFIG"
        self.by_key = {one.key: one for one in self._declared()}

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add ``--config`` and a flag for each setting. A flag that isn't given is not in the namespace."""
        self._add_config(parser, f"TOML file of settings; empty: none (environment {self._file_variable})")
        titles = dict.fromkeys(one.group for one in self.by_key.values())
        groups = {title: parser.add_argument_group(title) for title in titles}
        for one in self.by_key.values():
            about = f"{one.help} (default {one.kind.render(one.default)}, environment {one.env})"
            _add(groups[one.group], one, about)

    def add_brief_arguments(self, parser: argparse.ArgumentParser, first: Sequence[str]) -> None:
        """Add the settings' flags, as `add_arguments`, but the help has the settings ``first`` alone, each in a few
        words."""
        for key in first:
            _add(parser, self.by_key[key], self.by_key[key].help.partition(";")[0])
        self._add_config(parser, "TOML file of settings")
        for key, one in self.by_key.items():
            if key not in first:
                _add(parser, one, argparse.SUPPRESS)

    def load(self, flags: argparse.Namespace | Mapping[str, object], environ: Mapping[str, str]) -> Loaded[C]:
        """The settings: flags override the environment, which overrides the file that either names.

        All values are checked, also overridden ones; flags that aren't settings are ignored. Raises ConfigError, in one
        line, for a file that can't be read or isn't TOML, an unknown file key or variable with our prefix, a value of
        the wrong type or out of range, and values that conflict.
        """
        named = vars(flags) if isinstance(flags, argparse.Namespace) else flags
        file = str(named.get("config", environ.get(self._file_variable, "")))
        values, origins = {}, dict.fromkeys(self.by_key, "default")
        in_file = read_toml(file) if file else {}
        tables = {
            key: checked_table(in_file.pop(key), f"{printable(file)}: {key}") for key in self._tables if key in in_file
        }
        for given in (*self._from_file(file, in_file), *self._from_environment(environ), *self._from_flags(named)):
            kind = self.by_key[given.key].kind
            values[given.key] = checked(kind, given.value, given.place)
            origins[given.key] = given.origin
        try:
            return Loaded(self._config(**values), origins, file, tables)
        except Conflict as conflict:
            places = ", ".join(f"{key}: {origins[key]}" for key in conflict.keys)
            raise ConfigError(f"{conflict} ({places})") from None

    def render(self, loaded: Loaded[C]) -> str:
        """The settings as a TOML file, each with its origin in a comment.

        A secret is replaced by a placeholder, which is refused when the file is loaded.
        """
        lines = []
        for key, one in self.by_key.items():
            value, origin = getattr(loaded.config, key), loaded.origins[key]
            hidden = "; a secret, not shown: put it in to use this as a file" if one.kind.secret and value else ""
            lines.append((f"{key} = {one.kind.render(value)}", origin + hidden))
        width = max(len(pair) for pair, _ in lines)
        tables = (line for key, table in loaded.tables.items() for line in _table([key], table, self._secrets))
        return "".join([*(f"{pair:<{width}}  # {comment}\n" for pair, comment in lines), *tables])

    def _add_config(self, parser: argparse.ArgumentParser, about: str) -> None:
        parser.add_argument("--config", metavar="PATH", default=argparse.SUPPRESS, help=about)

    def _declared(self) -> Iterator[Setting]:
        for one in fields(self._config):
            of = one.metadata
            flag = "--" + one.name.replace("_", "-")
            env = of["env"] or self._prefix + one.name.upper()
            yield Setting(one.name, flag, env, one.default, of["kind"], of["group"], of["help"], of["about"])

    def _from_file(self, name: str, table: Mapping[str, object]) -> Iterator[_Given]:
        shown = printable(name)
        for key, value in table.items():
            if key not in self.by_key:
                raise ConfigError(f"{shown}: {printable(key)}: no such setting{nearest(key, self.by_key)}")
            yield _Given(key, value, f"file {shown}", f"{shown}: {key}")

    def _from_environment(self, environ: Mapping[str, str]) -> Iterator[_Given]:
        known = {one.env: one for one in self.by_key.values()}
        for name in sorted(environ):
            place = f"environment {printable(name)}"
            if name in known:
                yield _Given(known[name].key, _parsed(known[name].kind, environ[name]), place, place)
            elif self._is_ours(name):
                raise ConfigError(f"{place}: no such setting{nearest(name, [*known, self._file_variable])}")

    def _is_ours(self, variable: str) -> bool:
        ours = variable.startswith(self._prefix) and variable != self._file_variable
        return ours and not variable.startswith(self._elsewhere)

    def _from_flags(self, flags: Mapping[str, object]) -> Iterator[_Given]:
        for key, one in self.by_key.items():
            if key in flags:
                value = flags[key]
                value = _parsed(one.kind, value) if isinstance(value, str) else value
                yield _Given(key, value, "flag", f"flag {one.flag}")


def _add(to: argparse._ActionsContainer, one: Setting, about: str) -> None:
    if isinstance(one.default, bool):
        to.add_argument(one.flag, action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS, help=about)
    else:
        # load() parses the text, so that a flag's error reads like a variable's or the file's.
        to.add_argument(one.flag, metavar=one.kind.metavar, default=argparse.SUPPRESS, help=about)


def read_toml(name: str) -> dict[str, Any]:
    """Read a TOML file; raises ConfigError."""
    shown = printable(name)
    try:
        with open(name, "rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"{shown}: can't be read: {error.strerror}") from None
    # More than TOMLDecodeError: text that isn't UTF-8, numbers too long to convert, brackets nested too deep.
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{shown}: not valid TOML: {error}") from None


def checked(kind: Kind[T], value: object, place: str) -> T:
    """The setting's value, from a TOML value; raises ConfigError, which begins with ``place``."""
    try:
        return kind.check(value)
    except ValueError:
        got = "something else, which is not shown" if kind.secret else _described(value)
        raise ConfigError(f"{place}: expected {kind.expected}, got {got}") from None


def checked_table(value: object, place: str) -> dict[str, Any]:
    """A TOML table; raises ConfigError, which begins with ``place``."""
    if not isinstance(value, dict):
        raise ConfigError(f"{place}: expected a table, got {_described(value)}")
    return value


def _parsed(kind: Kind[Any], text: str) -> object:
    try:
        return kind.parse(text)
    except ValueError:
        return text  # the check refuses it, and the error shows it


def _table(path: list[str], value: object, secrets: tuple[str, ...]) -> Iterator[str]:
    """A table of a TOML file as its lines, those in it last; without the values of tables in ``secrets``."""
    if not isinstance(value, dict):
        yield f"{_key(path[-1])} = {_toml('…' if path[-2] in secrets else value)}\n"
        return
    yield f"\n[{'.'.join(map(_key, path))}]\n"
    for key, item in sorted(value.items(), key=lambda pair: isinstance(pair[1], dict)):
        yield from _table([*path, key], item, secrets)


def _key(name: str) -> str:
    return name if re.fullmatch("[A-Za-z0-9_-]+", name) else quoted(name)


def _toml(value: object) -> str:
    match value:
        case str():
            return quoted(value)
        case bool():
            return str(value).lower()
        case list():
            return "[" + ", ".join(map(_toml, value)) + "]"
        case dict():
            return "{" + ", ".join(f"{_key(key)} = {_toml(item)}" for key, item in value.items()) + "}"
        case _:
            return str(value)


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint at the most similar known name, beginning with a comma; empty if none is similar."""
    near = difflib.get_close_matches(name, known, n=1)
    return f", did you mean {near[0]}?" if near else ""


def printable(name: str) -> str:
    """``name`` for use in a line of text: quoted and escaped where it is empty or has unprintable characters."""
    return name if name and name.isprintable() else json.dumps(name)


def _described(value: object) -> str:
    match value:
        case str():
            return f"the string {json.dumps(value)}"  # ASCII, hence one line
        case bool():
            return f"the boolean {str(value).lower()}"
        case int() if value.bit_length() > 64:
            return "a number of more than 64 bits"  # Python refuses to write very long ones in decimal
        case int() | float():
            return f"the number {value}"
        case list() if value and all(isinstance(item, str) for item in value):
            return f"the array {json.dumps(value)}"
        case list():
            return "an array"
        case dict():
            return "a table"
        case _:
            return "a date or time"
