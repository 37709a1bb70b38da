"""Messages of the Model Context Protocol: one in each body, read by the rules of JSON-RPC 2.0 and of the revision that
it is written in; and the response to it.

Revisions up to 2025-11-25 begin with a handshake. From 2026-07-28 on, each message says its revision in ``_meta``, and
headers repeat a part of it (basic/transports/streamable-http, Server Validation).
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from umaserve import __version__
from umaserve.core.errors import Fault, RequestError
from umaserve.dialects.mcp.errors import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    INVALID_REQUEST,
    PARSE_ERROR,
    UNSUPPORTED_VERSION,
    Id,
    ProtocolError,
)
from umaserve.dialects.schemas import MAX_ID_BYTES
from umaserve.wire.fields import MAX_VALUES, kind_of, parse_json
from umaserve.wire.http_head import Request, shown

WITH_HANDSHAKE = ("2025-11-25", "2025-06-18")
"""Revisions that begin with ``initialize``, the newest first."""
STATELESS = "2026-07-28"
"""The revision whose messages stand for themselves."""
VERSIONS = (STATELESS, *WITH_HANDSHAKE)
SERVER = {"name": "umaserve", "title": "umaserve", "version": __version__}
_PREFIX = "io.modelcontextprotocol/"
_VERSION, _CAPABILITIES, _SERVER = f"{_PREFIX}protocolVersion", f"{_PREFIX}clientCapabilities", f"{_PREFIX}serverInfo"
_BASE64_BEGIN, _BASE64_END = "=?base64?", "?="


@dataclass(frozen=True, slots=True)
class Message:
    """A request, or a notification, which has no id."""

    method: str
    id: Id | None
    params: Mapping[str, Any]
    stateless: bool
    """Whether it is of a revision without a handshake."""
    progress: Id | None
    """The token of the notifications about its progress; ``None``: none are wanted."""
    takes_events: bool
    """Whether its client reads a stream of events."""

    @property
    def streams(self) -> bool:
        """Whether an answer that takes time comes as a stream of events, with notifications about its progress."""
        return self.progress is not None and self.takes_events

    def response(self, result: Mapping[str, object], about: Mapping[str, object] | None = None) -> bytes:
        """The response with ``result``, and what is to be told ``about`` it beside it."""
        meta = {**({_SERVER: SERVER} if self.stateless else {}), **(about or {})}
        whole = {
            **({"resultType": "complete"} if self.stateless else {}),
            **result,
            # The last one: a relay looks for the usage at the end of a reply.
            **({"_meta": meta} if meta else {}),
        }
        return orjson.dumps({"jsonrpc": "2.0", "id": self.id, "result": whole})

    def refused(self, code: int, message: str) -> ProtocolError:
        """The error response to it."""
        return ProtocolError(code, message, self.id)


def read_message(request: Request) -> Message | None:
    """The message in a request's body; ``None`` for a response, which nobody has asked for. Raises
    ``ProtocolError``."""
    try:
        given = parse_json(request.body, MAX_VALUES)
    except RequestError as error:
        code = PARSE_ERROR if error.fault is Fault.INVALID_JSON else INVALID_REQUEST
        raise ProtocolError(code, error.message, status=400) from None
    if not isinstance(given, dict):
        raise ProtocolError(INVALID_REQUEST, f"body: expected one message, an object, got {kind_of(given)}", status=400)
    own = _id(given.get("id"), "id") if "id" in given else None
    if given.get("jsonrpc") != "2.0":
        raise ProtocolError(INVALID_REQUEST, 'jsonrpc: expected "2.0"', own, 400)
    if "method" not in given and ("result" in given or "error" in given):
        return None
    method, params = given.get("method"), given.get("params", {})
    if not isinstance(method, str):
        raise ProtocolError(INVALID_REQUEST, f"method: expected a string, got {kind_of(method)}", own, 400)
    if not isinstance(params, dict):
        raise ProtocolError(INVALID_PARAMS, f"params: expected an object, got {kind_of(params)}", own, 400)
    meta = params.get("_meta", {})
    if not isinstance(meta, dict):
        raise ProtocolError(INVALID_PARAMS, f"params._meta: expected an object, got {kind_of(meta)}", own, 400)
    message = Message(
        method,
        own,
        params,
        _check_version(request, method, meta, own),
        _progress(meta, own),
        "text/event-stream" in (request.header("accept") or ""),
    )
    if message.stateless and own is not None:
        _check_stateless(request, message, meta)
    return message


def _id(given: object, path: str) -> Id:
    """The id of a message, which is a string or a whole number that JavaScript and C know too."""
    if isinstance(given, str) and len(given.encode()) <= MAX_ID_BYTES:
        return given
    if isinstance(given, int) and not isinstance(given, bool) and abs(given) < 2**63:
        return given
    expected = f"a string of at most {MAX_ID_BYTES} bytes or a whole number"
    got = "another" if isinstance(given, str | int) and not isinstance(given, bool) else kind_of(given)
    raise ProtocolError(INVALID_REQUEST, f"{path}: expected {expected}, got {got}", status=400)


def _progress(meta: Mapping[str, Any], own: Id | None) -> Id | None:
    if "progressToken" not in meta:
        return None
    try:
        return _id(meta["progressToken"], "params._meta.progressToken")
    except ProtocolError as error:
        raise ProtocolError(INVALID_PARAMS, error.message, own, 400) from None


def _check_version(request: Request, method: str, meta: Mapping[str, Any], own: Id | None) -> bool:
    """Whether the message is of the revision without a handshake; raises ``ProtocolError`` for one that isn't spoken
    here."""
    told, header = meta.get(_VERSION), request.header("mcp-protocol-version")
    # A handshake says the version in its parameters.
    asked = header if told is None and method != "initialize" else told
    if asked is not None and asked not in VERSIONS:
        got = asked[:64] if isinstance(asked, str) else kind_of(asked)
        problem = f"protocol version: expected {' or '.join(VERSIONS)}, got {got}"
        data = {"supported": VERSIONS, "requested": got}
        raise ProtocolError(UNSUPPORTED_VERSION, problem, own, 400, data)
    if own is not None and told is not None and told != header:
        raise _mismatch("MCP-Protocol-Version", str(told), header, own)
    if own is not None and told is None and asked == STATELESS:
        raise ProtocolError(INVALID_PARAMS, f"params._meta: expected {_VERSION}, got none", own, 400)
    return asked == STATELESS


def _check_stateless(request: Request, message: Message, meta: Mapping[str, Any]) -> None:
    """Check what each message must have that stands for itself; raises ``ProtocolError``."""
    capabilities = meta.get(_CAPABILITIES)
    if not isinstance(capabilities, dict):
        problem = f"params._meta.{_CAPABILITIES}: expected an object, got {kind_of(capabilities)}"
        raise ProtocolError(INVALID_PARAMS, problem, message.id, 400)
    if (method := request.header("mcp-method")) != message.method:
        raise _mismatch("Mcp-Method", message.method, method, message.id)
    name = message.params.get("name")
    if message.method == "tools/call" and isinstance(name, str):
        header = request.header("mcp-name")
        if header is None or _decoded(header) != name:
            raise _mismatch("Mcp-Name", name, header, message.id)


def _decoded(header: str) -> str | None:
    """The value of a header that may be base64 between marks (Value Encoding); ``None`` where that is broken."""
    if not (header.startswith(_BASE64_BEGIN) and header.endswith(_BASE64_END)):
        return header
    try:
        return base64.b64decode(header[len(_BASE64_BEGIN) : -len(_BASE64_END)], validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None


def _mismatch(header: str, expected: str, got: str | None, own: Id | None) -> ProtocolError:
    found = "none" if got is None else shown(got)
    problem = f"{header}: expected {shown(expected)}, as in the body, got {found}"
    return ProtocolError(HEADER_MISMATCH, problem, own, 400)
