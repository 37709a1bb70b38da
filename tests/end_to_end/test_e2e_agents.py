"""Coding agents, unmodified, started by ``umaserve launch``, on the real daemon with a scripted engine; and what they
asked there, asked again of a real engine.

``agents/package.json`` has their versions; ``scripts/agents install`` puts them into a folder outside the repository,
and ``scripts/agents`` also runs them with a model.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from cached_prompts import RECURRENT, USAGE, WINDOWED, Body, Cached, asked
from coding_agents import AGENTS, SCENARIOS, Agent, World, edits_a_file, missing, scripted
from daemon import Daemon
from recording_proxy import Recorded
from scripted_daemon import Script
from tiny_models import tiny_model

from umaserve.engine.llama.model import find

FLAGS = ("--http", "127.0.0.1:0", "--parallel", "2", "--n-ctx", "32768", "--no-speculation")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Daemon, Script]]:
    daemon, script = scripted(tmp_path_factory.mktemp("agents"))
    yield daemon, script
    assert daemon.stop() == 0, daemon.logs
    assert "Traceback" not in daemon.logs, daemon.logs


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("agent", AGENTS, ids=lambda agent: agent.name)
def test_an_agent(agent: Agent, scenario: str, served: tuple[Daemon, Script], tmp_path: Path) -> None:
    if lacks := missing(agent):
        pytest.skip(lacks)
    SCENARIOS[scenario](World(agent, *served, tmp_path))


@pytest.fixture(scope="module", params=AGENTS, ids=lambda agent: agent.name)
def world(
    request: pytest.FixtureRequest, served: tuple[Daemon, Script], tmp_path_factory: pytest.TempPathFactory
) -> World:
    """An agent, and what it has asked for a task and, in a second run, for another one in the same conversation."""
    if lacks := missing(request.param):
        pytest.skip(lacks)
    world = World(request.param, *served, tmp_path_factory.mktemp("asked"))
    edits_a_file(world)
    return world


@pytest.mark.parametrize("architecture", ["llama", WINDOWED, RECURRENT])
def test_what_an_agent_asks_is_computed_once(
    own_daemon: Callable[..., Daemon], world: World, architecture: str, tmp_path: Path
) -> None:
    """The models are tiny: the default one has room for no conversation but Codex's, and takes minutes for it."""
    model = tiny_model(tmp_path / "model.gguf", architecture, tokenizer=find(""), context_length=32768)
    flags = [*FLAGS, "--model", model, "--kv-cache", str(tmp_path / "kv")]
    before, after = world.runs
    daemon = own_daemon(*flags)
    first, *later = asked_again(daemon, before)
    assert first.cached < first.prompt / 10, first
    assert len(later) == 4
    assert all(told.nearly_whole for told in later), later
    assert daemon.stop() == 0, daemon.logs
    daemon = own_daemon(*flags)
    daemon.wait_for(lambda values: values["disk_cache_bytes"] > 0)
    told = asked_again(daemon, before[-1:] if world.agent.tells_changes else after)
    assert len(told) == 1
    assert told[0].nearly_whole, told


def asked_again(daemon: Daemon, run: Sequence[Recorded]) -> list[Cached]:
    """What the requests of the agent's conversation are told. It asks others in between, without tools or with
    others: for titles, and for what it wants to remember."""
    bodies = [(path, json.loads(one.body)) for one in run if (path := _path(one)) in USAGE]
    told = [(_tools(body), asked(daemon, path, _shortly(body))) for path, body in bodies]
    [conversation, *_] = [tools for tools, _ in told if tools]
    return [cached for tools, cached in told if tools == conversation]


def _path(one: Recorded) -> str:
    return one.request.removeprefix("POST ").partition("?")[0]


def _tools(body: Body) -> list[Body]:
    tools: list[Body] = body.get("tools", [])
    return tools


def _shortly(body: Body) -> Body:
    """The same request, for a short answer in one piece."""
    limit = "max_output_tokens" if "input" in body else "max_tokens"
    return {name: value for name, value in body.items() if not name.startswith("stream")} | {limit: 4}
