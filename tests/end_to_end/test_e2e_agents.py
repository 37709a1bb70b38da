"""Coding agents, unmodified, started by ``umaserve launch``, on the real daemon with a scripted engine.

``agents/package.json`` has their versions; ``scripts/agents install`` puts them into a folder outside the repository,
and ``scripts/agents`` also runs them with a model.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from coding_agents import AGENTS, SCENARIOS, Agent, World, missing, scripted
from daemon import Daemon
from scripted_daemon import Script


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
