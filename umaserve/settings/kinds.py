"""The kinds of settings' values: how each is written, checked and shown."""

from __future__ import annotations

import ipaddress
import json
import math
import re
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from umaserve.settings.addresses import parse_address, parse_place

T = TypeVar("T")

KIB, MIB, GIB, TIB = 1 << 10, 1 << 20, 1 << 30, 1 << 40


def quoted(text: str) -> str:
    """A TOML string."""
    # TOML has JSON's escapes, except that DEL must be escaped and surrogate pairs are not allowed.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


@dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    """How the values of a setting are written, checked and shown."""

    metavar: str
    expected: str
    """The end of the sentence "expected …"."""
    check: Callable[[object], T]
    """The setting's value, from a TOML value; ValueError where it is invalid."""
    parse: Callable[[str], object] = str
    """The TOML value, from the text of a flag or variable; ValueError where there is none."""
    render: Callable[[T], str] = str
    """The value as TOML."""
    secret: bool = False
    """Whether the value must never be shown; ``render`` then returns a placeholder."""


def path(*, or_empty: bool = False) -> Kind[str]:
    def check(value: object) -> str:
        if not isinstance(value, str) or "\0" in value or not (value or or_empty):
            raise ValueError
        value.encode()  # a flag's undecodable bytes arrive as surrogates, which no TOML file can hold
        return value

    return Kind("PATH", "a path in UTF-8" + ("" if or_empty else ", not empty"), check, render=quoted)


def choice(*choices: str, or_empty: bool = False) -> Kind[str]:
    def check(value: object) -> str:
        if value not in choices and not (or_empty and value == ""):
            raise ValueError
        return str(value)

    expected = "one of " + ", ".join(map(quoted, choices))
    return Kind("{" + ",".join(choices) + "}", expected, check, render=quoted)


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
        # Not isinstance: a bool is an int too.
        if type(value) is int and (low <= value <= high or (or_zero and value == 0)):
            return value
        raise ValueError

    return Kind("N", ("0 or " if or_zero else "") + f"a whole number from {low} to {high}", check, int)


AUTO = -1
"""Value of a setting that the program chooses by itself."""


def or_auto(kind: Kind[int]) -> Kind[int]:
    """Values of ``kind``, or "auto", which is `AUTO`."""

    def check(value: object) -> int:
        return AUTO if value == "auto" else kind.check(value)

    def render(value: int) -> str:
        return quoted("auto") if value == AUTO else kind.render(value)

    return replace(kind, expected=f'"auto", or {kind.expected}', check=check, render=render)


def real(unit: str, low: float, high: float) -> Kind[float]:
    def check(value: object) -> float:
        if isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high:
            return float(value)
        raise ValueError

    return Kind(unit.upper(), f"a number of {unit} from {low} to {high}", check, float)


def factor(low: float, high: float) -> Kind[float]:
    """A number without a unit."""
    return replace(real("factor", low, high), expected=f"a number from {low} to {high}")


def share() -> Kind[float]:
    """A share of a whole, from 0 to 1."""
    return replace(real("share", 0, 1), expected="a share from 0 to 1")


_UNITS = {"GiB": GIB, "MiB": MIB, "KiB": KIB}


def short_size(size: int) -> str:
    """Bytes in the largest unit that leaves no remainder."""
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
        return short if short.isdigit() else quoted(short)

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


_ADDRESS = 'an address as HOST:PORT, such as "127.0.0.1:8080" or "[::1]:8080"'


def address() -> Kind[str]:
    """HOST:PORT, kept as written."""
    return Kind("HOST:PORT", _ADDRESS, _address, render=quoted)


def address_list() -> Kind[str]:
    """One HOST:PORT or several with commas between them, kept as written; or empty."""

    def check(value: object) -> str:
        if isinstance(value, str) and value:
            for one in value.split(","):
                _address(one)
            return value
        if value != "":
            raise ValueError
        return ""

    expected = f"{_ADDRESS}, or several with commas between them, or an empty string"
    return Kind("HOST:PORT,...", expected, check, render=quoted)


def _address(value: object) -> str:
    # parse_address alone would accept any characters in an IPv6 scope.
    if not isinstance(value, str) or not (value.isascii() and value.isprintable()):
        raise ValueError
    parse_address(value)
    return value


def place() -> Kind[str]:
    """HOST:PORT or unix:PATH, kept as written; or empty."""

    def check(value: object) -> str:
        if not isinstance(value, str) or not (value.startswith("unix:") or (value.isascii() and value.isprintable())):
            raise ValueError
        if value:
            parse_place(value)
        return value

    expected = 'an address as HOST:PORT or unix:PATH, such as "127.0.0.1:10200", or an empty string'
    return Kind("HOST:PORT|unix:PATH", expected, check, render=quoted)


MAX_WORDS, MAX_WORD = 64, 256


def word(*, or_empty: bool = False) -> Kind[str]:
    def check(value: object) -> str:
        if not (_is_word(value) or (or_empty and value == "")):
            raise ValueError
        return str(value)

    low = 0 if or_empty else 1
    return Kind("NAME", f"{low} to {MAX_WORD} {_OF_A_WORD}", check, render=quoted)


def words() -> Kind[tuple[str, ...]]:
    """Words, as a TOML array of strings, or separated by commas in a flag or variable."""
    return _several(str)


def shares() -> Kind[tuple[str, ...]]:
    """Numbers of at least 0, written as `words`."""
    return _several(_share, ", each a number of at least 0")


def overrides() -> Kind[tuple[str, ...]]:
    """Pairs of a pattern and a name, written as `words`."""
    return _several(_override, ", each PATTERN=NAME")


def addresses() -> Kind[tuple[str, ...]]:
    """Addresses, written as `words`; each is an `address`."""
    return _several(_address, ", each an address as HOST:PORT")


def url(*schemes: str, or_empty: bool = False) -> Kind[str]:
    """The absolute URL of a server, without user information and query, kept as written."""

    def check(value: object) -> str:
        if value == "" and or_empty:
            return ""
        if not _is_word(value):
            raise ValueError
        return _url(str(value), schemes)

    return Kind("URL", f"{_expected_url(schemes)}, at most {MAX_WORD} ASCII characters", check, render=quoted)


def urls(*schemes: str) -> Kind[tuple[str, ...]]:
    """URLs, written as `words`; each is a `url`."""
    return _several(lambda item: _url(item, schemes), f", each {_expected_url(schemes)}")


def sources(*schemes: str) -> Kind[tuple[str, ...]]:
    """URLs that a page's Content-Security-Policy can name, written as `words`."""
    each = f", each {_expected_url(schemes)}, without semicolons, and whose host is no IPv6 address"
    return _several(lambda item: _source(item, schemes), each)


Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def networks() -> Kind[tuple[Network, ...]]:
    """Networks, written as `words`; each is an IP address or a network in CIDR notation (RFC 4632 section 3.1)."""
    return _several(_network, ", each an IP address or a network such as 10.0.0.0/8 or fd00::/8")


MAX_SECRET = 4096


def secret() -> Kind[str]:
    """A word that is never shown. It can be sent in an HTTP header field, unlike the "…" that `render` returns."""

    def check(value: object) -> str:
        if not isinstance(value, str) or len(value) > MAX_SECRET or not _is_visible(value):
            raise ValueError
        return value

    expected = f"at most {MAX_SECRET} printable ASCII characters without spaces"
    return Kind("SECRET", expected, check, render=lambda value: '"…"' if value else '""', secret=True)


_OF_A_WORD = "printable ASCII characters without spaces and commas"


def _several(one: Callable[[str], T], each: str = "") -> Kind[tuple[T, ...]]:
    """Words, each converted by ``one``, which raises ValueError; ``str`` of a value must give its word again."""

    def check(value: object) -> tuple[T, ...]:
        if not isinstance(value, list) or len(value) > MAX_WORDS or not all(map(_is_word, value)):
            raise ValueError
        return tuple(map(one, value))

    def parse(text: str) -> object:
        listed = text.split(",") if text else []
        check(listed)  # here, for the error to show the text
        return listed

    def render(values: tuple[T, ...]) -> str:
        return "[" + ", ".join(quoted(str(value)) for value in values) + "]"

    expected = (
        f"an array (a flag or variable: a comma-separated list) of at most {MAX_WORDS} strings,"
        f" each 1 to {MAX_WORD} {_OF_A_WORD}{each}"
    )
    return Kind("A,B,...", expected, check, parse, render)


def _share(text: str) -> str:
    if not 0 <= float(text) < math.inf:
        raise ValueError
    return text


def _override(text: str) -> str:
    pattern, _equals, name = text.rpartition("=")
    if not (pattern and name):
        raise ValueError
    return text


def _is_word(item: object) -> bool:
    return isinstance(item, str) and 1 <= len(item) <= MAX_WORD and _is_visible(item) and "," not in item


def _is_visible(text: str) -> bool:
    return text.isascii() and text.isprintable() and " " not in text


def _url(text: str, schemes: tuple[str, ...]) -> str:
    split = urllib.parse.urlsplit(text)
    # A query or user information may hold a secret, and URLs are shown.
    if split.scheme not in schemes or "?" in text or "#" in text:
        raise ValueError
    has_port = ":" in split.netloc.rpartition("]")[2]
    if parse_address(split.netloc if has_port else f"{split.netloc}:1")[1] == 0:
        raise ValueError
    return text


def _source(text: str, schemes: tuple[str, ...]) -> str:
    if any(char in text for char in "[];"):
        raise ValueError
    return _url(text, schemes)


def _expected_url(schemes: tuple[str, ...]) -> str:
    begins = " or ".join(f"{scheme}://" for scheme in schemes)
    return f"a URL that begins with {begins}, a host and perhaps a port and a path, but no user and no query"


def _network(text: str) -> Network:
    if "%" in text:  # an IPv6 scope: peers' addresses are compared without it
        raise ValueError
    return ipaddress.ip_network(text)
