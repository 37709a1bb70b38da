"""The settings, and where each came from: flag, then environment, then file, then default.

A setting is one field of `Config`: its flag, variable, file key, help and checks follow from that.
"""

from __future__ import annotations

import argparse
import difflib
import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, TypeVar

from umaserve.addresses import is_loopback, parse_address
from umaserve.errors import ConfigError
from umaserve.kinds import (
    GIB,
    KIB,
    MIB,
    TIB,
    Kind,
    address,
    choice,
    mode,
    path,
    real,
    short_size,
    size,
    switch,
    whole,
    words,
)

T = TypeVar("T")

PREFIX = "UMA_"
FILE_VARIABLE = "UMA_CONFIG"


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

    http: str = setting(
        "", address(or_empty=True), "http", "serve HTTP and WebSocket here; empty: off; port 0: any that is free"
    )
    http_socket: str = setting(
        "", path(or_empty=True), "http", "Unix socket for HTTP and WebSocket, with the permissions of socket_mode"
    )
    tls_cert: str = setting("", path(or_empty=True), "http", "PEM file of the certificate chain to serve http with")
    tls_key: str = setting("", path(or_empty=True), "http", "PEM file of the certificate's private key")
    api_keys: str = setting(
        "",
        path(or_empty=True),
        "http",
        "file of API keys, made by umaserve keys add; with it every HTTP request needs one",
    )
    insecure: bool = setting(False, switch(), "http", "listen on other addresses than loopback's without API keys")
    allow_host: tuple[str, ...] = setting(
        (), words(), "http", "Host names to answer to besides loopback's and the address listened on; *: any"
    )
    allow_origin: tuple[str, ...] = setting(
        (), words(), "http", "web origins whose pages may connect besides loopback's and our own; *: any"
    )
    cors_origin: tuple[str, ...] = setting(
        (), words(), "http", "web origins whose pages may read replies (CORS); *: any"
    )
    header_timeout: float = setting(
        10.0, real("seconds", 0.05, 3600), "http", "refuse a request whose head takes longer to come"
    )
    body_timeout: float = setting(
        30.0, real("seconds", 0.05, 3600), "http", "refuse a request whose body takes longer to come"
    )
    ping_interval: float = setting(
        20.0,
        real("seconds", 0.05, 3600),
        "http",
        "ping a WebSocket that is silent this long, and give it up after as long again",
    )
    resume_window: float = setting(
        60.0, real("seconds", 0, 3600), "http", "keep the generation of a lost WebSocket this long; 0: off"
    )
    resume_bytes: int = setting(16 * MIB, size(0, GIB), "http", "memory for the generations kept, in all")
    feedback_log: str = setting(
        "", path(or_empty=True), "http", "append clients' feedback to this file, as JSON lines; empty: off"
    )
    debug_echo: bool = setting(False, switch(), "http", "serve /debug/echo, for conformance suites")

    max_sessions: int = setting(1024, whole(1, 65536), "limits", "connections at once")
    max_frame_bytes: int = setting(MIB, size(64, GIB), "limits", "largest frame, line, body or message from a client")
    max_prompt_bytes: int = setting(256 * KIB, size(1, GIB), "limits", "largest prompt in UTF-8")
    max_tokens: int = setting(
        512, whole(1, 1048576), "limits", "the most a request may ask for, and gets when it does not say"
    )
    tx_high_water: int = setting(
        64 * KIB, size(KIB, 64 * MIB), "limits", "pause a stream whose client leaves this much unread"
    )
    max_queue: int = setting(256, whole(1, 65536), "limits", "requests that may wait for a place; more are refused")
    request_timeout: float = setting(
        600.0, real("seconds", 0, 86400), "limits", "fail a request that takes longer in all; 0: no limit"
    )
    rate_requests: float = setting(
        0.0, real("requests/minute", 0, 10**9), "limits", "requests that each key or peer may make; 0: no limit"
    )
    rate_tokens: float = setting(
        0.0, real("tokens/minute", 0, 10**9), "limits", "tokens generated for each key or peer; 0: no limit"
    )
    memory_reserve: int = setting(
        64 * MIB, size(0, TIB), "limits", "refuse requests while the box has less memory free than this"
    )
    host_cache_bytes: int = setting(
        256 * MIB, size(0, TIB), "limits", "host memory for computed prompts that the KV cache has no room for; 0: off"
    )
    shared_prefix_cache: bool = setting(
        False,
        switch(),
        "limits",
        "let all keys and peers reuse what was computed for others; the time to first token then tells what they asked",
    )
    content_filter: str = setting(
        "",
        path(or_empty=True),
        "limits",
        "file of patterns that neither prompts nor answers may contain, one regular expression a line",
    )

    slo_ttft_ms: float = setting(
        1000.0, real("ms", 1, 3600000), "targets", "time to first token for a request that names none"
    )
    slo_tbt_ms: float = setting(
        80.0, real("ms", 1, 3600000), "targets", "time between tokens for a request that names none"
    )

    model: str = setting("", path(or_empty=True), "engine", "GGUF file; empty: the embedded default model")
    n_ctx: int = setting(
        16384, whole(64, 4194304, or_zero=True), "engine", "KV cells in all; 0: the model's training length"
    )
    parallel: int = setting(16, whole(1, 256), "engine", "sequences decoded at once")
    n_batch: int = setting(512, whole(1, 65536), "engine", "most tokens in one decode")
    n_ubatch: int = setting(512, whole(1, 65536), "engine", "most tokens computed in one pass of a decode")
    threads: int = setting(
        0, whole(0, 512), "engine", "most threads for decoding; 0: the cores this process may really use"
    )
    threads_batch: int = setting(0, whole(0, 512), "engine", "threads for decodes of several tokens; 0: as threads")
    n_gpu_layers: int = setting(-1, whole(-1, 10000), "engine", "layers to offload; -1: all that this llama.cpp can")
    flash_attn: str = setting("auto", choice("auto", "on", "off"), "engine", "use flash attention")
    kv_type: str = setting(
        "f16",
        choice("f16", "bf16", "f32", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0"),
        "engine",
        "type of the KV cells; the q types take less memory and need flash attention",
    )
    lora: tuple[str, ...] = setting(
        (), words(), "engine", "LoRA adapters, GGUF files; NAME=FILE names one that requests can choose"
    )
    speculation: bool = setting(
        True, switch(), "engine", "guess tokens that the text has repeated before, where that proves faster"
    )
    draft_model: str = setting(
        "", path(or_empty=True), "engine", "GGUF file of a small model with the same vocabulary that guesses tokens"
    )
    pooling: str = setting(
        "model",
        choice("model", "mean", "cls", "last"),
        "engine",
        "how /v1/embeddings makes one vector of a text; model: as the model says, if it says",
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
            prompt, frame = short_size(self.max_prompt_bytes), short_size(self.max_frame_bytes)
            found = f"max_prompt_bytes ({prompt}) is above max_frame_bytes ({frame})"
            advice = "lower max_prompt_bytes or raise max_frame_bytes"
            raise Conflict(f"{found}: {advice}", "max_prompt_bytes", "max_frame_bytes")
        if self.kv_type.startswith("q") and self.flash_attn == "off":
            found = f'kv_type "{self.kv_type}" is quantized and flash_attn is "off"'
            advice = 'set flash_attn to "auto" or "on", or kv_type to "f16", "bf16" or "f32"'
            raise Conflict(f"{found}: {advice}", "kv_type", "flash_attn")
        if self.http and not (self.api_keys or self.insecure or is_loopback(parse_address(self.http)[0])):
            found = f"http ({self.http}) is no loopback address and api_keys names no file"
            advice = "make keys with umaserve keys add and name their file, or say --insecure"
            raise Conflict(f"{found}: {advice}", "http", "api_keys")
        if bool(self.tls_cert) != bool(self.tls_key):
            given, missing = ("tls_cert", "tls_key") if self.tls_cert else ("tls_key", "tls_cert")
            raise Conflict(f"{given} is set and {missing} is not: set both or neither", given, missing)
        if self.tls_cert and not self.http:
            found = "tls_cert and tls_key are set and http is not"
            raise Conflict(f"{found}: set http to an address, or neither of them", "tls_cert", "tls_key", "http")
        if self.http_socket == self.socket:
            found = f"http_socket and socket are both {_printable(self.socket)}"
            raise Conflict(f"{found}: choose another path for one of them", "http_socket", "socket")


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
            raise ConfigError(f"{shown}: {_printable(key)}: no such setting{nearest(key, SETTINGS)}")
        yield _Given(key, value, f"file {shown}", f"{shown}: {key}")


def _from_environment(environ: Mapping[str, str]) -> Iterator[_Given]:
    known = {one.env: one for one in SETTINGS.values()}
    for name in sorted(name for name in environ if name.startswith(PREFIX) and name != FILE_VARIABLE):
        place = f"environment {_printable(name)}"
        if name not in known:
            raise ConfigError(f"{place}: no such setting{nearest(name, [*known, FILE_VARIABLE])}")
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


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint at the known name that was meant, if one is near; begins with a comma."""
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
        case list() if value and all(isinstance(item, str) for item in value):
            return f"the array {json.dumps(value)}"
        case list():
            return "an array"
        case dict():
            return "a table"
        case _:
            return "a date or time"


def _printable(name: str) -> str:
    return name if name and name.isprintable() else json.dumps(name)
