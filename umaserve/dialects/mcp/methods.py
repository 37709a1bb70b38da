"""The methods of the Model Context Protocol that a server of tools has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from umaserve.dialects.facts import Facts
from umaserve.dialects.http import JSON
from umaserve.dialects.mcp.errors import INVALID_PARAMS, METHOD_NOT_FOUND, ProtocolError
from umaserve.dialects.mcp.messages import SERVER, VERSIONS, WITH_HANDSHAKE, Message, read_message
from umaserve.dialects.mcp.tools import TOOLS, Tool
from umaserve.dialects.routes import Handed
from umaserve.wire.fields import kind_of
from umaserve.wire.http_head import Headers, Request

H = TypeVar("H")

Call = Callable[[Message, Tool, dict[str, Any]], bytes | H]
"""Answers a call of a tool with these arguments: the response itself, or what answers it in time."""

_CAPABILITIES: dict[str, object] = {"tools": {}}
_INSTRUCTIONS = (
    "Tools that language models on this server's own machines serve. What is sent to them stays there. The tool status"
    " lists the models."
)
_CACHED = {"ttlMs": 60_000, "cacheScope": "private"}
"""Which tools there are changes where a model is loaded for the first time, and with the client's key."""


def answer(facts: Facts, request: Request) -> tuple[int, Headers, bytes] | Handed:
    """The reply to a body, or what else answers it."""
    return answer_message(
        request,
        lambda tool: tool.offered(facts),
        lambda message, tool, arguments: tool.call(message, arguments, facts),
    )


def answer_message(request: Request, offered: Callable[[Tool], bool], call: Call[H]) -> tuple[int, Headers, bytes] | H:
    """The reply to a body by a server which has the tools that are ``offered``, or what ``call`` made of a call."""
    try:
        message = read_message(request)
        if message is None or message.id is None:
            # Nothing is kept of a client: a request ends where its connection is closed.
            return 202, (), b""
        answered = _answer(message, offered, call)
    except ProtocolError as error:
        return error.status, (("Content-Type", JSON),), error.body()
    return (200, (("Content-Type", JSON),), answered) if isinstance(answered, bytes) else answered


def _answer(message: Message, offered: Callable[[Tool], bool], call: Call[H]) -> bytes | H:
    match message.method:
        case "tools/list":
            return _list(message, offered)
        case "tools/call":
            return call(message, *_called(message))
        case "server/discover":
            found = {"supportedVersions": VERSIONS, "capabilities": _CAPABILITIES, "instructions": _INSTRUCTIONS}
            return message.response(found | _CACHED)
        case "initialize" if not message.stateless:
            return _initialize(message)
        case "ping" if not message.stateless:
            return message.response({})
    problem = f"method: expected one that this server has, got {message.method[:64]}"
    raise ProtocolError(METHOD_NOT_FOUND, problem, message.id, 404 if message.stateless else 200)


def _initialize(message: Message) -> bytes:
    asked = message.params.get("protocolVersion")
    if not isinstance(asked, str):
        raise message.refused(INVALID_PARAMS, f"params.protocolVersion: expected a string, got {kind_of(asked)}")
    return message.response(
        {
            "protocolVersion": asked if asked in WITH_HANDSHAKE else WITH_HANDSHAKE[0],
            "capabilities": _CAPABILITIES,
            "serverInfo": SERVER,
            "instructions": _INSTRUCTIONS,
        }
    )


def _list(message: Message, offered: Callable[[Tool], bool]) -> bytes:
    if (cursor := message.params.get("cursor")) is not None:
        problem = f"params.cursor: expected none, since the list has one page, got {kind_of(cursor)}"
        raise message.refused(INVALID_PARAMS, problem)
    listed = [tool.listed() for tool in TOOLS.values() if offered(tool)]
    return message.response({"tools": listed} | (_CACHED if message.stateless else {}))


def _called(message: Message) -> tuple[Tool, dict[str, Any]]:
    """The tool that a call names, and its arguments."""
    name, arguments = message.params.get("name"), message.params.get("arguments", {})
    if not isinstance(name, str):
        raise message.refused(INVALID_PARAMS, f"params.name: expected a string, got {kind_of(name)}")
    if name not in TOOLS:
        raise message.refused(INVALID_PARAMS, f"params.name: expected {', '.join(TOOLS)}, got {name[:64]}")
    if not isinstance(arguments, dict):
        raise message.refused(INVALID_PARAMS, f"params.arguments: expected an object, got {kind_of(arguments)}")
    return TOOLS[name], arguments
