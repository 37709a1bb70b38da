"""The chat templates in llama.cpp's sources, the conversations that tests render with them, and llama-server's prompts.

As a program, it asks a llama-server (its binary is named in LLAMA_SERVER) for all prompts, and writes their digests to
``llama_templates.json``: PYTHONPATH=. python tests/support/llama_templates.py
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

HERE = Path(__file__).parent
DIGESTS = HERE / "llama_templates.json"
"""Of each template's prompts, by template and conversation; "refused" where llama-server refuses the conversation."""
FOLDER = Path(os.environ.get("LLAMA_CPP_TEMPLATES") or Path(sys.prefix) / "llama.cpp-templates")
"""llama.cpp's models/templates; scripts/test fetches them."""
NAMES: list[str] = sorted(json.loads(DIGESTS.read_text()))
needs_templates = pytest.mark.skipif(not FOLDER.is_dir(), reason=f"no templates in {FOLDER}: scripts/test fetches them")
LLAMA_SERVER = os.environ.get("LLAMA_SERVER", "")
BOS, EOS = "<|im_start|>", "<|im_end|>"
"""The texts of the default model's tokens at a text's start and end."""
DATE = datetime(2031, 2, 3)
"""The date in the prompts whose digests are kept."""
REFUSED = "refused"
START_S = 60.0

_DATE_FORMATS = ("%Y-%m-%d", "%d %b %Y", "%b %d %Y", "%B %d, %Y")


def template_source(name: str) -> str:
    """The template ``name``."""
    return (FOLDER / f"{name}.jinja").read_text()


def conversations() -> dict[str, dict[str, Any]]:
    """Bodies of requests, by name."""
    told = json.loads((HERE / "conversations.json").read_text())
    return {
        name: body | {key: [told[key][each] for each in body[key]] for key in ("messages", "tools") if key in body}
        for name, body in told["conversations"].items()
    }


def digest(prompt: str) -> str:
    return hashlib.sha256(prompt.encode()).hexdigest()[:16]


@contextlib.contextmanager
def llama_server(template: Path, model: str) -> Iterator[Callable[[dict[str, Any]], str]]:
    """A running llama-server with ``template``: a function that gives the prompt of a body, or ``REFUSED``."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [LLAMA_SERVER, "--jinja", "--chat-template-file", str(template), "-m", model, "--port", str(port)]
    command += ["-c", "256", "-np", "1", "-t", "1", "--no-warmup", "--no-prefill-assistant"]
    with tempfile.TemporaryFile() as log, httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=START_S) as client:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            _wait(process, client)
            yield lambda body: _prompt(client, body)
        finally:
            process.kill()
            process.wait()


def _wait(process: subprocess.Popen[bytes], client: httpx.Client) -> None:
    until = time.monotonic() + START_S
    while time.monotonic() < until and process.poll() is None:
        with contextlib.suppress(httpx.TransportError):
            if client.get("/health").status_code == 200:
                return
        time.sleep(0.02)
    raise AssertionError(f"llama-server doesn't start: {process.args!r}")


def _prompt(client: httpx.Client, body: dict[str, Any]) -> str:
    response = client.post("/apply-template", json=body)
    return response.json()["prompt"] if response.status_code == 200 else REFUSED


def _dated(prompt: str, today: datetime) -> str:
    """``prompt`` as it would be on ``DATE``."""
    for form in _DATE_FORMATS:
        prompt = prompt.replace(today.strftime(form), DATE.strftime(form))
    return prompt


def main() -> None:
    from umaserve.engine.llama.model import find

    table: dict[str, dict[str, str]] = {}
    for path in sorted(FOLDER.glob("*.jinja")):
        with llama_server(path, find("")) as ask:
            prompts = {name: ask(body) for name, body in conversations().items()}
        today = datetime.now()
        table[path.stem] = {
            name: prompt if prompt == REFUSED else digest(_dated(prompt, today)) for name, prompt in prompts.items()
        }
        print(path.stem, file=sys.stderr)
    rows = (f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in table.items())
    DIGESTS.write_text("{\n" + ",\n".join(rows) + "\n}\n")


if __name__ == "__main__":
    main()
