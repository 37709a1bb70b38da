"""Files and batches on the real daemon, by OpenAI's own Python client."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from daemon import ANSWER_S, Daemon

from umaserve.access.keys import KeyFile

Client = Callable[[Daemon, str], openai.OpenAI]


@pytest.fixture
def connect() -> Iterator[Client]:
    opened = []

    def connected(daemon: Daemon, key: str = "none") -> openai.OpenAI:
        opened.append(openai.OpenAI(base_url=f"http://{daemon.http}/v1", api_key=key, max_retries=0, timeout=ANSWER_S))
        return opened[-1]

    yield connected
    for client in opened:
        client.close()


class Kept:
    """Daemons with one store, for clients with keys."""

    def __init__(self, path: Path) -> None:
        keys = KeyFile(str(path / "keys"), missing_ok=True)
        self.ann, self.bob = keys.add("ann"), keys.add("bob")
        self._path = path

    def start(self, *flags: str) -> Daemon:
        kept = ("--api-keys", str(self._path / "keys"), "--store", str(self._path / "store"))
        return Daemon(self._path, "--http", "127.0.0.1:0", *kept, *flags, env={"UMA_THREADS": "1"})


def chat(custom_id: str, **fields: Any) -> dict[str, Any]:
    body = {"model": "default", "messages": [{"role": "user", "content": "Say a word."}], "max_tokens": 4} | fields
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}


def lines(*requests: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(request).encode() + b"\n" for request in requests)


def send(client: openai.OpenAI, content: bytes) -> str:
    return client.files.create(file=("in.jsonl", content), purpose="batch").id


def test_a_file_is_sent_shown_fetched_and_deleted(daemon: Daemon, connect: Client):
    client = connect(daemon, "none")
    # More than one piece, and than what the connection's buffers hold.
    content = lines(*(chat(str(i)) for i in range(30_000)))
    sent = client.files.create(file=("in.jsonl", content), purpose="batch")
    assert (sent.object, sent.filename, sent.purpose, sent.bytes) == ("file", "in.jsonl", "batch", len(content))
    assert sent.status == "processed"
    assert client.files.retrieve(sent.id) == sent
    assert sent in list(client.files.list(limit=1))
    assert client.files.content(sent.id).content == content
    deleted = client.files.delete(sent.id)
    assert (deleted.id, deleted.deleted) == (sent.id, True)
    for gone in (client.files.retrieve, client.files.content, client.files.delete):
        with pytest.raises(openai.NotFoundError):
            gone(sent.id)


def test_files_for_other_purposes_are_refused_by_name(daemon: Daemon, connect: Client):
    client = connect(daemon, "none")
    with pytest.raises(openai.BadRequestError, match='purpose: expected "batch"'):
        client.files.create(file=("in.jsonl", b"{}"), purpose="user_data")
    with pytest.raises(openai.BadRequestError, match="expires_after"):
        client.files.create(file=("a", b"{}"), purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600})


def test_without_a_store_the_error_says_which_flag_it_takes(own_daemon, connect: Client):
    client = connect(own_daemon("--http", "127.0.0.1:0"), "none")
    for ask in (lambda: send(client, b"{}"), client.files.list):
        with pytest.raises(openai.BadRequestError, match="start it with --store DIR"):
            ask()


def test_a_file_is_there_after_a_restart_for_who_has_the_key(tmp_path: Path, connect: Client):
    kept = Kept(tmp_path)
    daemon = kept.start()
    sent = send(connect(daemon, kept.ann), b"{}\n")
    assert daemon.stop() == 0
    daemon = kept.start()
    try:
        assert connect(daemon, kept.ann).files.content(sent).content == b"{}\n"
        others = connect(daemon, kept.bob)
        assert list(others.files.list()) == []
        for hidden in (others.files.retrieve, others.files.content, others.files.delete):
            with pytest.raises(openai.NotFoundError):
                hidden(sent)
    finally:
        assert daemon.stop() == 0, daemon.logs
