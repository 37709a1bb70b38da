"""The settings, and where each came from: flag, then environment, then file, then default.

A setting is one field of `Config`: its flag, variable, file key, help and checks follow from that.
"""

from __future__ import annotations

import argparse
import difflib
import json
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Generic, NamedTuple, TypeVar

from umaserve.errors import ConfigError

T = TypeVar("T")

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
PREFIX = "UMA_"
FILE_VARIABLE = "UMA_CONFIG"


# What a value may be.


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


def _short(size: int) -> str:
    exact = (f"{size // unit}{name}" for name, unit in _UNITS.items() if size % unit == 0)
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
        short = _short(value)
        return short if short.isdigit() else _quoted(short)

    expected = f'a size from {_short(low)} to {_short(high)}, such as 65536 or "64KiB"'
    return Kind("BYTES", expected, check, render=render)


def mode() -> Kind[int]:
    """Permission bits. A string, because TOML would read a bare 440 as decimal."""

    def check(value: object) -> int:
        if not isinstance(value, str) or not re.fullmatch("0?[0-7]{3}", value):
            raise ValueError
        return int(value, 8)

    expected = 'an octal string from "0000" to "0777"'
    return Kind("MODE", expected, check, render=lambda bits: f'"{bits:04o}"')


# The settings.


class Conflict(ConfigError):
    """Settings that are each good and can't hold together; ``keys`` names them."""

    def __init__(self, message: str, *keys: str) -> None:
        super().__init__(message)
        self.keys = keys


def setting(default: T, kind: Kind[T], group: str, help: str, *, env: str = "") -> T:
    """Declare a field of `Config`. ``env`` names a variable that isn't UMA_ and the key."""
    return field(default=default, metadata={"kind": kind, "group": group, "help": help, "env": env})


@dataclass(frozen=True, slots=True)
class Config:
    """Every setting. Raises `Conflict` for values that can't hold together; `load` checks each by itself."""

    socket: str = setting("/run/uma.sock", path(), "serving", "Unix socket to listen on", env="UMA_SOCK")
    socket_mode: int = setting(0o660, mode(), "serving", "permissions of the socket")
    protocol: str = setting(
        "json", choice("json", "newline"), "serving", "framed JSON, or each line a prompt, for debugging"
    )
    keep_alive: bool = setting(False, switch(), "serving", "keep a connection open after its reply")
    idle_timeout: float = setting(
        300.0, real("seconds", 0.05, 86400), "serving", "close a connection that is silent this long"
    )
    drain_timeout: float = setting(
        10.0, real("seconds", 0, 3600), "serving", "at shutdown, let running requests go on this long"
    )

    max_sessions: int = setting(1024, whole(1, 65536), "limits", "connections at once")
    max_frame_bytes: int = setting(MIB, size(64, GIB), "limits", "largest frame or line from a client")
    max_prompt_bytes: int = setting(256 * KIB, size(1, GIB), "limits", "largest prompt in UTF-8")
    max_tokens: int = setting(
        512, whole(1, 1048576), "limits", "the most a request may ask for, and gets when it does not say"
    )
    tx_high_water: int = setting(
        64 * KIB, size(KIB, 64 * MIB), "limits", "pause a stream whose client leaves this much unread"
    )

    slo_ttft_ms: float = setting(
        1000.0, real("ms", 1, 3600000), "targets", "time to first token for a request that names none"
    )
    slo_tbt_ms: float = setting(
        100.0, real("ms", 1, 3600000), "targets", "time between tokens for a request that names none"
    )

    model: str = setting("", path(or_empty=True), "engine", "GGUF file; empty: the embedded default model")
    n_ctx: int = setting(
        16384, whole(64, 4194304, or_zero=True), "engine", "KV cells in all; 0: the model's training length"
    )
    parallel: int = setting(16, whole(1, 256), "engine", "sequences decoded at once")
    n_batch: int = setting(512, whole(1, 65536), "engine", "most tokens in one decode")
    n_ubatch: int = setting(512, whole(1, 65536), "engine", "most tokens computed in one pass of a decode")
    threads: int = setting(0, whole(0, 512), "engine", "threads for decoding; 0: the cores this process may really use")
    threads_batch: int = setting(0, whole(0, 512), "engine", "threads for decodes of several tokens; 0: as threads")
    n_gpu_layers: int = setting(-1, whole(-1, 10000), "engine", "layers to offload; -1: all that this llama.cpp can")
    flash_attn: str = setting("auto", choice("auto", "on", "off"), "engine", "use flash attention")
    kv_type: str = setting(
        "f16",
        choice("f16", "bf16", "f32", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0"),
        "engine",
        "type of the KV cells; the q types take less memory and need flash attention",
    )

    log_level: str = setting("info", choice("debug", "info", "warning", "error"), "logging", "least severe to log")
    log_format: str = setting("text", choice("text", "json"), "logging", "form of a line of the log")

    def __post_init__(self) -> None:
        if self.n_ubatch > self.n_batch:
            found = f"n_ubatch ({self.n_ubatch}) is above n_batch ({self.n_batch})"
            raise Conflict(f"{found}: lower n_ubatch or raise n_batch", "n_ubatch", "n_batch")
        if self.parallel > self.n_batch:
            found = f"parallel ({self.parallel}) is above n_batch ({self.n_batch})"
            raise Conflict(
                f"{found}: a tick has a token of each sequence; lower parallel or raise n_batch", "parallel", "n_batch"
            )
        if self.max_prompt_bytes > self.max_frame_bytes:
            prompt, frame = _short(self.max_prompt_bytes), _short(self.max_frame_bytes)
            found = f"max_prompt_bytes ({prompt}) is above max_frame_bytes ({frame})"
            advice = "lower max_prompt_bytes or raise max_frame_bytes"
            raise Conflict(f"{found}: {advice}", "max_prompt_bytes", "max_frame_bytes")
        if self.kv_type.startswith("q") and self.flash_attn == "off":
            found = f'kv_type "{self.kv_type}" is quantized and flash_attn is "off"'
            advice = 'set flash_attn to "auto" or "on", or kv_type to "f16", "bf16" or "f32"'
            raise Conflict(f"{found}: {advice}", "kv_type", "flash_attn")


class Setting(NamedTuple):
    """A field of `Config`, with the names that follow from the field's."""

    key: str
    flag: str
    env: str
    default: Any
    kind: Kind[Any]
    group: str
    help: str


def _settings() -> Iterator[Setting]:
    for one in fields(Config):
        of = one.metadata
        flag = "--" + one.name.replace("_", "-")
        env = of["env"] or PREFIX + one.name.upper()
        yield Setting(one.name, flag, env, one.default, of["kind"], of["group"], of["help"])


SETTINGS: Mapping[str, Setting] = {one.key: one for one in _settings()}
"""Every setting by its key, in the order of `Config`."""


# Where the values come from.


@dataclass(frozen=True, slots=True)
class Loaded:
    """The settings in force, and the origin of each: "flag", "environment UMA_…", "file …" or "default"."""

    config: Config
    origins: Mapping[str, str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--config`` and a flag for each setting. A flag not given leaves nothing in the namespace."""
    about = f"TOML file of settings; empty: none (environment {FILE_VARIABLE})"
    parser.add_argument("--config", metavar="PATH", default=argparse.SUPPRESS, help=about)
    titles = dict.fromkeys(one.group for one in SETTINGS.values())
    groups = {title: parser.add_argument_group(title) for title in titles}
    for one in SETTINGS.values():
        about = f"{one.help} (default {one.kind.render(one.default)}, environment {one.env})"
        add = groups[one.group].add_argument
        if isinstance(one.default, bool):
            add(one.flag, action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS, help=about)
        else:
            # load() parses the text, so that a flag fails in the same words as a variable or the file.
            add(one.flag, metavar=one.kind.metavar, default=argparse.SUPPRESS, help=about)


class _Given(NamedTuple):
    key: str
    value: object
    origin: str
    place: str
    """Begins an error about the value."""


def load(flags: argparse.Namespace | Mapping[str, object], environ: Mapping[str, str]) -> Loaded:
    """The settings from the flags, the environment, the file that they name, and the defaults.

    Whatever is given is checked, overridden or not; flags that are no settings are left alone. Raises
    ConfigError, one line, for a file that can't be read or isn't TOML, a file key or UMA_ variable that is no
    setting, a value of the wrong type or out of range, and values that can't hold together.
    """
    named = vars(flags) if isinstance(flags, argparse.Namespace) else flags
    file = str(named.get("config", environ.get(FILE_VARIABLE, "")))
    values, origins = {}, dict.fromkeys(SETTINGS, "default")
    for given in (*_from_file(file), *_from_environment(environ), *_from_flags(named)):
        kind = SETTINGS[given.key].kind
        try:
            values[given.key] = kind.check(given.value)
        except ValueError:
            got = _described(given.value)
            raise ConfigError(f"{given.place}: expected {kind.expected}, got {got}") from None
        origins[given.key] = given.origin
    try:
        return Loaded(Config(**values), origins)
    except Conflict as conflict:
        places = ", ".join(f"{key}: {origins[key]}" for key in conflict.keys)
        raise ConfigError(f"{conflict} ({places})") from None


def render(loaded: Loaded) -> str:
    """The settings as a TOML file that gives them again, each with its origin in a comment."""
    pairs = {key: f"{key} = {one.kind.render(getattr(loaded.config, key))}" for key, one in SETTINGS.items()}
    width = max(map(len, pairs.values()))
    return "".join(f"{pair:<{width}}  # {loaded.origins[key]}\n" for key, pair in pairs.items())


def _from_file(name: str) -> Iterator[_Given]:
    if not name:
        return
    shown = _printable(name)
    try:
        with open(name, "rb") as file:
            table = tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"{shown}: can't be read: {error.strerror}") from None
    # More than TOMLDecodeError: text that isn't UTF-8, numbers too long to convert, brackets nested too deep.
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{shown}: not valid TOML: {error}") from None
    for key, value in table.items():
        if key not in SETTINGS:
            raise ConfigError(f"{shown}: {_printable(key)}: no such setting{_nearest(key, SETTINGS)}")
        yield _Given(key, value, f"file {shown}", f"{shown}: {key}")


def _from_environment(environ: Mapping[str, str]) -> Iterator[_Given]:
    known = {one.env: one for one in SETTINGS.values()}
    for name in sorted(name for name in environ if name.startswith(PREFIX) and name != FILE_VARIABLE):
        place = f"environment {_printable(name)}"
        if name not in known:
            raise ConfigError(f"{place}: no such setting{_nearest(name, [*known, FILE_VARIABLE])}")
        yield _Given(known[name].key, _parsed(known[name].kind, environ[name]), place, place)


def _from_flags(flags: Mapping[str, object]) -> Iterator[_Given]:
    for key, one in SETTINGS.items():
        if key in flags:
            value = flags[key]
            value = _parsed(one.kind, value) if isinstance(value, str) else value
            yield _Given(key, value, "flag", f"flag {one.flag}")


def _parsed(kind: Kind[Any], text: str) -> object:
    try:
        return kind.parse(text)
    except ValueError:
        return text  # which the check refuses, and the error then shows


def _nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f", did you mean {near[0]}?" if near else ""


def _described(value: object) -> str:
    match value:
        case str():
            return f"the string {json.dumps(value)}"  # ASCII, hence one line
        case bool():
            return f"the boolean {str(value).lower()}"
        case int() if value.bit_length() > 64:
            return "a number of more than 64 bits"  # the longest can't be written out in decimal
        case int() | float():
            return f"the number {value}"
        case list():
            return "an array"
        case dict():
            return "a table"
        case _:
            return "a date or time"


def _printable(name: str) -> str:
    return name if name and name.isprintable() else json.dumps(name)
