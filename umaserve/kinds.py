"""The kinds of values that a setting may have: how each is written, checked and shown."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from umaserve.addresses import parse_address

T = TypeVar("T")

KIB, MIB, GIB, TIB = 1 << 10, 1 << 20, 1 << 30, 1 << 40


def _quoted(text: str) -> str:
    # JSON's escapes are TOML's, except that TOML wants DEL escaped and takes no surrogate pairs.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


@dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    """How the values of a setting are written, checked and shown."""

    metavar: str
    expected: str
    """Ends the sentence "expected …"."""
    check: Callable[[object], T]
    """The setting's value from one as TOML gives it; ValueError where it doesn't fit."""
    parse: Callable[[str], object] = str
    """TOML's value from the text of a flag or variable; ValueError where it spells none."""
    render: Callable[[T], str] = str
    """The value as TOML."""


def path(*, or_empty: bool = False) -> Kind[str]:
    def check(value: object) -> str:
        if not isinstance(value, str) or "\0" in value or not (value or or_empty):
            raise ValueError
        value.encode()  # a flag's undecodable bytes arrive as surrogates, which no TOML file can hold
        return value

    return Kind("PATH", "a path in UTF-8" + ("" if or_empty else ", not empty"), check, render=_quoted)


def choice(*choices: str) -> Kind[str]:
    def check(value: object) -> str:
        if value not in choices:
            raise ValueError
        return str(value)

    expected = "one of " + ", ".join(map(_quoted, choices))
    return Kind("{" + ",".join(choices) + "}", expected, check, render=_quoted)


def switch() -> Kind[bool]:
    def check(value: object) -> bool:
        if not isinstance(value, bool):
            raise ValueError
        return value

    def parse(text: str) -> object:
        return {"true": True, "1": True, "false": False, "0": False}.get(text.lower(), text)

    return Kind("", "true or false", check, parse, render=lambda on: str(on).lower())


def whole(low: int, high: int, *, or_zero: bool = False) -> Kind[int]:
    def check(value: object) -> int:
        # Not isinstance: a boolean would pass for a number.
        if type(value) is int and (low <= value <= high or (or_zero and value == 0)):
            return value
        raise ValueError

    return Kind("N", ("0 or " if or_zero else "") + f"a whole number from {low} to {high}", check, int)


def real(unit: str, low: float, high: float) -> Kind[float]:
    def check(value: object) -> float:
        if isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high:
            return float(value)
        raise ValueError

    return Kind(unit.upper(), f"a number of {unit} from {low} to {high}", check, float)


_UNITS = {"GiB": GIB, "MiB": MIB, "KiB": KIB}


def short_size(size: int) -> str:
    """Bytes in the largest unit that leaves no rest."""
    exact = (f"{size // unit}{name}" for name, unit in _UNITS.items() if size >= unit and size % unit == 0)
    return next(exact, str(size))


def size(low: int, high: int) -> Kind[int]:
    """Bytes, as a whole number or as a string that ends in KiB, MiB or GiB."""

    def check(value: object) -> int:
        if isinstance(value, str) and (match := re.fullmatch("([0-9]+)([KMG]iB)?", value)):
            value = int(match[1]) * _UNITS.get(match[2], 1)
        if type(value) is int and low <= value <= high:
            return value
        raise ValueError

    def render(value: int) -> str:
        short = short_size(value)
        return short if short.isdigit() else _quoted(short)

    expected = f'a size from {short_size(low)} to {short_size(high)}, such as 65536 or "64KiB"'
    return Kind("BYTES", expected, check, render=render)


def mode() -> Kind[int]:
    """Permission bits. A string, because TOML would read a bare 440 as decimal."""

    def check(value: object) -> int:
        if not isinstance(value, str) or not re.fullmatch("0?[0-7]{3}", value):
            raise ValueError
        return int(value, 8)

    expected = 'an octal string from "0000" to "0777"'
    return Kind("MODE", expected, check, render=lambda bits: f'"{bits:04o}"')


def address(*, or_empty: bool = False) -> Kind[str]:
    """HOST:PORT, kept as it was written."""

    def check(value: object) -> str:
        # An IPv6 scope may hold anything.
        if not isinstance(value, str) or not (value.isascii() and value.isprintable()):
            raise ValueError
        if value or not or_empty:
            parse_address(value)
        return value

    expected = 'an address as HOST:PORT, such as "127.0.0.1:8080" or "[::1]:8080"'
    return Kind("HOST:PORT", expected + (", or an empty string" if or_empty else ""), check, render=_quoted)


MAX_WORDS, MAX_WORD = 64, 256


def words() -> Kind[tuple[str, ...]]:
    """Words, as a TOML array of strings, or with commas between them in a flag or variable."""

    def check(value: object) -> tuple[str, ...]:
        if not isinstance(value, list) or len(value) > MAX_WORDS or not all(map(_is_word, value)):
            raise ValueError
        return tuple(value)

    def parse(text: str) -> object:
        listed = text.split(",") if text else []
        check(listed)  # here, for the error to show the text
        return listed

    def render(value: tuple[str, ...]) -> str:
        return "[" + ", ".join(map(_quoted, value)) + "]"

    expected = (
        f"an array (a flag or variable: a comma-separated list) of at most {MAX_WORDS} strings,"
        f" each 1 to {MAX_WORD} printable ASCII characters without spaces and commas"
    )
    return Kind("A,B,...", expected, check, parse, render)


def _is_word(item: object) -> bool:
    if not isinstance(item, str) or not 1 <= len(item) <= MAX_WORD:
        return False
    return item.isascii() and item.isprintable() and " " not in item and "," not in item
