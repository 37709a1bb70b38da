"""The methods of the Model Context Protocol that a server of tools has."""

from __future__ import annotations

from umaserve.dialects.facts import Facts
from umaserve.dialects.http import JSON
from umaserve.dialects.mcp.errors import INVALID_PARAMS, METHOD_NOT_FOUND, ProtocolError
from umaserve.dialects.mcp.messages import SERVER, VERSIONS, WITH_HANDSHAKE, Message, read_message
from umaserve.dialects.mcp.tools import TOOLS, Called
from umaserve.dialects.routes import Handed
from umaserve.wire.fields import kind_of
from umaserve.wire.http_head import Headers, Request

_CAPABILITIES: dict[str, object] = {"tools": {}}
_INSTRUCTIONS = (
    "Tools that language models on the user's own machine serve. What is sent to them stays there. The tool status"
    " lists the models."
)
_CACHED = {"ttlMs": 60_000, "cacheScope": "private"}
"""Which tools there are changes where a model is loaded for the first time, and with the client's key."""


def answer(facts: Facts, request: Request) -> tuple[int, Headers, bytes] | Handed:
    """The reply to a body, or what else answers it."""
    try:
        message = read_message(request)
        if message is None or message.id is None:
            # Nothing is kept of a client: a request ends where its connection is closed.
            return 202, (), b""
        called = _call(message, facts)
    except ProtocolError as error:
        return error.status, (("Content-Type", JSON),), error.body()
    return called if isinstance(called, Handed) else (200, (("Content-Type", JSON),), called)


def _call(message: Message, facts: Facts) -> Called:
    match message.method:
        case "tools/list":
            return _list(message, facts)
        case "tools/call":
            return _call_tool(message, facts)
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


def _list(message: Message, facts: Facts) -> bytes:
    if (cursor := message.params.get("cursor")) is not None:
        problem = f"params.cursor: expected none, since the list has one page, got {kind_of(cursor)}"
        raise message.refused(INVALID_PARAMS, problem)
    listed = [tool.listed() for tool in TOOLS.values() if tool.offered(facts)]
    return message.response({"tools": listed} | (_CACHED if message.stateless else {}))


def _call_tool(message: Message, facts: Facts) -> Called:
    name, arguments = message.params.get("name"), message.params.get("arguments", {})
    if not isinstance(name, str):
        raise message.refused(INVALID_PARAMS, f"params.name: expected a string, got {kind_of(name)}")
    if name not in TOOLS:
        raise message.refused(INVALID_PARAMS, f"params.name: expected {', '.join(TOOLS)}, got {name[:64]}")
    if not isinstance(arguments, dict):
        raise message.refused(INVALID_PARAMS, f"params.arguments: expected an object, got {kind_of(arguments)}")
    return TOOLS[name].call(message, arguments, facts)
