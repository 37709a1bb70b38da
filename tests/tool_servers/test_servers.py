"""What the daemon knows of its tool servers, with a stand-in for the process that talks with them."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import pytest
from clock import Clock

from umaserve.core.errors import ConfigError, RequestError
from umaserve.core.server_tools import CallResult, ServerCall, ServerTool
from umaserve.net.loop import Loop
from umaserve.sessions.caller import Caller
from umaserve.settings.tool_servers import ToolServer
from umaserve.tool_servers import servers
from umaserve.tool_servers.servers import MAX_RUNNING, ToolServers

ANN = Caller("responses", "uid:1", key="ann")
TOOL = {"name": "look_up", "description": "", "parameters": '{"type":"object"}', "read_only": True}
ABOUT = ToolServer("a", ("ann",), url="http://host/mcp")


class StandInProcess:
    """A process that says what the test says."""

    def __init__(self, _loop: Loop, said: Callable[[bytes], None], ended: Callable[[str], None]) -> None:
        self._said = said
        self.ended = ended
        self.sent: list[Any] = []
        self.closed = False

    def send(self, line: bytes) -> None:
        assert b"\n" not in line
        self.sent.append(json.loads(line))

    def says(self, value: object) -> None:
        self._said(value if isinstance(value, bytes) else json.dumps(value).encode())

    def close(self) -> None:
        self.closed = True


class World:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = Clock()
        self.loop = Loop(self.clock)
        self.processes: list[StandInProcess] = []
        monkeypatch.setattr(servers, "ToolProcess", self._process)
        monkeypatch.setattr(servers, "_is_there", lambda _package: True)
        self.servers = ToolServers(self.loop, [ABOUT])
        self.results: list[CallResult] = []
        self.servers.start()

    def _process(self, *arguments: Any) -> StandInProcess:
        self.processes.append(StandInProcess(*arguments))
        return self.processes[-1]

    @property
    def process(self) -> StandInProcess:
        return self.processes[-1]

    def call(self, arguments: str = "{}") -> Callable[[], None]:
        return self.servers.call(ServerCall("a", "look_up", arguments), ANN, "r", self.results.append)

    def tools(self, caller: Caller | None = ANN, name: str = "a") -> Any:
        try:
            return self.servers.tools(caller, name, "f")
        except RequestError as error:
            return error.message

    def later(self, seconds: float) -> None:
        self.clock.now += seconds
        self.loop.run_due()


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_the_process_is_told_of_the_servers_and_tells_of_their_tools(world: World) -> None:
    assert [about["name"] for about in world.process.sent[0]] == ["a"]
    assert world.tools() == "f: the tool server a can't be used now: the daemon is still connecting to it"
    world.process.says({"server": "a", "tools": [TOOL]})
    assert world.tools() == (ServerTool("look_up", "", '{"type":"object"}', True),)
    world.process.says({"server": "a", "problem": "it is gone\n"})
    assert world.tools() == "f: the tool server a can't be used now: 'it is gone\\n'"


def test_who_may_not_is_told_of_none(world: World) -> None:
    for caller in (None, Caller("responses", "uid:1", key="bob")):
        assert world.tools(caller).startswith('f: expected no MCP tool, got "a"')
    assert world.tools(name="b").startswith('f: expected "a", got "b"')


def test_a_call_and_its_result(world: World) -> None:
    world.call('{\n  "word": "ferry"\n}')
    assert world.process.sent[1] == {"id": 1, "server": "a", "tool": "look_up", "arguments": {"word": "ferry"}}
    assert not world.servers.idle
    world.process.says({"id": 1, "text": "a boat", "failed": False})
    world.process.says({"id": 1, "text": "twice", "failed": False})
    assert world.results == [CallResult("a boat", failed=False)]
    assert world.servers.idle


def test_a_call_that_is_cancelled_has_no_result(world: World) -> None:
    cancel = world.call()
    cancel()
    assert world.process.sent[-1] == {"cancel": 1}
    world.process.says({"id": 1, "text": "late", "failed": False})
    cancel()
    assert (world.results, world.servers.idle) == ([], True)


@pytest.mark.parametrize("arguments", ["", "[]", "5", '{"a": '])
def test_arguments_that_are_no_object_are_not_sent(world: World, arguments: str) -> None:
    world.call(arguments)
    assert not world.results, "whoever calls has no result before the call returns"
    world.later(0)
    assert [result.text for result in world.results] == ["The call failed: its arguments are no JSON object"]
    assert len(world.process.sent) == 1


def test_too_many_calls(world: World) -> None:
    for _ in range(MAX_RUNNING + 1):
        world.call()
    world.later(0)
    assert [result.text for result in world.results] == ["The call failed: too many calls run"]


def test_a_process_that_ends_fails_its_calls_and_is_started_again(world: World) -> None:
    world.process.says({"server": "a", "tools": [TOOL]})
    world.call()
    world.process.ended("it was killed")
    assert [result.text for result in world.results] == ["The call failed: its server was lost"]
    assert world.tools() == "f: the tool server a can't be used now: it was killed"
    world.call()
    world.later(0)
    assert world.results[-1].text == "The call failed: its server is not connected"
    for waits in (1, 2, 4, 8, 16, 32, 60, 60):
        n = len(world.processes)
        world.later(waits - 0.01)
        assert len(world.processes) == n
        world.later(0.02)
        assert len(world.processes) == n + 1
        world.process.ended("again")


@pytest.mark.parametrize(
    "said",
    [
        b"{",
        b"\xff",
        b"[]",
        b"",
        {},
        {"id": "1", "text": "", "failed": False},
        {"id": 1, "text": 5, "failed": False},
        {"server": "b", "tools": []},
        {"server": "a", "tools": 5},
        {"server": "a", "tools": [{**TOOL, "parameters": "[]"}]},
        {"server": "a", "tools": [{**TOOL, "parameters": "{"}]},
        {"server": "a", "tools": [{**TOOL, "more": 1}]},
        {"server": "a", "tools": [{**TOOL, "read_only": 1}]},
        {"server": "a", "problem": None},
    ],
)
def test_what_can_not_be_understood_changes_nothing(
    world: World, said: object, caplog: pytest.LogCaptureFixture
) -> None:
    world.process.says({"server": "a", "tools": [TOOL]})
    world.call()
    with caplog.at_level(logging.ERROR):
        world.process.says(said)
    assert "sent an invalid message" in caplog.text
    assert (len(world.tools()), world.results) == (1, [])


def test_the_package_that_talks_with_servers_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "_is_there", lambda _package: False)
    with pytest.raises(ConfigError, match=r"tools\.a is set, and mcp is not installed: pip install 'umaserve\[mcp\]'"):
        ToolServers(Loop(), [ABOUT])
    assert not ToolServers(Loop(), []).any, "who names none needs none"


def test_the_end(world: World) -> None:
    world.servers.close()
    assert world.process.closed
    world.servers.start()
    assert len(world.processes) == 1
