"""The process that talks with MCP servers: which servers and calls come in, and what is there and results go out.

Both are lines of JSON. The first that comes in is an array of ``settings.tool_servers.ToolServer``; each that follows
is a call ``{"id", "server", "tool", "arguments"}`` or ``{"cancel": id}``. What goes out is ``{"server", "tools"}`` or
``{"server", "problem"}`` when it changes, and ``{"id", "text", "failed"}`` for each call that isn't cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from typing import Any, TextIO

import httpx2
import orjson
from mcp import Client, StdioServerParameters, types
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

from umaserve.system import program, sandbox
from umaserve.tool_servers.answers import MAX_TOOLS, text_of, tools_of, why

LIST_S = 30.0
"""How long a server may take to connect or to list its tools."""
LOOK_S = 30.0
"""How often it is asked for them again."""
FIRST_AGAIN_S, LAST_AGAIN_S = 1.0, 60.0
"""How long is waited before the next try with a server that failed: twice as long each time, from and to that."""
MAX_AT_A_TIME = 8
"""Calls that a server has at a time; others wait."""
MAX_SCHEMA_BYTES = 64 << 10
MAX_DESCRIPTION = 8192
MAX_LINE_BYTES = 16 << 20
_TAIL = 300


class _Server:
    """Connection to one server, made again whenever it is lost."""

    def __init__(self, about: Mapping[str, Any], host: _Host) -> None:
        self.client: Client | None = None
        self.about = about
        self.room = asyncio.Semaphore(MAX_AT_A_TIME)
        self._host = host
        self._look = asyncio.Event()
        """Whether it is to be asked now whether it is still there."""
        self._said: object = None

    async def keep(self) -> None:
        """Connect, and tell which tools there are, until the process ends."""
        again_s = FIRST_AGAIN_S
        while True:
            last_words = _LastWords()
            try:
                async with self._transport(last_words) as transport, contextlib.AsyncExitStack() as stack:
                    # No scope of anyio's, which the client's own would outlive.
                    async with asyncio.timeout(LIST_S):
                        client = await stack.enter_async_context(Client(transport))
                    while True:
                        async with asyncio.timeout(LIST_S):
                            tools = await tools_of(client)
                        self.client = client
                        self._say(tools=self._listed(tools))
                        again_s = FIRST_AGAIN_S
                        await self._until_next_look()
            except Exception as error:
                problem = self._late() if isinstance(error, TimeoutError) else last_words.text or why(error)
                self._say(problem=problem[:_TAIL])
            finally:
                self.client = None
                last_words.close()
            await asyncio.sleep(again_s)
            again_s = min(2 * again_s, LAST_AGAIN_S)

    def look(self) -> None:
        """Find out soon whether the server is still there."""
        self._look.set()

    async def _until_next_look(self) -> None:
        self._look.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_S):
                await self._look.wait()

    def _say(self, **news: object) -> None:
        if news != self._said:
            self._said = news
            self._host.say({"server": self.about["name"], **news})

    def _late(self) -> str:
        offline = self.about["command"] and not self.about["network"]
        hint = ": it has no network, unless its table has network = true" if offline else ""
        return f"no answer within {LIST_S:.0f} s{hint}"

    def _listed(self, tools: list[types.Tool]) -> list[dict[str, Any]]:
        if len(tools) > MAX_TOOLS:
            raise ValueError(f"it has more than {MAX_TOOLS} tools: name those that are wanted in only")
        wanted = [tool for tool in tools if not self.about["only"] or tool.name in self.about["only"]]
        return [_shown(tool) for tool in wanted]

    @contextlib.asynccontextmanager
    async def _transport(self, last_words: _LastWords) -> AsyncIterator[Any]:
        about = self.about
        if url := about["url"]:
            timeout = httpx2.Timeout(LIST_S, read=about["timeout"])
            async with httpx2.AsyncClient(headers=dict(about["headers"]), timeout=timeout) as http:
                yield streamable_http_client(url, http_client=http)
            return
        network = "network" if about["network"] else "none"
        confined = ["-I", sandbox.__file__, str(about["memory"]), network, about["user"], *about["command"]]
        parameters = StdioServerParameters(command=sys.executable, args=confined, env=dict(about["env"]))
        yield stdio_client(parameters, errlog=last_words.file)


class _LastWords:
    """The last line that a program has written to its standard error."""

    def __init__(self) -> None:
        ours, theirs = os.pipe()
        self.file: TextIO = os.fdopen(theirs, "w")
        self._ours = ours
        self._last = b""
        os.set_blocking(ours, False)
        asyncio.get_running_loop().add_reader(ours, self._read)

    @property
    def text(self) -> str:
        self._read()
        lines = [line.strip() for line in self._last.decode(errors="replace").split("\n")]
        return next((line for line in reversed(lines) if line), "")

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._ours, 1 << 16):
                self._last = (self._last + data)[-4 * _TAIL :]

    def close(self) -> None:
        """Hear no more."""
        asyncio.get_running_loop().remove_reader(self._ours)
        self.file.close()
        os.close(self._ours)


class _Host:
    """All servers, and the calls that run."""

    def __init__(self, writer: asyncio.StreamWriter, servers: list[Mapping[str, Any]]) -> None:
        self._writer = writer
        self._servers = {about["name"]: _Server(about, self) for about in servers}
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._kept = [asyncio.create_task(server.keep()) for server in self._servers.values()]

    def take(self, asked: Mapping[str, Any]) -> None:
        """Begin or cancel a call."""
        if "cancel" in asked:
            if (call := self._calls.get(asked["cancel"])) is not None:
                call.cancel()
            return
        number = asked["id"]
        call = self._calls[number] = asyncio.create_task(self._call(asked))
        call.add_done_callback(lambda _call: self._calls.pop(number))

    def say(self, message: Mapping[str, object]) -> None:
        """Tell the daemon."""
        self._writer.write(orjson.dumps(message) + b"\n")

    async def end(self) -> None:
        """End what runs, and close all connections."""
        tasks = [*self._calls.values(), *self._kept]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _call(self, asked: Mapping[str, Any]) -> None:
        server = self._servers[asked["server"]]
        failed = True
        try:
            async with server.room:
                if server.client is None:
                    raise ConnectionError("its server is not connected")
                result = await server.client.call_tool(asked["tool"], asked["arguments"], server.about["timeout"])
            text, failed = text_of(result, server.about["max_result"]), bool(result.is_error)
        except Exception as error:  # Whatever a server does, the model is told, and the answer goes on.
            text = f"The call failed: {why(error)[:_TAIL]}"
            server.look()
        self.say({"id": asked["id"], "text": text, "failed": failed})


def _shown(tool: types.Tool) -> dict[str, Any]:
    schema = orjson.dumps(tool.input_schema).decode()
    if len(schema.encode()) > MAX_SCHEMA_BYTES:
        raise ValueError(f"the schema of {tool.name[:64]} has more than {MAX_SCHEMA_BYTES} bytes: leave it out of only")
    read_only = tool.annotations is not None and bool(tool.annotations.read_only_hint)
    description = (tool.description or "")[:MAX_DESCRIPTION]
    return {"name": tool.name, "description": description, "parameters": schema, "read_only": read_only}


async def _serve(ours: socket.socket) -> None:
    reader, writer = await asyncio.open_connection(sock=ours, limit=MAX_LINE_BYTES)
    host = _Host(writer, orjson.loads(await reader.readline()))
    while line := await reader.readline():
        host.take(orjson.loads(line))
    await host.end()


def main() -> None:
    """Serve the daemon on the socket whose descriptor is the argument, until it closes it."""
    program.begin(nice=5)
    logging.disable()
    asyncio.run(_serve(socket.socket(fileno=int(sys.argv[1]))))


if __name__ == "__main__":
    main()
