"""What the clients are told: the address of the daemon, and the answer that it gives to who asks without a library."""

from __future__ import annotations

import json
import os
import urllib.request

import pytest
from questions import MODEL, N_TOKENS, TURNS


@pytest.fixture(scope="session")
def url() -> str:
    """Address of the daemon, without a path."""
    return os.environ["CONFORMANCE_URL"]


@pytest.fixture(scope="session")
def base_url(url: str) -> str:
    """Address as OpenAI's clients expect it."""
    return f"{url}/v1"


@pytest.fixture(scope="session")
def said(base_url: str) -> str:
    """The greedy answer to ``TURNS``."""
    body = {"model": MODEL, "messages": TURNS, "temperature": 0, "max_tokens": N_TOKENS}
    request = urllib.request.Request(
        f"{base_url}/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request) as answer:
        text: str = json.load(answer)["choices"][0]["message"]["content"]
    return text
