"""MCP servers whose tools a conversation may use: over HTTP, or as child processes."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from umaserve.commands.chat.input import ChatError, Message
from umaserve.tool_servers.answers import MAX_TOOLS, text_of, tools_of, why
from umaserve.wire.fields import kind_of

if TYPE_CHECKING:
    from anyio.from_thread import BlockingPortal
    from mcp import Client, types

CALL_S = 300.0
"""The longest that a tool may take, in seconds."""
MAX_RESULT = 64 * 1024
"""Characters of a result that the model gets."""
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")
MAX_NAME = 64
_FORM = '{"mcpServers": {"NAME": {"command": "PROGRAM", "args": []}, "OTHER": {"url": "http://…"}}}'


@dataclass(frozen=True)
class Program:
    """A server that is started as a child process, with ``environment`` beside the few variables that are passed on."""

    command: str
    arguments: Sequence[str]
    environment: Mapping[str, str]


@dataclass(frozen=True)
class Address:
    """A server that is reached over HTTP."""

    url: str
    headers: Mapping[str, str]


Server = Program | Address


def read_servers(path: str) -> dict[str, Server]:
    """The servers in a file of the form that most agents read, by their names; raises ``ChatError``."""
    try:
        with open(path, "rb") as file:
            given = orjson.loads(file.read())
    except (OSError, ValueError) as error:
        problem = error.strerror if isinstance(error, OSError) else error
        raise ChatError(f"{path}: {problem}: expected a file with {_FORM}") from None
    listed = given.get("mcpServers") if isinstance(given, dict) else None
    if not isinstance(listed, dict):
        raise ChatError(f"{path}: mcpServers: expected an object, got {kind_of(listed)}: the form is {_FORM}")
    return {name: _server(one, f"{path}: mcpServers.{name}") for name, one in listed.items()}


def _server(given: object, place: str) -> Server:
    if not isinstance(given, dict):
        raise ChatError(f"{place}: expected an object, got {kind_of(given)}")
    if "url" in given:
        return Address(_text(given["url"], f"{place}.url"), _texts(given.get("headers", {}), f"{place}.headers"))
    if "command" not in given:
        raise ChatError(f"{place}: expected command or url, got neither")
    arguments = given.get("args", [])
    if not isinstance(arguments, list):
        raise ChatError(f"{place}.args: expected an array, got {kind_of(arguments)}")
    return Program(
        _text(given["command"], f"{place}.command"),
        [_text(one, f"{place}.args") for one in arguments],
        _texts(given.get("env", {}), f"{place}.env"),
    )


def _text(given: object, place: str) -> str:
    if not isinstance(given, str):
        raise ChatError(f"{place}: expected a string, got {kind_of(given)}")
    return given


def _texts(given: object, place: str) -> Mapping[str, str]:
    if not isinstance(given, dict):
        raise ChatError(f"{place}: expected an object, got {kind_of(given)}")
    return {key: _text(value, f"{place}.{key}") for key, value in given.items()}


@dataclass(frozen=True)
class Tool:
    """A tool of one server."""

    server: str
    client: Client
    about: types.Tool


class Servers:
    """Connected servers, and their tools by the names that a model calls them by."""

    def __init__(self, portal: BlockingPortal, tools: Mapping[str, Tool]) -> None:
        """``portal``: to the thread in which the clients run."""
        self._portal = portal
        self.tools = tools

    @property
    def functions(self) -> list[Message]:
        """The tools, as a request of OpenAI's API names them."""
        return [
            {
                "type": "function",
                "function": {
                    "name": name,
                    "description": tool.about.description or "",
                    "parameters": tool.about.input_schema,
                },
            }
            for name, tool in self.tools.items()
        ]

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """What a tool returns, as text for the model, failures included. Ctrl-C cancels the call."""
        tool = self.tools[name]
        called = self._portal.start_task_soon(tool.client.call_tool, tool.about.name, dict(arguments), CALL_S)
        try:
            return text_of(called.result(), MAX_RESULT)
        except KeyboardInterrupt:
            called.cancel()
            raise
        except Exception as error:  # Whatever a server does, the model is told, and the conversation goes on.
            return f"The call failed: {why(error)}"


@contextlib.contextmanager
def connected(servers: Mapping[str, Server]) -> Iterator[Servers]:
    """Connect to all servers, until the end of the block. Raises ``ChatError`` with the name of one that fails."""
    try:
        from anyio.from_thread import start_blocking_portal
        from mcp import Client
    except ImportError:
        raise ChatError("--mcp needs a package that is not here: pip install 'umaserve[mcp]'") from None
    stack = contextlib.ExitStack()
    try:
        portal = stack.enter_context(start_blocking_portal())
        tools: dict[str, Tool] = {}
        for name, server in servers.items():
            try:
                client = stack.enter_context(
                    portal.wrap_async_context_manager(Client(_transport(server, portal, stack)))
                )
                listed = portal.call(tools_of, client)
            except Exception as error:
                raise ChatError(f"the MCP server {name} can't be used: {why(error)}") from None
            for about in listed:
                tools[_named(about.name, name, tools)] = Tool(name, client, about)
        if len(tools) > MAX_TOOLS:
            raise ChatError(f"--mcp: expected at most {MAX_TOOLS} tools, got {len(tools)}: name fewer servers")
        yield Servers(portal, tools)
    finally:
        # Without the exception that ends the block, which the clients would wrap into groups of their own.
        stack.close()


def _transport(server: Server, portal: BlockingPortal, stack: contextlib.ExitStack) -> Any:
    """What a client talks through."""
    if isinstance(server, Program):
        from mcp import StdioServerParameters

        return StdioServerParameters(command=server.command, args=list(server.arguments), env=dict(server.environment))
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    timeout = httpx2.Timeout(30.0, read=CALL_S)
    http = httpx2.AsyncClient(headers=dict(server.headers), timeout=timeout)
    return streamable_http_client(server.url, http_client=stack.enter_context(portal.wrap_async_context_manager(http)))


def _named(tool: str, server: str, taken: Mapping[str, Tool]) -> str:
    """A name that no other tool has, of characters that models are given in names."""
    plain = _NOT_IN_NAMES.sub("_", tool)[:MAX_NAME]
    own = plain if plain not in taken else _NOT_IN_NAMES.sub("_", f"{server}_{tool}")[:MAX_NAME]
    if own in taken:
        raise ChatError(f"the MCP server {server} has two tools of the name {tool}")
    return own
