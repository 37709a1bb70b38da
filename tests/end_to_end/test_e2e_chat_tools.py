"""``umaserve chat --mcp``: the real program and daemon, with tools of MCP servers, and a script in a model's place."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from coding_agents import scripted
from daemon import ANSWER_S

pytest.importorskip("mcp", reason="mcp is not installed (umaserve[peers])")

SUPPORT = Path(__file__).parent.parent / "support"
NOTES = "Greetings are short."


class World:
    """A daemon with a script, a folder with notes, and a file that names a server which reads them."""

    def __init__(self, folder: Path) -> None:
        self.daemon, self.script = scripted(folder)
        (folder / "notes").mkdir()
        (folder / "notes" / "notes.txt").write_text(NOTES)
        self.servers = folder / "servers.json"
        self.own = {
            "files": {"command": sys.executable, "args": [str(SUPPORT / "mcp_files.py"), str(folder / "notes")]}
        }
        self.name(self.own)

    def name(self, servers: object) -> None:
        self.servers.write_text(json.dumps({"mcpServers": servers}))

    def chat(self, *arguments: str, typed: str = "") -> subprocess.CompletedProcess[str]:
        url = ("--url", f"http://{self.daemon.http}")
        command = [sys.executable, "-m", "umaserve", "chat", *url, "--mcp", str(self.servers), *arguments]
        return subprocess.run(command, input=typed, capture_output=True, text=True, timeout=ANSWER_S)

    @property
    def results(self) -> list[str]:
        """What the model was last told of its calls."""
        return [turn["content"] for turn in self.script.requests[-1]["turns"] if turn["role"] == "tool"]


@pytest.fixture(scope="module")
def module_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    world = World(tmp_path_factory.mktemp("world"))
    yield world
    world.daemon.stop()


@pytest.fixture
def world(module_world: World) -> World:
    module_world.script.clear()
    module_world.name(module_world.own)
    return module_world


def test_a_call_that_is_allowed_runs_and_its_result_goes_back(world: World) -> None:
    world.script.add("", ("read_file", {"path": "notes.txt"}))
    world.script.add("They are short.")
    done = world.chat("--allow", "read_file", "How are greetings?")
    assert (done.returncode, done.stdout.strip()) == (0, "They are short.")
    assert world.results == [NOTES]
    assert 'files: read_file {"path": "notes.txt"}' in done.stderr
    assert world.script.requests[0]["tools"] == ["read_file", "environment"]


def test_a_conversation_keeps_calls_and_results(world: World) -> None:
    world.script.add("", ("read_file", {"path": "notes.txt"}), ("read_file", {"path": "notes.txt"}))
    for answer in ("They are short.", "I said so."):
        world.script.add(answer)
    done = world.chat("--allow", "read_file", typed="How are greetings?\nReally?\n")
    assert done.stdout.split("\n")[-3:] == ["They are short.", "I said so.", ""]
    roles = [turn["role"] for turn in world.script.requests[-1]["turns"]]
    assert roles == ["user", "assistant", "tool", "tool", "assistant", "user"]


def test_nothing_runs_that_nobody_allowed(world: World) -> None:
    world.script.add("", ("read_file", {"path": "notes.txt"}))
    world.script.add("A pity.")
    done = world.chat("How are greetings?")
    assert (done.returncode, done.stdout.strip()) == (0, "A pity.")
    assert world.results == ["The user does not allow this call."]
    assert "not allowed" in done.stderr


def test_the_model_is_told_what_fails(world: World) -> None:
    world.script.add("", ("read_file", {"path": "missing.txt"}), ("read_file", {}))
    world.script.add("A pity.")
    done = world.chat("--allow", "read_file", "What is there?")
    assert (done.returncode, done.stdout.strip()) == (0, "A pity.")
    assert [told.split(":")[0] for told in world.results] == ["The tool reports an error"] * 2


def test_a_server_is_given_few_variables(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "x")
    world.script.add("", ("environment", {}))
    world.script.add("Few.")
    world.chat("--allow", "environment", "Which are there?")
    (listed,) = world.results
    assert "PATH" in listed.split()
    assert "SECRET_TOKEN" not in listed


def test_calls_end_at_a_bound(world: World) -> None:
    for _ in range(20):
        world.script.add("", ("environment", {}))
    done = world.chat("--allow", "environment", "Which are there?")
    assert (done.returncode, done.stderr.count("files: environment")) == (0, 16)


def test_a_server_over_http_is_the_daemon_itself(world: World) -> None:
    world.name({"box": {"type": "http", "url": f"http://{world.daemon.http}/mcp"}})
    world.script.add("", ("status", {}))
    world.script.add("It is there.")
    done = world.chat("--allow", "status", "Which models are there?")
    assert (done.returncode, done.stdout.strip()) == (0, "It is there.")
    assert '"scripted"' in world.results[0]


@pytest.mark.parametrize(
    ("servers", "flags", "told"),
    [
        ({"gone": {"command": "/no/such/program"}}, [], "the MCP server gone can't be used: "),
        ({"gone": {"url": "http://127.0.0.1:9/mcp"}}, [], "the MCP server gone can't be used: "),
        ({"files": {}}, [], "mcpServers.files: expected command or url, got neither"),
        ({"files": {"command": 1}}, [], "mcpServers.files.command: expected a string, got a whole number"),
        ([], [], "mcpServers: expected an object, got an array"),
        ({}, ["--allow", "read_file"], "--allow: no tool is named read_file: the servers have none"),
    ],
)
def test_what_can_not_be_used_is_named(world: World, servers: object, flags: list[str], told: str) -> None:
    world.name(servers)
    done = world.chat(*flags, "Hello?")
    assert done.returncode == 1
    assert told in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (
            ["--allow", "read_fil"],
            "umaserve: --allow: no tool is named read_fil: the servers have read_file, environment\n",
        ),
        (["--max-tokens", "0"], "umaserve: max_tokens: "),
    ],
)
def test_an_error_beside_a_server_is_said_in_a_line(world: World, flags: list[str], told: str) -> None:
    done = world.chat(*flags, "Hello?")
    assert done.returncode == 1
    assert told in done.stderr
    assert "Traceback" not in done.stderr
