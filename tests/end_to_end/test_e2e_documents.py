"""The blocks of README.md and of the guide, as they stand there: they show what they say, end where a program has
ended, and leave none behind."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from balancers import free_ports
from daemon import Daemon
from documents import FOR_USERS, Block, blocks, tables
from websockets.sync.client import connect

BLOCK_S = 180
ENDS_S = 30
PROGRAMS = Path(sys.executable).parent
BY_DOCUMENT = {document: blocks(document) for document in FOR_USERS}
OWN_DAEMONS = [block for block in blocks(*FOR_USERS) if block.starts_programs]
SHOWN = {
    "$ . .venv/bin/activate": [r"(?i)sky", r"(?m)^state +ready$", r"(?m)^uptime_s +\d"],
    "curl http://127.0.0.1:8080/v1/completions": ['"text"', '"finish_reason":"length"'],
    "curl -N http://127.0.0.1:8080/v1/completions": [r"(?s)\[DONE\].+\[DONE\]"],
    "umaserve --socket /tmp/uma-slots.sock": [r'"n_saved":\d+', r'"n_restored":\d+'],
    # 40 tokens of emojis are 13 characters.
    "from openai import OpenAI": ["(?s).{10}"],
    "from json import dumps": ["^completed", '"custom_id":"fruit"'],
    "curl http://127.0.0.1:8080/mcp": ['"jsonrpc":"2.0"', '"isError":false'],
    "curl http://127.0.0.1:8080/v1/responses": ['"object":"response"'],
    "cat > tools.toml": [r'only = \["read_text_file"\]'],
    "KEY=$(umaserve keys add": ['"id":"SmolLM2-135M-Instruct.Q4_1"'],
    "cat > servers.json": [r"\w+ \w+"],
    "umaserve chat --speak": [r"\w+ \w+"],
    "from umaserve.client import Client": ["(?i)sky", "'total_tokens'"],
    "import asyncio": ["'total_tokens'"],
    "import json, socket, struct": ["'total_tokens'"],
    "openssl rand -hex 32 > secret": ['"role":"assistant"'],
    "openssl rand -hex 32 > token": ['"key":'],
    "mkdir models": ['"finish_reason":"length"', "unloaded"],
    "umaserve launch claude --print": ["export ANTHROPIC_BASE_URL=http://127", "(?m)^claude$"],
    "import json": ["'operation': 'modify'", "'type': 'completion'"],
    "curl -N http://127.0.0.1:8080/v1/generate": ['"type":"token"', '"type":"completion"'],
}
"""By the beginning of a block's first line: patterns of what it writes, in which there are no blanks beside ``":"``."""


def elsewhere(text: str, folder: Path, daemon: str = "") -> str:
    """The block with sockets in ``folder``, the HTTP address of a daemon in place of the usual one, and for what it
    starts itself ports that nobody has."""
    if daemon:
        text = text.replace("127.0.0.1:8080", daemon)
        text = re.sub(r"umaserve (chat|launch) ", rf"umaserve \1 --url http://{daemon} ", text)
        # Random answers may go on and on, and call a tool after each.
        text = text.replace("umaserve chat ", "umaserve chat --max-tokens 64 ")
    text = text.replace("/tmp/uma-", f"{folder}/uma-")
    ports = sorted(set(re.findall(r":(8\d{3})\b", text)))
    for port, free in zip(ports, free_ports(len(ports)), strict=True):
        text = text.replace(f":{port}", f":{free}")
    return text


def run(text: str, folder: Path, *shell: str, programs: Path = PROGRAMS, daemon: str = "") -> tuple[int, str]:
    """The status of a block and what it writes; fails where a program of its is there afterwards."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("UMA_")}
    variables |= {"PATH": f"{programs}:{os.environ['PATH']}", "UMA_WEIGHTS": "as-is"}
    # Of this test's daemon, where a command looks for one.
    variables["UMA_SOCK"] = str(folder / "run/uma.sock")
    shell = shell or ("bash", "-euo", "pipefail", "-c")
    program = subprocess.Popen(
        [*shell, elsewhere(text, folder, daemon)], cwd=folder, env=variables, start_new_session=True, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        # To the end of what is left in the background, too.
        written, _ = program.communicate(timeout=BLOCK_S)
    except subprocess.TimeoutExpired:
        os.killpg(program.pid, signal.SIGKILL)
        pytest.fail(f"it does not end: {program.communicate()[0]}")
    deadline = time.monotonic() + ENDS_S
    while runs(program.pid):
        assert time.monotonic() < deadline, f"it leaves a program behind: {written}"
        time.sleep(0.01)
    return program.returncode, written


def runs(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def show(block: Block, folder: Path, http: str) -> str:
    """What a block writes, which must end well."""
    match block.language:
        case "sh":
            status, written = run(block.text, folder, daemon=http)
        case "python":
            status, written = run(block.text, folder, sys.executable, "-c", daemon=http)
        case "console":
            questions = re.findall(r"^\$ (.*)$", block.text, re.MULTILINE)
            status, written = run("\n".join(questions), folder, daemon=http)
        case _:
            status, written = 0, answered(block, http)
    assert status == 0, written
    return written


def answered(block: Block, http: str) -> str:
    """The kinds of the replies to the message that a block of JSON shows, shortened and without its picture."""
    message = json.loads(block.text)
    for turn in message["messages"]:
        turn["content"] = [item for item in turn["content"] if item["type"] == "text"]
    message["generation"]["max_new_tokens"] = 8
    kinds = []
    with connect(f"ws://{http}/ws/chat", max_size=None) as socket:
        socket.send(json.dumps(message))
        while not kinds or kinds[-1] not in ("done", "error"):
            kinds.append(json.loads(socket.recv(timeout=BLOCK_S))["type"])
    named = {kind for row in tables(block.document)[0] for kind in re.findall(r"`(\w+)`", row[0])}
    assert set(kinds) <= named - {"error"}, kinds
    return " ".join(kinds)


def expected(block: Block) -> list[str]:
    beginnings = [beginning for beginning in SHOWN if block.first_line.startswith(beginning)]
    return SHOWN[max(beginnings, key=len)] if beginnings else []


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
@pytest.mark.parametrize("document", [each for each in BY_DOCUMENT if BY_DOCUMENT[each]], ids=lambda path: path.name)
def test_the_blocks_show_what_they_say(document: Path, daemon: Daemon, tmp_path: Path) -> None:
    """One after another in one folder: some have a file of the one before."""
    pytest.importorskip("openai")
    (tmp_path / "run").symlink_to(Path(daemon.path).parent)
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/activate").write_text(f'PATH="{PROGRAMS}:$PATH"\n')
    for block in BY_DOCUMENT[document]:
        written = show(block, tmp_path, daemon.http)
        assert "Traceback" not in written
        assert "No such process" not in written, written
        patterns = expected(block)
        if not patterns and block.language == "console":
            assert written == re.sub(r"^\$ .*\n", "", block.text, flags=re.MULTILINE)
        elif block.language != "json":
            assert patterns, f"nothing says what {block.name!r} shows"
        for pattern in patterns:
            assert re.search(pattern, re.sub(r'" *: *', '":', written)), written


@pytest.mark.parametrize("block", OWN_DAEMONS, ids=lambda block: block.name)
def test_a_block_ends_where_its_programs_have_ended(block: Block, tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, text in {"umaserve": "echo this one ends >&2; exit 2", "python": f'exec {sys.executable} "$@"'}.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    _, written = run(block.text, tmp_path, "bash", "-c", programs=programs)
    assert "this one ends" in written
