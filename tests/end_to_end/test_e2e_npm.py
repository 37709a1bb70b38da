"""Clients from npm on the real daemon, unmodified: each is told nothing but the address and any key.

``npm/package.json`` has their versions: the newest that run on node 20. ``scripts/test`` installs them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import openai
import pytest
import trustme
from daemon import ANSWER_S, CHAT_FAR_FROM_A_TIE, Daemon

SCRIPTS = Path(__file__).parent / "npm"
INSTALLED = Path(os.environ.get("UMA_CLIENTS", sys.prefix)) / "npm"
NODE = shutil.which("node")
OLDEST_NODE = 20

OBJECT = {"verdict": "yes", "count": "three"}
CALL = {"city": "Paris", "unit": "C"}
RESULT = "18 C, rain"
"""The model's greedy answer begins with the first token of it, which is far from a tie."""


def missing() -> str:
    """What these tests lack; empty if nothing."""
    if NODE is None:
        return "there is no node"
    version = subprocess.run([NODE, "--version"], capture_output=True, text=True, check=True).stdout
    if int(version.removeprefix("v").split(".")[0]) < OLDEST_NODE:
        return f"there is no node {OLDEST_NODE} or later, but {version.strip()}"
    if not (INSTALLED / "node_modules").is_dir():
        return f"there are no clients in {INSTALLED}: scripts/test installs them where it has npm and its registry"
    return ""


MISSING = missing()
pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory):
    """That of a daemon that also embeds."""
    flags = ("--http", "127.0.0.1:0", "--no-speculation", "--pooling", "mean")
    daemon = Daemon(tmp_path_factory.mktemp("npm"), *flags, env={"UMA_THREADS": "1"})
    yield f"http://{daemon.http}"
    assert daemon.stop() == 0, daemon.logs
    assert "Traceback" not in daemon.logs, daemon.logs


@pytest.fixture(scope="module")
def expected(address: str) -> str:
    """What OpenAI's client in Python gets for the same prompt."""
    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:
        answer = client.chat.completions.create(
            model="any", messages=CHAT_FAR_FROM_A_TIE, temperature=0, max_completion_tokens=12
        )
    text = answer.choices[0].message.content
    assert text
    return text


def printed(address: str, script: str, *arguments: str, trusted: str = "") -> dict:
    """What a script prints; it must end well. From standard input it finds its packages in the working directory.
    ``trusted``: a file of an authority's certificate."""
    assert NODE is not None
    told = {"OPENAI_BASE_URL": f"{address}/v1", "ANTHROPIC_BASE_URL": address}
    keys = {"OPENAI_API_KEY": "none", "ANTHROPIC_API_KEY": "none"}
    ended = subprocess.run(
        [NODE, "--input-type=module", "-", json.dumps(CHAT_FAR_FROM_A_TIE), *arguments],
        input=(SCRIPTS / script).read_text(),
        cwd=INSTALLED,
        env={"PATH": os.environ["PATH"], "NODE_EXTRA_CA_CERTS": trusted} | told | keys,
        capture_output=True,
        text=True,
        timeout=ANSWER_S,
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


def test_openais_client(address: str, expected: str):
    told = printed(address, "openai.mjs")
    assert told["whole"] == told["streamed"] == expected
    assert told["usage"]["completion_tokens"] == 12
    assert told["parsed"] == OBJECT
    assert told["called"] == [CALL]
    assert told["result"] == {"role": "tool", "content": RESULT}
    assert told["dimensions"] == [576, 576]
    assert told["refused"] == ["BadRequestError", 400, "temperature"]


def test_openais_client_in_real_time(own_daemon: Callable[..., Daemon], tmp_path: Path, expected: str):
    # It encrypts, whatever its base URL says.
    authority, pair = trustme.CA(), tmp_path / "pair.pem"
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(pair)
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    daemon = own_daemon("--http", "127.0.0.1:0", "--no-speculation", "--tls-cert", str(pair), "--tls-key", str(pair))
    address = "https://localhost:" + daemon.http.rpartition(":")[2]
    told = printed(address, "realtime.mjs", trusted=str(tmp_path / "authority.pem"))
    assert told["text"] == told["whole"] == expected
    assert (told["modalities"], told["status"], told["tokens"]) == (["text"], "incomplete", 12)
    assert told["refused"] == [None, "session.temperature"]
    assert told["events"] == [
        *("session.created", "session.updated", "conversation.item.added", "conversation.item.done"),
        *("response.created", "rate_limits.updated", "response.output_item.added", "response.content_part.added"),
        *("response.output_text.delta", "response.output_text.done", "response.content_part.done"),
        *("response.output_item.done", "response.done", "error"),
    ]


def test_openais_client_by_responses(address: str, expected: str):
    told = printed(address, "responses.mjs")
    assert told["whole"] == told["streamed"] == expected
    assert told["end"] == [expected, "incomplete", "max_output_tokens", 12]
    assert told["events"] == [
        *("response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"),
        *("response.output_text.delta", "response.output_text.done", "response.content_part.done"),
        *("response.output_item.done", "response.incomplete"),
    ]
    assert told["parsed"] == OBJECT
    assert told["call"] == ["get_weather", CALL]
    assert told["snapshot"] == CALL
    assert told["answered"].startswith(RESULT[:2])
    assert told["refused"] == ["BadRequestError", 400, "temperature"]


def test_anthropics_client(address: str, expected: str):
    told = printed(address, "anthropic.mjs")
    assert told["whole"] == told["streamed"] == expected
    assert told["end"] == [expected, "max_tokens", 12]
    assert told["events"] == [
        *("message_start", "content_block_start", "content_block_delta", "content_block_stop"),
        *("message_delta", "message_stop"),
    ]
    assert told["call"] == ["tool_use", "tool_use", "get_weather", CALL]
    assert told["inputs"] > 2
    assert told["parsed"] == OBJECT
    counted, used = told["tokens"]
    assert counted == used > 12
    assert told["refused"] == ["BadRequestError", 400, "invalid_request_error"]


def test_ollamas_client(address: str, expected: str):
    told = printed(address, "ollama.mjs", address)
    assert told["whole"] == told["streamed"] == expected
    assert told["end"] == "length"
    assert told["formatted"] == OBJECT
    assert told["dimensions"] == [576, 576]
    assert told["refused"] == ["ResponseError", 400]


@pytest.mark.parametrize("provider", ["compatible", "openai", "responses", "anthropic", "ollama"])
def test_vercels_client(address: str, expected: str, provider: str):
    told = printed(address, "vercel.mjs", address, provider)
    assert told["whole"] == told["streamed"] == expected
    assert told["usage"] == ["length", 12]
    assert told["object"] == OBJECT
    assert told["called"] == [CALL]
    assert told["dimensions"] == ([576, 576] if provider in ("compatible", "openai", "ollama") else [])
    called, answered = told["steps"]
    assert called == {"calls": 1, "results": 1, "text": ""}
    assert (answered["calls"], answered["results"]) == (0, 0)
    assert answered["text"].startswith(RESULT[:2])


@pytest.mark.parametrize(
    ("scenario", "checks"),
    [("server-initialize", 1), ("ping", 1), ("tools-list", 1), ("dns-rebinding-protection", 2)],
)
def test_the_conformance_suite_of_mcp_passes(address: str, scenario: str, checks: int, tmp_path: Path) -> None:
    """Those of its scenarios that need neither its own tools nor what is not offered: resources, prompts, logging."""
    program = INSTALLED / "node_modules" / ".bin" / "conformance"
    command = [program, "server", "--url", f"{address}/mcp", "--scenario", scenario]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=ANSWER_S)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f"Passed: {checks}/{checks}, 0 failed" in ended.stdout
