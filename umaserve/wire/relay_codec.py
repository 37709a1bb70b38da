"""The relay's messages as JSON, and back."""

from __future__ import annotations

import base64
import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import orjson

from umaserve.wire.fields import Fields, bad_request, out_of_range, parse_json, string
from umaserve.wire.relay_messages import (
    Cancel,
    CancelReason,
    Flow,
    FromProxy,
    FromWorker,
    GracefulShutdown,
    ModelsRefresh,
    ModelsUpdate,
    OtherReason,
    Ping,
    Pong,
    Register,
    RegisterAck,
    Request,
    ResponseChunk,
    ResponseComplete,
    TokenCounts,
    WorkerError,
)

BASE64 = "base64"
"""The value of ``encoding`` beside a text that encodes bytes."""
MAX_NAME_BYTES = 256
MAX_MODELS = 4096
MAX_FEATURES = 64
MAX_HEADERS = 256
MAX_HEADER_BYTES = 64 * 1024
MAX_PATH_BYTES = 8 * 1024
MAX_TEXT_BYTES = 64 * 1024
"""Bytes of an error's message or a reason."""
MAX_CONCURRENT = 65536
MAX_LOAD = 2**31
MAX_COUNT = 2**53
"""Largest number of tokens and of milliseconds: the largest integer that every JSON reader keeps exactly."""

T = TypeVar("T")

_HEADER_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,256}")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_PATH = re.compile(r"/[\x21-\x7e]*")

_TYPES: dict[type, str] = {
    Register: "register",
    ModelsUpdate: "models_update",
    ResponseChunk: "response_chunk",
    ResponseComplete: "response_complete",
    Pong: "pong",
    WorkerError: "error",
    RegisterAck: "register_ack",
    Request: "request",
    Cancel: "cancel",
    Ping: "ping",
    GracefulShutdown: "graceful_shutdown",
    ModelsRefresh: "models_refresh",
    Flow: "flow",
}
_OPTIONS: dict[type, tuple[tuple[str, object], ...]] = {
    kind: tuple(
        (field.name, field.default if field.default in (None, ()) else dataclasses.MISSING)
        for field in dataclasses.fields(kind)
    )
    for kind in (*_TYPES, TokenCounts, OtherReason)
}
"""Each type's fields, with the default value at which a field is left out."""


def encode(message: FromWorker | FromProxy) -> bytes:
    """The JSON of ``message``, without the optional fields that are ``None`` or an empty tuple."""
    return orjson.dumps(message, default=_object, option=orjson.OPT_PASSTHROUGH_DATACLASS)


def _object(part: object) -> dict[str, object] | str:
    """orjson's ``default`` hook, for a message, a part of one, headers, or bytes."""
    if isinstance(part, Mapping):
        return dict(part)
    if isinstance(part, bytes):
        return base64.b64encode(part).decode()
    kind = type(part)
    made: dict[str, object] = {"type": _TYPES[kind]} if kind in _TYPES else {}
    for name, absent in _OPTIONS[kind]:
        value = getattr(part, name)
        if value != absent:
            made[name] = value
        if isinstance(value, bytes):
            made["encoding"] = BASE64
    return made


# -- from bytes --------------------------------------------------------------------------------------------------------


def parse_from_worker(payload: bytes) -> FromWorker:
    """The worker's message in ``payload``. Raises ``RequestError`` (invalid JSON, bad request), naming the field."""
    return _parse(payload, _FROM_WORKER)


def parse_from_proxy(payload: bytes) -> FromProxy:
    """The proxy's message in ``payload``. Raises ``RequestError`` (invalid JSON, bad request), naming the field."""
    return _parse(payload, _FROM_PROXY)


def _parse(payload: bytes, parsers: Mapping[str, Callable[[Fields], T]]) -> T:
    values = parse_json(payload)
    if not isinstance(values, dict):
        raise bad_request("message", "an object", values)
    kind = values.get("type")
    parser = parsers.get(kind) if isinstance(kind, str) else None
    if parser is not None:
        return parser(Fields(values))
    expected = " or ".join(f'"{name}"' for name in parsers)
    if not isinstance(kind, str):
        raise bad_request("type", expected, kind)
    raise out_of_range("type", expected, f'"{kind}"')


def _register(fields: Fields) -> Register:
    return Register(
        _text(fields, "worker_name", MAX_NAME_BYTES),
        _strings(fields, "models", MAX_MODELS),
        max(1, _integer(fields, "max_concurrent", 0, MAX_CONCURRENT)),
        _option(fields, "protocol_version", MAX_NAME_BYTES),
        fields.integer("current_load", 0, MAX_LOAD) or 0,
        _strings(fields, "features", MAX_FEATURES, optional=True),
        _option(fields, "instance", MAX_NAME_BYTES),
        _contexts(fields),
    )


def _contexts(fields: Fields) -> dict[str, int] | None:
    found = fields.object("contexts")
    if found is None:
        return None
    if len(found.values) > MAX_MODELS:
        raise out_of_range("contexts", f"at most {MAX_MODELS} of them", len(found.values))
    for tokens in found.values.values():
        # Not isinstance: a bool is an int too.
        if type(tokens) is not int or not 1 <= tokens <= MAX_COUNT:
            raise bad_request("contexts", f"whole numbers from 1 to {MAX_COUNT}", tokens)
    return dict(found.values)


def _response_chunk(fields: Fields) -> ResponseChunk:
    values = fields.values
    request_id, chunk = _id(fields), values.get("chunk")
    if not isinstance(chunk, str):
        raise bad_request("chunk", "a string", chunk)
    # Fast path: nearly all messages to a proxy are chunks, and only the first of a stream has more fields.
    if "status_code" not in values and "headers" not in values and "encoding" not in values:
        return ResponseChunk(request_id, chunk)
    status, headers = fields.integer("status_code", 100, 599), _headers(fields)
    return ResponseChunk(request_id, _decoded(fields, "chunk", chunk), status, headers)


def _response_complete(fields: Fields) -> ResponseComplete:
    counts, body = fields.object("token_counts"), _option(fields, "body")
    return ResponseComplete(
        _id(fields),
        _integer(fields, "status_code", 200, 599),
        _headers(fields),
        None if body is None else _decoded(fields, "body", body),
        None if counts is None else _token_counts(counts),
    )


def _decoded(fields: Fields, key: str, text: str) -> str | bytes:
    """``text``, or the bytes that it encodes."""
    if fields.values.get("encoding") != BASE64:
        return text
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise out_of_range(fields.name(key), BASE64, ascii(text)) from None


def _token_counts(fields: Fields) -> TokenCounts:
    return TokenCounts(
        fields.integer("prompt_tokens", 0, MAX_COUNT),
        fields.integer("completion_tokens", 0, MAX_COUNT),
        fields.integer("total_tokens", 0, MAX_COUNT),
    )


def _worker_error(fields: Fields) -> WorkerError:
    return WorkerError(
        _text(fields, "code", MAX_NAME_BYTES),
        _text(fields, "message", MAX_TEXT_BYTES),
        None if fields.values.get("request_id") is None else _id(fields),
    )


_FROM_WORKER: dict[str, Callable[[Fields], FromWorker]] = {
    "register": _register,
    "models_update": lambda fields: ModelsUpdate(
        _strings(fields, "models", MAX_MODELS), _integer(fields, "current_load", 0, MAX_LOAD), _contexts(fields)
    ),
    "response_chunk": _response_chunk,
    "response_complete": _response_complete,
    "pong": lambda fields: Pong(_integer(fields, "current_load", 0, MAX_LOAD), _timestamp(fields)),
    "error": _worker_error,
}


def _register_ack(fields: Fields) -> RegisterAck:
    return RegisterAck(
        _id(fields, "worker_id"),
        _strings(fields, "models", MAX_MODELS),
        _option(fields, "protocol_version", MAX_NAME_BYTES),
        _strings(fields, "warnings", MAX_MODELS, optional=True),
        _strings(fields, "features", MAX_FEATURES, optional=True),
    )


def _request(fields: Fields) -> Request:
    path = _text(fields, "endpoint_path", MAX_PATH_BYTES)
    if not _PATH.fullmatch(path):
        raise out_of_range("endpoint_path", "printable ASCII that begins with /", ascii(path))
    return Request(
        _id(fields),
        _text(fields, "model", MAX_NAME_BYTES),
        path,
        _boolean(fields, "is_streaming"),
        _decoded(fields, "body", _text(fields, "body")),
        _headers(fields),
    )


def _cancel_reason(value: object) -> CancelReason | OtherReason:
    if isinstance(value, dict):
        return OtherReason(_text(Fields.of(value, "reason"), "other", MAX_TEXT_BYTES))
    if not isinstance(value, str):
        raise bad_request("reason", 'a string or an object with "other"', value)
    try:
        return CancelReason(value)
    except ValueError:
        # A reason added by a newer proxy: the request is cancelled all the same.
        return OtherReason(string(value, "reason", max_bytes=MAX_TEXT_BYTES, empty=True))


_FROM_PROXY: dict[str, Callable[[Fields], FromProxy]] = {
    "register_ack": _register_ack,
    "request": _request,
    "cancel": lambda fields: Cancel(_id(fields), _cancel_reason(fields.values.get("reason"))),
    "ping": lambda fields: Ping(_timestamp(fields)),
    "graceful_shutdown": lambda fields: GracefulShutdown(
        _option(fields, "reason", MAX_TEXT_BYTES), fields.integer("drain_timeout_secs", 0, MAX_COUNT)
    ),
    "models_refresh": lambda fields: ModelsRefresh(_option(fields, "reason", MAX_TEXT_BYTES)),
    "flow": lambda fields: Flow(_id(fields), _boolean(fields, "paused")),
}


def _id(fields: Fields, key: str = "request_id") -> str:
    value = fields.values.get(key)
    # Fast path: a UTF-8 character has at most four bytes, and no error text is prepared.
    if isinstance(value, str) and 0 < len(value) <= MAX_NAME_BYTES // 4:
        return value
    return string(value, key, max_bytes=MAX_NAME_BYTES)


def _text(fields: Fields, key: str, max_bytes: int | None = None) -> str:
    return string(fields.values.get(key), fields.name(key), max_bytes=max_bytes, empty=True)


def _option(fields: Fields, key: str, max_bytes: int | None = None) -> str | None:
    return None if fields.values.get(key) is None else _text(fields, key, max_bytes)


def _integer(fields: Fields, key: str, low: int, high: int) -> int:
    value = fields.integer(key, low, high)
    if value is None:
        raise bad_request(key, f"a whole number from {low} to {high}", None)
    return value


def _timestamp(fields: Fields) -> int | None:
    return fields.integer("timestamp_unix_ms", 0, MAX_COUNT)


def _boolean(fields: Fields, key: str) -> bool:
    if fields.values.get(key) is None:
        raise bad_request(key, "true or false", None)
    return fields.boolean(key, False)


def _strings(fields: Fields, key: str, limit: int, *, optional: bool = False) -> tuple[str, ...]:
    """An array of strings of any length: the limit on the message bounds them."""
    values = fields.values.get(key)
    if values is None and optional:
        return ()
    if not isinstance(values, list):
        raise bad_request(key, "an array of strings", values)
    if len(values) > limit:
        raise out_of_range(key, f"at most {limit} strings", len(values))
    return tuple(string(value, f"{key}[{index}]", empty=True) for index, value in enumerate(values))


def _headers(fields: Fields) -> dict[str, str] | None:
    """Header names to values, checked so that both can be written into an HTTP head unchanged."""
    found = fields.object("headers")
    if found is None:
        return None
    if len(found.values) > MAX_HEADERS:
        raise out_of_range("headers", f"at most {MAX_HEADERS} of them", len(found.values))
    headers: dict[str, str] = {}
    for name, value in found.values.items():
        if not _HEADER_NAME.fullmatch(name):
            raise out_of_range("headers", f"names that are tokens of at most {MAX_NAME_BYTES} bytes", ascii(name))
        text = string(value, found.name(name), max_bytes=MAX_HEADER_BYTES, empty=True)
        if not _HEADER_VALUE.fullmatch(text):
            raise out_of_range(found.name(name), "Latin-1 without control characters", ascii(text))
        headers[name] = text.strip(" \t")
    return headers


# -- model lists -------------------------------------------------------------------------------------------------------


def accepted_models(models: Sequence[str], limit: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The accepted ones of a worker's ``models``, in its order, and warnings about the others.

    Names are trimmed. Empty and duplicate ones are dropped silently, those of more than 256 bytes and those after the
    first ``limit`` with a warning.
    """
    named = dict.fromkeys(name for model in models if (name := model.strip()))
    accepted = [name for name in named if len(name.encode()) <= MAX_NAME_BYTES]
    warnings = []
    if len(accepted) < len(named):
        too_long = len(named) - len(accepted)
        warnings.append(f"models: expected names of at most {MAX_NAME_BYTES} bytes, left out {too_long}")
    if len(accepted) > limit:
        warnings.append(f"models: expected at most {limit}, left out the last {len(accepted) - limit}")
    return tuple(accepted[:limit]), tuple(warnings)
