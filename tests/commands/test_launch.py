"""``umaserve launch``: what an agent is started with, what ``--print`` shows, and what is said where something is
missing. ``test_e2e_agents`` runs the agents themselves."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from umaserve.cli import main
from umaserve.commands.agents import AGENTS

MODELS = [
    {"id": "chat", "aliases": ["gpt"], "context_length": 65536},
    {"id": "it's", "context_length": 32768},
]
TELLS = f"""#!/bin/sh
"exec" "{sys.executable}" "$0" "$@"
import json, os, sys
print(json.dumps({{"arguments": sys.argv[1:], "variables": dict(os.environ)}}))
"""
"""A stand-in for an agent, which prints what it was started with. A shell starts Python: its path may have spaces."""


class _Daemon(http.server.BaseHTTPRequestHandler):
    answer: tuple[int, Any]
    keys: list[str | None]

    def do_GET(self) -> None:
        self.keys.append(self.headers["Authorization"])
        status, value = self.answer
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@pytest.fixture
def daemon() -> Iterator[tuple[type[_Daemon], str]]:
    """A stand-in for a daemon with two models, and its URL."""
    handler = type("Handler", (_Daemon,), {"answer": (200, {"data": MODELS}), "keys": []})
    server = http.server.HTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield handler, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(autouse=True)
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder with programs, with all agents in it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for agent in AGENTS.values():
        (folder / agent.program).write_text(TELLS)
        (folder / agent.program).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return folder


def launched(*arguments: str, **more: str) -> tuple[dict[str, Any], str]:
    """What the agent was started with, and what was said before."""
    command = [sys.executable, "-m", "umaserve", "launch", *arguments]
    done = subprocess.run(command, env=os.environ | more, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


@pytest.mark.parametrize("name", AGENTS)
def test_an_agent_gets_the_address_the_model_and_its_context(
    name: str, daemon: tuple[type[_Daemon], str], tmp_path: Path
) -> None:
    _, url = daemon
    started, said = launched(name, "--url", f"{url}/", "--", "--flag", "two words")
    folder = tmp_path / "state/umaserve/agents" / name
    files = "".join(path.read_text() for path in folder.iterdir())
    told = json.dumps(started["variables"]) + json.dumps(started["arguments"]) + files
    assert started["arguments"][-2:] == ["--flag", "two words"]
    assert url in told
    assert "65536" in told
    assert "chat" in said
    assert url in said
    assert "65,536" in said


@pytest.mark.parametrize("name", AGENTS)
def test_a_shell_that_runs_what_is_printed_starts_the_same(
    name: str, daemon: tuple[type[_Daemon], str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    _, url = daemon
    arguments = (name, "--url", url, "--key", "sec'ret", "--model", "it's")
    assert main(["launch", *arguments, "--print", "--", "two words"]) == 0
    printed = capsys.readouterr().out
    assert not (tmp_path / "state").exists()
    environ = os.environ | {"ANTHROPIC_API_KEY": "somebody else's", "PATH": f"{os.environ['PATH']}:/usr/bin:/bin"}
    shell = subprocess.run(["/bin/sh", "-eu"], input=printed, env=environ, capture_output=True, text=True, timeout=60)
    assert shell.returncode == 0, shell.stderr
    folder = tmp_path / "state/umaserve/agents" / name
    by_shell = {path.name: path.read_text() for path in folder.iterdir()}
    assert oct(folder.stat().st_mode)[-3:] == "700"
    started, _ = launched(*arguments, "--", "two words", ANTHROPIC_API_KEY="somebody else's", PATH=environ["PATH"])
    assert {path.name: path.read_text() for path in folder.iterdir()} == by_shell
    other = {"PWD", "OLDPWD", "SHLVL", "_"}
    without = [
        {k: v for k, v in one["variables"].items() if k not in other} for one in (started, json.loads(shell.stdout))
    ]
    assert without[0] == without[1]
    assert started["arguments"] == json.loads(shell.stdout)["arguments"]


def test_no_file_has_the_key(daemon: tuple[type[_Daemon], str], tmp_path: Path) -> None:
    handler, url = daemon
    for name in AGENTS:
        started, _ = launched(name, "--url", url, "--key", "secret-key")
        assert "secret-key" in started["variables"].values()
        assert "secret-key" not in "".join(started["arguments"])
    files = [path for path in (tmp_path / "state").rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if "secret-key" in path.read_text()]
    assert handler.keys == ["Bearer secret-key"] * len(AGENTS)


def test_claude_code_waits_for_long_prompts_and_talks_to_nobody_else(daemon: tuple[type[_Daemon], str]) -> None:
    _, url = daemon
    started, _ = launched("claude", "--url", url, ANTHROPIC_API_KEY="somebody else's", CLAUDE_CODE_USE_BEDROCK="1")
    variables = started["variables"]
    assert int(variables["CLAUDE_STREAM_IDLE_TIMEOUT_MS"]) > 300_000
    assert variables["CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC"] == "1"
    assert not {"ANTHROPIC_API_KEY", "CLAUDE_CODE_USE_BEDROCK"} & variables.keys()


def test_codex_reads_its_arguments_as_toml(daemon: tuple[type[_Daemon], str]) -> None:
    _, url = daemon
    started, _ = launched("codex", "--url", url, "--model", "it's")
    assert started["arguments"][::2] == ["-c"] * (len(started["arguments"]) // 2)
    config = tomllib.loads("\n".join(started["arguments"][1::2]))
    assert config["model"] == "it's"
    assert config["model_context_window"] == 32768
    assert config["model_providers"][config["model_provider"]]["base_url"] == f"{url}/v1"
    auth = config["model_providers"]["umaserve"]["auth"]
    key = subprocess.run(
        [auth["command"], *auth["args"]], env=started["variables"] | {"PATH": "/usr/bin:/bin"}, capture_output=True
    )
    assert key.stdout == b"none\n"


def test_a_context_that_the_first_request_nearly_fills_is_told(daemon: tuple[type[_Daemon], str]) -> None:
    _, url = daemon
    _, said = launched("claude", "--url", url, "--model", "it's")
    assert "22,300" in said
    assert "--n-ctx" in said
    assert "--n-ctx" not in launched("codex", "--url", url, "--model", "it's")[1]


def test_a_name_that_no_model_has_is_told(daemon: tuple[type[_Daemon], str]) -> None:
    _, url = daemon
    started, said = launched("claude", "--url", url, "--model", "chatt")
    assert "no model is named chatt, did you mean chat?: chat answers" in said
    assert started["variables"]["ANTHROPIC_MODEL"] == "chat"
    assert launched("claude", "--url", url, "--model", "gpt")[0]["variables"]["ANTHROPIC_MODEL"] == "chat"


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line that says why."""
    assert main(["launch", *arguments]) == 1
    [line] = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.parametrize("name", AGENTS)
def test_a_missing_agent_can_be_installed(
    name: str, daemon: tuple[type[_Daemon], str], programs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (programs / AGENTS[name].program).unlink()
    assert AGENTS[name].installed_by in refused(capsys, name, "--url", daemon[1])


def test_a_missing_daemon_can_be_started(capsys: pytest.CaptureFixture[str]) -> None:
    line = refused(capsys, "claude", "--url", "http://127.0.0.1:1")
    assert "Connection refused" in line
    assert "start a daemon with --http" in line


def test_a_key_that_is_asked_for_is_named(
    daemon: tuple[type[_Daemon], str], capsys: pytest.CaptureFixture[str]
) -> None:
    handler, url = daemon
    handler.answer = (401, {"error": {"message": "a key is needed"}})
    assert refused(capsys, "claude", "--url", url).endswith("give one with --key")


@pytest.mark.parametrize("answer", [{}, {"data": []}, {"data": 3}, {"data": [{"id": "a"}]}, {"data": [3]}])
def test_another_server_is_no_daemon(
    answer: Any, daemon: tuple[type[_Daemon], str], capsys: pytest.CaptureFixture[str]
) -> None:
    handler, url = daemon
    handler.answer = (200, answer)
    assert "another server" in refused(capsys, "claude", "--url", url)


def test_an_agent_cannot_call_a_unix_socket(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--url: expected a URL such as" in refused(capsys, "claude", "--url", f"unix:{tmp_path}/uma.sock")


def test_a_folder_that_cannot_be_made_is_named(
    daemon: tuple[type[_Daemon], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "state").write_text("a file")
    assert str(tmp_path / "state") in refused(capsys, "claude", "--url", daemon[1])


def test_an_unknown_agent_is_refused_with_those_that_are_known(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["launch", "emacs"])
    said = capsys.readouterr().err
    assert all(name in said for name in AGENTS)
