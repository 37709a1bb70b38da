"""Python clients that don't go with the newest package of OpenAI, unmodified: each is told nothing but the address.

``pypi/requirements.txt`` has their versions. ``scripts/test`` installs them into an environment of their own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import openai
import pytest
from daemon import ANSWER_S, CHAT_FAR_FROM_A_TIE, Daemon

SCRIPTS = Path(__file__).parent / "pypi"
PYTHON = Path(os.environ.get("UMA_CLIENTS", sys.prefix)) / "pypi" / "bin" / "python"
MODEL = "SmolLM2-135M-Instruct.Q4_1"
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome"]}, "unit": {"enum": ["C"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
OBJECT = {"city": "Rome", "unit": "C"}

pytestmark = pytest.mark.skipif(
    not PYTHON.exists(), reason=f"there is no {PYTHON}: scripts/test makes it where it has a network"
)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory):
    daemon = Daemon(
        tmp_path_factory.mktemp("pypi"), "--http", "127.0.0.1:0", "--no-speculation", env={"UMA_THREADS": "1"}
    )
    yield f"http://{daemon.http}"
    assert daemon.stop() == 0, daemon.logs
    assert "Traceback" not in daemon.logs, daemon.logs


@pytest.fixture(scope="module")
def expected(address: str) -> str:
    """What OpenAI's own client gets for the same messages."""
    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:
        answer = client.chat.completions.create(model=MODEL, messages=CHAT_FAR_FROM_A_TIE, temperature=0, max_tokens=12)
    text = answer.choices[0].message.content
    assert text
    return text


def printed(script: str, *arguments: str) -> dict:
    """What a script prints; it must end well."""
    # litellm would fetch the prices of models, and take the ones that it came with when it can't.
    environment = {"PATH": os.environ["PATH"], "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    ended = subprocess.run(
        [PYTHON, SCRIPTS / script, *arguments], env=environment, capture_output=True, text=True, timeout=ANSWER_S
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def by_litellm(address: str) -> dict:
    return printed("use_litellm.py", json.dumps(CHAT_FAR_FROM_A_TIE), json.dumps(SCHEMA), MODEL, address)


@pytest.mark.parametrize("adapter", ["openai", "anthropic", "claude", "ollama_chat", "ollama"])
def test_litellm_says_streams_and_follows_a_schema(by_litellm: dict, expected: str, adapter: str):
    told = by_litellm[adapter]
    # To /api/generate it sends a prompt of its own, and calls every end of it "stop".
    text, end = (told["texts"][0], "stop") if adapter == "ollama" else (expected, "length")
    assert told["texts"] == [text] * 3
    assert told["end"] == [end, 12]
    assert told["bound"] == OBJECT


@pytest.mark.parametrize("adapter", ["openai", "anthropic", "claude", "ollama_chat"])
def test_litellm_calls(by_litellm: dict, adapter: str):
    assert by_litellm[adapter]["calls"] == [[["get_weather", OBJECT]]] * 2
    assert by_litellm[adapter]["call_end"] == "tool_calls"


def test_instructor_returns_typed_values(address: str):
    assert printed("use_instructor.py", address) == {"TOOLS": [OBJECT] * 2, "JSON_SCHEMA": [OBJECT] * 2}
