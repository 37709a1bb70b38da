"""What the daemon knows of its tool servers, and the calls of their tools."""

from __future__ import annotations

import functools
import importlib.util
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import orjson

from umaserve.core.errors import ConfigError, Fault, RequestError
from umaserve.core.server_tools import CallResult, ServerCall, ServerTool
from umaserve.net.loop import Loop
from umaserve.sessions.caller import Caller
from umaserve.settings.tool_servers import ToolServer
from umaserve.tool_servers.process import ToolProcess

log = logging.getLogger(__name__)

FIRST_AGAIN_S, LAST_AGAIN_S = 1.0, 60.0
"""How long a new process is waited for: twice as long each time, from and to that."""
MAX_RUNNING = 256
"""Calls at a time, those that wait for their server among them."""
_CONNECTING = "the daemon is still connecting to it"

Take = Callable[[CallResult], None]


@dataclass(slots=True)
class _Known:
    """A server, and its tools; ``None``: they aren't known, and ``problem`` says why."""

    about: ToolServer
    tools: tuple[ServerTool, ...] | None = None
    problem: str = _CONNECTING


@dataclass(frozen=True, slots=True)
class _Running:
    """A call that was not answered yet."""

    call: ServerCall
    request_id: str
    caller: Caller
    began_at: float
    take: Take


class ToolServers:
    """All tool servers of the daemon. Its process is started by the first of them, and again where it ends."""

    def __init__(self, loop: Loop, servers: Sequence[ToolServer]) -> None:
        """Raises ConfigError where what talks with servers is not installed."""
        if servers and not _is_there("mcp"):
            problem = f"tools.{servers[0].name} is set, and mcp is not installed"
            raise ConfigError(f"{problem}: pip install 'umaserve[mcp]', or remove the table")
        self._loop = loop
        self._servers = {about.name: _Known(about) for about in servers}
        self._process: ToolProcess | None = None
        self._running: dict[int, _Running] = {}
        self._n_calls = self._n_failed = 0
        self._again_s = FIRST_AGAIN_S
        self._closed = False

    @property
    def any(self) -> bool:
        """Whether there are any."""
        return bool(self._servers)

    @property
    def idle(self) -> bool:
        """Whether no call runs."""
        return not self._running

    def start(self) -> None:
        """Connect to all servers, if there are any."""
        if not self._servers or self._closed:
            return
        try:
            self._process = ToolProcess(self._loop, self._on_said, self._on_ended)
        except OSError as error:
            self._on_ended(f"the process of the tool servers can't be started: {error.strerror}")
            return
        self._process.send(orjson.dumps([asdict(known.about) for known in self._servers.values()]))

    def close(self) -> None:
        """Leave all servers: the daemon ends."""
        self._closed = True
        if self._process is not None:
            self._process.close()

    def snapshot(self) -> Mapping[str, int]:
        """Metrics of the calls; none without tool servers."""
        if not self._servers:
            return {}
        return {
            "tool_servers_connected": sum(known.tools is not None for known in self._servers.values()),
            "tool_calls_running": len(self._running),
            "tool_calls_total": self._n_calls,
            "tool_call_failures_total": self._n_failed,
        }

    # -- for requests --------------------------------------------------------------------------------------------

    def tools(self, caller: Caller | None, name: str, field: str) -> Sequence[ServerTool]:
        """The tools of the server of this name. Raises ``RequestError`` with ``field`` where there is none that the
        caller may use, and where it isn't connected."""
        allowed = [] if caller is None else [one.about.name for one in self._servers.values() if _allows(one, caller)]
        if name not in allowed:
            expected = " or ".join(f'"{one}"' for one in allowed) or "no MCP tool"
            why = "the operator names the servers that this daemon calls, and who may use them"
            raise RequestError(Fault.BAD_REQUEST, field, f'expected {expected}, got "{name[:64]}": {why}')
        known = self._servers[name]
        if known.tools is None:
            problem = f"the tool server {name} can't be used now: {known.problem}"
            raise RequestError(Fault.MODEL_NOT_LOADED, field, problem, retry_after_s=self._again_s)
        return known.tools

    def call(self, call: ServerCall, caller: Caller, request_id: str, take: Take) -> Callable[[], None]:
        """Have a tool called, for an answer that has its server's tools; ``take`` gets the result later, unless the
        function that is returned is called before."""
        self._n_calls += 1
        number, running = self._n_calls, _Running(call, request_id, caller, self._loop.now(), take)
        self._running[number] = running
        problem = self._begin(number, call)
        if problem:
            failed = CallResult(f"The call failed: {problem}", failed=True)
            self._loop.call_soon(functools.partial(self._end, number, failed))
        return functools.partial(self._cancel, number)

    def _begin(self, number: int, call: ServerCall) -> str:
        """Ask the process; returns why that can't be, if so."""
        if self._process is None:
            return "its server is not connected"
        if len(self._running) > MAX_RUNNING:
            return "too many calls run"
        if not _is_object(call.arguments):
            return "its arguments are no JSON object"
        # Written anew: models write them in several lines.
        arguments = orjson.loads(call.arguments)
        asked = {"id": number, "server": call.server, "tool": call.tool, "arguments": arguments}
        self._process.send(orjson.dumps(asked))
        return ""

    def _cancel(self, number: int) -> None:
        if (running := self._running.pop(number, None)) is not None:
            self._log(running, "cancelled")
            if self._process is not None:
                self._process.send(orjson.dumps({"cancel": number}))

    # -- what the process says -----------------------------------------------------------------------------------

    def _on_said(self, line: bytes | bytearray) -> None:
        try:
            said = orjson.loads(line)
        except orjson.JSONDecodeError:
            said = None
        match said:
            case {"id": int(number), "text": str(text), "failed": bool(failed)}:
                self._end(number, CallResult(text, failed))
            case {"server": str(name), "problem": str(problem)} if name in self._servers:
                self._lose(self._servers[name], problem)
            case {"server": str(name), "tools": list(tools)} if name in self._servers and all(map(_is_tool, tools)):
                known, self._again_s = self._servers[name], FIRST_AGAIN_S
                known.tools = tuple(ServerTool(**tool) for tool in tools)
                log.info("tool server connected", extra={"fields": {"server": name, "tools": len(tools)}})
            case _:
                log.error("the tool servers' process sent an invalid message")

    def _lose(self, known: _Known, problem: str) -> None:
        known.tools, known.problem = None, problem if problem.isprintable() else repr(problem)
        log.warning("tool server lost", extra={"fields": {"server": known.about.name, "problem": known.problem}})

    def _on_ended(self, how: str) -> None:
        self._process = None
        for known in self._servers.values():
            self._lose(known, how)
        for number in [*self._running]:
            self._end(number, CallResult("The call failed: its server was lost", failed=True))
        self._loop.call_later(self._again_s, self.start)
        self._again_s = min(2 * self._again_s, LAST_AGAIN_S)

    def _end(self, number: int, result: CallResult) -> None:
        # One that was cancelled meanwhile is no longer there.
        if (running := self._running.pop(number, None)) is not None:
            self._n_failed += result.failed
            self._log(running, "failed" if result.failed else "ok")
            running.take(result)

    def _log(self, running: _Running, end: str) -> None:
        fields = {
            "server": running.call.server,
            "tool": running.call.tool,
            "request": running.request_id,
            "peer": running.caller.peer,
            **({"key": running.caller.key} if running.caller.key else {}),
            "seconds": round(self._loop.now() - running.began_at, 3),
            "end": end,
        }
        log.info("tool call ended", extra={"fields": fields})


def _is_there(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def _allows(known: _Known, caller: Caller) -> bool:
    classes = {caller.priority.name.lower(), *(["operator"] if caller.operator else [])}
    return known.about.allows(caller.key, classes)


def _is_tool(value: Any) -> bool:
    match value:
        case {"name": str(), "description": str(), "parameters": str(schema), "read_only": bool(), **rest} if not rest:
            return _is_object(schema)
    return False


def _is_object(text: str) -> bool:
    try:
        return isinstance(orjson.loads(text), dict)
    except orjson.JSONDecodeError:
        return False
