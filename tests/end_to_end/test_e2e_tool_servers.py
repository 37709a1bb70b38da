"""MCP servers whose tools the daemon itself calls, in OpenAI's Responses API by OpenAI's own client.

The servers are made with the protocol's own package; the model is made to call."""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mcp_over_http
import mcp_tools
import openai
import pytest
from daemon import ANSWER_S, Daemon

from umaserve.access.keys import KeyFile

PROGRAM = mcp_tools.__file__
NEVER = {"type": "mcp", "server_label": "tools", "require_approval": "never"}


class World:
    """A daemon, a client of it, and the folder of its tool servers."""

    def __init__(self, folder: Path, daemon: Daemon, key: str = "none") -> None:
        self.folder = folder
        self.daemon = daemon
        address = f"http://{daemon.http}/v1"
        self.client = openai.OpenAI(base_url=address, api_key=key, max_retries=0, timeout=ANSWER_S)

    def create(self, **wanted: Any) -> Any:
        fields: dict[str, Any] = {"model": "any", "input": "Hello!", "max_output_tokens": 40, "temperature": 0}
        return self.client.responses.create(**fields | wanted)

    def call(self, tool: str, **wanted: Any) -> Any:
        """The item of a call that the model has to make."""
        choice = {"type": "mcp", "server_label": "tools", "name": tool}
        response = self.create(**{"tools": [NEVER], "tool_choice": choice} | wanted)
        (call,) = [item for item in response.output if item.type == "mcp_call"]
        return call


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def table(name: str, folder: Path, port: int, **more: Any) -> str:
    settings = {"command": [sys.executable, PROGRAM, str(folder), str(port)], "allow": ["*"], "memory": "256MiB"}
    values = {"max_result": "1KiB", **settings, **more}
    return "".join([f"[tools.{name}]\n", *(f"{key} = {json.dumps(value)}\n" for key, value in values.items())])


@contextlib.contextmanager
def serving(folder: Path, tables: str, *flags: str, key: str = "none") -> Iterator[World]:
    settings = folder / "umaserve.toml"
    settings.write_text(tables)
    variables = {"UMA_THREADS": "1", "SECRET": "of the daemon's"}
    daemon = Daemon(folder, "--http", "127.0.0.1:0", "--config", str(settings), *flags, env=variables)
    n = tables.count("[tools.") - tables.count(".env]")
    daemon.wait_for(lambda values: values["tool_servers_connected"] == n)
    world = World(folder, daemon, key)
    try:
        with world.client:
            yield world
    finally:
        assert daemon.stop() == 0, daemon.logs
    assert "Traceback" not in daemon.logs, daemon.logs


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, port: int) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("daemon")
    tables = table("tools", folder, port) + '[tools.tools.env]\nSECRET = "of the table\'s"\n'
    with serving(folder, tables + table("online", folder, port, network=True, only=["connect"])) as world:
        yield world


# -- what a client gets ------------------------------------------------------------------------------------------


def test_a_stream_tells_of_the_tools_the_call_and_the_answer(world: World) -> None:
    choice = {"type": "mcp", "server_label": "tools", "name": "look_up"}
    events = list(world.create(tools=[NEVER], tool_choice=choice, stream=True))
    assert [event.sequence_number for event in events] == [*range(len(events))]
    types = [event.type for event in events if not event.type.endswith(".delta")]
    assert types[-1] in ("response.completed", "response.incomplete"), "the model may write more than it may"
    assert types[:-1] == [
        *("response.created", "response.in_progress"),
        *("response.output_item.added", "response.mcp_list_tools.in_progress", "response.mcp_list_tools.completed"),
        "response.output_item.done",
        *("response.output_item.added", "response.mcp_call.in_progress", "response.mcp_call_arguments.done"),
        *("response.mcp_call.completed", "response.output_item.done"),
        *("response.output_item.added", "response.content_part.added", "response.output_text.done"),
        *("response.content_part.done", "response.output_item.done"),
    ]
    done = [event.item for event in events if event.type == "response.output_item.done"]
    response = events[-1].response
    assert response.output == done
    tools, call, message = done
    assert [tool.name for tool in tools.tools][:2] == ["look_up", "say"]
    assert tools.tools[0].description == "Look a word up."
    assert (json.loads(call.arguments), call.output) == ({"word": "ferry"}, "A ferry crosses water.")
    assert (call.status, call.error, call.server_label) == ("completed", None, "tools")
    deltas = [event.delta for event in events if event.type == "response.mcp_call_arguments.delta"]
    assert "".join(deltas) == call.arguments
    assert message.content[0].text == "".join(e.delta for e in events if e.type == "response.output_text.delta")
    # The second part reuses what the first one has computed.
    assert response.usage.input_tokens_details.cached_tokens > 0
    assert "end=ok" in world.daemon.logs
    assert "crosses water" not in world.daemon.logs, "no result is logged"


def test_the_next_response_knows_what_was_called(world: World) -> None:
    choice = {"type": "mcp", "server_label": "tools", "name": "look_up"}
    # A choice of one tool leaves the others out of the prompt.
    tool = {**NEVER, "allowed_tools": ["look_up"]}
    first = world.create(tools=[tool], tool_choice=choice)
    second = world.create(tools=[tool], previous_response_id=first.id, max_output_tokens=1)
    assert [item.type for item in second.output] == ["message"], "the tools were told before"
    # But for the end, all of this was the first one's, with the call and its result.
    assert second.usage.input_tokens_details.cached_tokens > 0.9 * second.usage.input_tokens


@pytest.mark.parametrize("approve", [True, False])
def test_a_call_waits_for_its_approval(world: World, approve: bool) -> None:
    tool = {"type": "mcp", "server_label": "tools"}
    choice = {"type": "mcp", "server_label": "tools", "name": "look_up"}
    asked = world.create(tools=[tool], tool_choice=choice)
    request = asked.output[-1]
    assert (request.type, request.name, asked.status) == ("mcp_approval_request", "look_up", "completed")
    answer: Any = {"type": "mcp_approval_response", "approval_request_id": request.id, "approve": approve}
    said = world.create(tools=[tool], tool_choice="none", previous_response_id=asked.id, input=[answer])
    calls = [item for item in said.output if item.type == "mcp_call"]
    if approve:
        assert [(call.output, call.approval_request_id) for call in calls] == [("A ferry crosses water.", request.id)]
        # It is made once: the items have it.
        again = world.create(tools=[tool], tool_choice="none", previous_response_id=said.id)
        assert [item.type for item in again.output] == ["message"]
    else:
        assert not calls


def test_only_some_calls_wait(world: World) -> None:
    wanted = {"never": {"read_only": True}}
    tool = {"type": "mcp", "server_label": "tools", "require_approval": wanted, "allowed_tools": ["look_up", "fail"]}
    assert world.call("look_up", tools=[tool]).output
    choice = {"type": "mcp", "server_label": "tools", "name": "fail"}
    response = world.create(tools=[tool], tool_choice=choice)
    assert [item.type for item in response.output] == ["mcp_list_tools", "mcp_approval_request"]
    assert [one.name for one in response.output[0].tools] == ["look_up", "fail"]


def test_a_failure_is_told_to_the_model(world: World) -> None:
    call = world.call("fail")
    assert (call.status, call.output) == ("failed", None)
    assert call.error == "The tool reports an error: Error executing tool fail"


def test_no_more_calls_than_wanted(world: World) -> None:
    tools = [NEVER]
    response = world.create(tools=tools, tool_choice={"type": "mcp", "server_label": "tools"}, max_tool_calls=1)
    calls = [item for item in response.output if item.type == "mcp_call"]
    assert len(calls) == 1
    assert response.output[-1].type == "message"


def test_a_response_in_the_background_has_its_tools_called(world: World) -> None:
    choice = {"type": "mcp", "server_label": "tools", "name": "look_up"}
    response = world.create(tools=[NEVER], tool_choice=choice, background=True)
    deadline = time.monotonic() + ANSWER_S
    while response.status in ("queued", "in_progress"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
        response = world.client.responses.retrieve(response.id)
    assert [item.type for item in response.output] == ["mcp_list_tools", "mcp_call", "message"]


@pytest.mark.parametrize(
    ("tool", "message"),
    [
        ({"server_label": "others"}, 'tools[0].server_label: expected "tools" or "online", got "others"'),
        ({"server_url": "http://10.0.0.1/mcp"}, "tools[0].server_url: expected to be absent: the operator names"),
        ({"headers": {"a": "b"}}, "tools[0].headers: expected to be absent: the operator names"),
        ({"allowed_tools": ["no"]}, 'tools[0].allowed_tools: expected names of tools that tools has, got "no"'),
        ({"allowed_tools": 5}, "tools[0].allowed_tools: expected an array of names, or an object, got a whole number"),
        ({"require_approval": "x"}, 'tools[0].require_approval: expected "always" or "never", got "x"'),
        ({"require_approval": {"never": 1}}, "tools[0].require_approval.never: expected an object, got a whole number"),
    ],
)
def test_refusals(world: World, tool: dict[str, Any], message: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        world.create(tools=[{"type": "mcp", "server_label": "tools", **tool}])
    assert refused.value.body["message"].startswith(message)  # type: ignore[index]


def test_an_approval_of_nothing_is_refused(world: World) -> None:
    answer: Any = {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True}
    with pytest.raises(openai.BadRequestError, match="the id of a mcp_approval_request before it"):
        world.create(tools=[NEVER], input=[answer])
    asked: Any = {"type": "mcp_approval_request", "id": "mcpr_1", "server_label": "tools", "name": "rm"}
    with pytest.raises(openai.BadRequestError, match=r'a tool of the servers in tools, got "rm" of "tools"'):
        world.create(tools=[NEVER], input=[{**asked, "arguments": "{}"}, answer])
    with pytest.raises(openai.BadRequestError, match="a JSON object"):
        world.create(tools=[NEVER], input=[{**asked, "name": "fail", "arguments": "[]"}, answer])


# -- in a chat ---------------------------------------------------------------------------------------------------


def chat(world: World, **wanted: Any) -> Any:
    """A chat in which the model has to look a word up, and then answers."""
    fields: dict[str, Any] = {
        "model": "any",
        "messages": [{"role": "user", "content": "What is a ferry?"}],
        "tools": [{"type": "mcp", "server_label": "tools", "allowed_tools": ["look_up"]}],
        "tool_choice": "required",
        "max_tokens": 60,
        "temperature": 0,
    }
    return world.client.chat.completions.create(**fields | wanted)


def test_a_chat_has_tools_called_without_its_client(world: World) -> None:
    n = world.daemon.metrics()["tool_calls_total"]
    whole = chat(world)
    assert world.daemon.metrics()["tool_calls_total"] == n + 1
    (choice,) = whole.choices
    assert (choice.message.tool_calls, choice.message.role) == (None, "assistant")
    assert choice.message.content, "what the model says after the call"
    assert choice.finish_reason in ("stop", "length")
    # The second part, with the call and its result, reuses what the first one has computed.
    assert whole.usage.prompt_tokens_details.cached_tokens > 0
    chunks = [*chat(world, stream=True, stream_options={"include_usage": True})]
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert not [delta for delta in deltas if delta.tool_calls]
    assert [delta.role for delta in deltas if delta.role] == ["assistant"]
    reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    assert [reason for reason in reasons if reason] == [choice.finish_reason]
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_the_clients_own_calls_are_its_own(world: World) -> None:
    own = {"type": "function", "function": {"name": "own", "parameters": {"type": "object", "properties": {}}}}
    tools = [{"type": "mcp", "server_label": "tools", "allowed_tools": ["look_up"]}, own]
    asked = chat(world, tools=tools, tool_choice={"type": "function", "function": {"name": "own"}})
    (choice,) = asked.choices
    assert choice.finish_reason == "tool_calls"
    assert [call.function.name for call in choice.message.tool_calls] == ["own"]


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"n": 2}, "n: expected 1 where tools has one of the type mcp, got 2"),
        ({"tools": [{"type": "mcp"}]}, "tools[0].server_label: expected a non-empty string"),
        (
            {"tools": [{"type": "mcp", "server_label": "no"}]},
            'tools[0].server_label: expected "tools" or "online", got',
        ),
        (
            {"tools": [{"type": "mcp", "server_label": "tools", "allowed_tools": ["no"]}]},
            'tools[0].allowed_tools: expected names of tools that tools has, got "no"',
        ),
        ({"tools": [{"type": "mcp", "server_label": "tools"}] * 2}, "tools: expected tools of servers whose names"),
    ],
)
def test_refused_chats(world: World, wanted: dict[str, Any], message: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        chat(world, **wanted)
    assert refused.value.body["message"].startswith(message)  # type: ignore[index]


# -- what a server may do ----------------------------------------------------------------------------------------


def test_a_program_has_little_of_the_daemons(world: World) -> None:
    names = set(world.call("environment").output.split())
    assert "SECRET" in names
    assert names <= {"SECRET", "HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER", "LC_CTYPE"}
    assert world.call("take_memory").status == "failed"
    long = world.call("say", input="Be long.")
    assert long.output in ("of the table's", "x" * 1024 + "\n[3976 more characters are left out]")


def test_a_program_has_no_network_unless_its_table_says_so(world: World) -> None:
    assert world.call("connect").output == "Network is unreachable"
    tool = {**NEVER, "server_label": "online"}
    choice = {"type": "mcp", "server_label": "online", "name": "connect"}
    assert world.call("connect", tools=[tool], tool_choice=choice).output == "connected"


def test_a_client_that_leaves_cancels_its_call(world: World) -> None:
    choice = {"type": "mcp", "server_label": "tools", "name": "wait"}
    with world.create(tools=[NEVER], tool_choice=choice, stream=True) as events:
        next(event for event in events if event.type == "response.mcp_call_arguments.done")
        world.daemon.wait_for(lambda _values: (world.folder / "waits").exists())
        assert world.daemon.metrics()["tool_calls_running"] == 1
    world.daemon.wait_for(lambda values: values["tool_calls_running"] == 0)
    world.daemon.wait_for(lambda _values: (world.folder / "cancelled").exists())
    assert "end=cancelled" in world.daemon.logs


def test_a_server_that_ends_is_started_again(world: World) -> None:
    assert world.call("end").status == "failed"
    world.daemon.wait_for(lambda _values: "tool server lost server=tools" in world.daemon.logs)
    world.daemon.wait_for(lambda values: values["tool_servers_connected"] == 2)
    assert world.call("look_up").status == "completed"


# -- who may, and other ways -------------------------------------------------------------------------------------


def test_a_server_over_http(tmp_path: Path) -> None:
    with contextlib.ExitStack() as ended:
        server = ended.enter_context(mcp_over_http.serving())
        tables = f'[tools.tools]\nurl = "{server.address}"\nallow = ["*"]\nonly = ["fail"]\n'
        world = ended.enter_context(serving(tmp_path, tables))
        assert world.call("fail").status == "failed"
        with pytest.raises(openai.BadRequestError, match=r"tool_choice\.name:"):
            world.call("look_up")


def test_keys_that_may(tmp_path: Path, port: int) -> None:
    file = KeyFile(str(tmp_path / "keys.json"), missing_ok=True)
    made = {name: file.add(name) for name in ("alice", "bob")}
    made["root"] = file.add("root", group="operator")
    tables = table("tools", tmp_path, port, allow=["alice", "operator"])
    with serving(tmp_path, tables, "--api-keys", str(tmp_path / "keys.json"), key=made["alice"]) as world:
        assert world.call("look_up").status == "completed"
        assert World(tmp_path, world.daemon, made["root"]).call("look_up").status == "completed"
        with pytest.raises(openai.BadRequestError, match="expected no MCP tool"):
            World(tmp_path, world.daemon, made["bob"]).call("look_up")


def test_a_drain_waits_for_a_call(tmp_path: Path, port: int) -> None:
    with serving(tmp_path, table("tools", tmp_path, port, timeout=3.0), "--drain-timeout", "60") as world:
        choice = {"type": "mcp", "server_label": "tools", "name": "wait"}
        events = iter(world.create(tools=[NEVER], tool_choice=choice, stream=True))
        next(event for event in events if event.type == "response.mcp_call_arguments.done")
        world.daemon.wait_for(lambda _values: (world.folder / "waits").exists())
        world.daemon.process.terminate()
        last = [*events][-1]
        (call,) = [item for item in last.response.output if item.type == "mcp_call"]
        assert call.status == "failed"
        assert world.daemon.process.wait(ANSWER_S) == 0


def test_what_is_wrong_with_a_server_is_told(tmp_path: Path) -> None:
    settings = tmp_path / "umaserve.toml"
    settings.write_text('[tools.broken]\ncommand = ["/nowhere/at/all"]\nallow = ["*"]\n')
    daemon = Daemon(tmp_path, "--http", "127.0.0.1:0", "--config", str(settings), env={"UMA_THREADS": "1"})
    try:
        daemon.wait_for(lambda _values: "tool server lost" in daemon.logs)
        with pytest.raises(openai.InternalServerError) as refused:
            World(tmp_path, daemon).create(tools=[{"type": "mcp", "server_label": "broken"}])
        why = "the tool server broken can't be used now: /nowhere/at/all: can't be run: No such file or directory"
        assert refused.value.body["message"] == f"tools[0].server_label: {why}"  # type: ignore[index]
        assert refused.value.response.headers["retry-after"]
    finally:
        assert daemon.stop() == 0, daemon.logs
