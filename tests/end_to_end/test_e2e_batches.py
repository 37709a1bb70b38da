"""Files and batches on the real daemon, by OpenAI's own Python client."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from daemon import ANSWER_S, Daemon
from openai.types import Batch
from openai.types.chat import ChatCompletion

from umaserve.access.keys import KeyFile

Client = Callable[[Daemon, str], openai.OpenAI]


class Kept:
    """Daemons with one store, for clients with keys."""

    def __init__(self, path: Path) -> None:
        keys = KeyFile(str(path / "keys"), missing_ok=True)
        self.ann, self.bob = keys.add("ann"), keys.add("bob")
        self.revoke = keys.revoke
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


# -- batches -----------------------------------------------------------------------------------------------------


def begin(client: openai.OpenAI, content: bytes, endpoint: Any = "/v1/chat/completions", **wanted: Any) -> Batch:
    return client.batches.create(
        input_file_id=send(client, content), endpoint=endpoint, completion_window="24h", **wanted
    )


def when(client: openai.OpenAI, batch_id: str, condition: Callable[[Batch], bool]) -> Batch:
    """The batch once ``condition`` holds of it."""
    deadline = time.monotonic() + ANSWER_S
    while not condition(batch := client.batches.retrieve(batch_id)):
        assert time.monotonic() < deadline, batch
        time.sleep(0.01)
    return batch


def ended(batch: Batch) -> bool:
    return batch.status in ("completed", "failed", "expired", "cancelled")


def results(client: openai.OpenAI, file_id: str | None) -> dict[str, Any]:
    """The lines of a file by their custom ids, of which none may be there twice."""
    assert file_id is not None
    written = [json.loads(line) for line in client.files.content(file_id).text.splitlines()]
    by_id = {one["custom_id"]: one for one in written}
    assert len(by_id) == len(written)
    return by_id


def test_a_batch_runs_to_its_end(daemon: Daemon, connect: Client):
    client = connect(daemon, "none")
    made = begin(client, lines(*(chat(f"r{i}") for i in range(10))), metadata={"for": "a test"})
    assert (made.object, made.status, made.completion_window) == ("batch", "validating", "24h")
    batch = when(client, made.id, ended)
    assert (batch.status, batch.metadata, batch.errors) == ("completed", {"for": "a test"}, None)
    assert batch.request_counts is not None
    assert batch.request_counts.model_dump() == {"total": 10, "completed": 10, "failed": 0}
    assert batch.in_progress_at is not None
    assert batch.finalizing_at is not None
    assert batch.completed_at is not None
    assert batch.error_file_id is None
    answers = results(client, batch.output_file_id)
    assert answers.keys() == {f"r{i}" for i in range(10)}
    assert len({one["id"] for one in answers.values()}) == 10
    for one in answers.values():
        assert (one["error"], one["response"]["status_code"]) == (None, 200)
        assert ChatCompletion.model_validate(one["response"]["body"]).choices[0].message.content
    output = client.files.retrieve(batch.output_file_id or "")
    assert (output.purpose, output.filename) == ("batch_output", f"{batch.id}_output.jsonl")
    assert batch in list(client.batches.list(limit=1))
    with pytest.raises(openai.BadRequestError, match="expected one that has not ended, got one that is completed"):
        client.batches.cancel(batch.id)


@pytest.mark.parametrize(
    ("endpoint", "body", "of"),
    [
        ("/v1/completions", {"prompt": "One, two,", "max_tokens": 3}, lambda one: one["choices"][0]["text"]),
        (
            "/v1/responses",
            {"input": "Hello!", "max_output_tokens": 3},
            lambda one: one["output"][0]["content"][0]["text"],
        ),
    ],
)
def test_other_endpoints_answer_as_over_http(daemon: Daemon, connect: Client, endpoint: str, body: Any, of: Any):
    client = connect(daemon, "none")
    wanted = {"model": "default", "temperature": 0} | body
    line = {"custom_id": "a", "method": "POST", "url": endpoint, "body": wanted}
    batch = when(client, begin(client, lines(line), endpoint).id, ended)
    answer = results(client, batch.output_file_id)["a"]["response"]["body"]
    assert of(answer) == of(client.post(endpoint.removeprefix("/v1"), body=wanted, cast_to=object))
    if endpoint == "/v1/responses":
        assert client.responses.retrieve(answer["id"]).id == answer["id"]


def test_embeddings_are_made_in_a_batch(own_daemon, tmp_path: Path, connect: Client):
    client = connect(own_daemon("--http", "127.0.0.1:0", "--pooling", "mean", "--store", str(tmp_path / "s")), "none")
    body = {"model": "default", "input": "hello"}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/embeddings", "body": body}
    batch = when(client, begin(client, lines(line), "/v1/embeddings").id, ended)
    made = results(client, batch.output_file_id)["a"]["response"]["body"]["data"][0]["embedding"]
    assert made == pytest.approx(client.embeddings.create(model="default", input="hello").data[0].embedding, abs=1e-3)


def test_a_request_that_fails_is_in_the_file_with_errors(daemon: Daemon, connect: Client):
    client = connect(daemon, "none")
    bad = [chat("hot", temperature=99), chat("streams", stream=True), chat("empty", messages=[])]
    batch = when(client, begin(client, lines(chat("good"), *bad)).id, ended)
    assert batch.status == "completed"
    assert batch.request_counts is not None
    assert batch.request_counts.model_dump() == {"total": 4, "completed": 1, "failed": 3}
    assert results(client, batch.output_file_id).keys() == {"good"}
    errors = results(client, batch.error_file_id)
    assert {one["response"]["status_code"] for one in errors.values()} == {400}
    told = {name: one["response"]["body"]["error"]["message"] for name, one in errors.items()}
    assert told["hot"].startswith("temperature: expected")
    assert told["streams"] == "stream: expected false or to be absent in a batch"
    assert told["empty"].startswith("messages: expected")


def test_a_file_with_a_line_that_is_no_request_fails_as_a_whole(daemon: Daemon, connect: Client):
    client = connect(daemon, "none")
    content = lines(chat("a"), chat("a")) + b"{\n\n" + lines(chat("b") | {"url": "/v1/embeddings"})
    batch = when(client, begin(client, content).id, ended)
    assert (batch.status, batch.output_file_id) == ("failed", None)
    assert batch.errors is not None
    assert [(one.line, one.code, one.param) for one in batch.errors.data or ()] == [
        (2, "duplicate_custom_id", "custom_id"),
        (3, "invalid_json_line", "payload"),
        (5, "invalid_request", "url"),
    ]


def test_requests_for_a_batch_are_checked(daemon: Daemon, connect: Client):
    client = connect(daemon, "none")
    sent = send(client, lines(chat("a")))
    for field, wrong in (
        ("completion_window", "1h"),
        ("endpoint", "/v1/moderations"),
        ("output_expires_after", {"anchor": "created_at", "seconds": 3600}),
        ("metadata", {"a": 5}),
    ):
        asked: Any = {"input_file_id": sent, "endpoint": "/v1/completions", "completion_window": "24h"}
        with pytest.raises(openai.BadRequestError, match=field):
            client.batches.create(**asked | {field: wrong})
    with pytest.raises(openai.NotFoundError, match="input_file_id"):
        client.batches.create(input_file_id="file-1", endpoint="/v1/responses", completion_window="24h")


def test_nobody_sees_or_ends_what_is_anothers(tmp_path: Path, connect: Client):
    kept = Kept(tmp_path)
    daemon = kept.start()
    try:
        client, others = connect(daemon, kept.ann), connect(daemon, kept.bob)
        sent = send(client, lines(chat("a")))
        batch = client.batches.create(input_file_id=sent, endpoint="/v1/chat/completions", completion_window="24h")
        for hidden in (others.batches.retrieve, others.batches.cancel):
            with pytest.raises(openai.NotFoundError):
                hidden(batch.id)
        with pytest.raises(openai.NotFoundError):
            others.batches.create(input_file_id=sent, endpoint="/v1/chat/completions", completion_window="24h")
        assert list(others.batches.list()) == []
        done = when(client, batch.id, ended)
        with pytest.raises(openai.NotFoundError):
            others.files.content(done.output_file_id or "")
        assert results(client, done.output_file_id).keys() == {"a"}
        log = [line for line in daemon.logs.splitlines() if f"peer=batch:{batch.id}" in line]
        assert len(log) == 1
        assert "key=ann" in log[0]
    finally:
        assert daemon.stop() == 0, daemon.logs


def test_a_cancel_ends_what_runs_and_keeps_what_is_done(daemon: Daemon, connect: Client):
    client = connect(daemon, "none")
    short, long = (chat(f"short{i}") for i in range(3)), (chat(f"long{i}", max_tokens=2000) for i in range(20))
    batch = begin(client, lines(*short, *(line | {"body": line["body"] | {"ignore_eos": True}} for line in long)))
    when(client, batch.id, lambda one: one.request_counts is not None and one.request_counts.completed == 3)
    assert client.batches.cancel(batch.id).status == "cancelling"
    gone = when(client, batch.id, ended)
    assert gone.status == "cancelled"
    assert gone.cancelled_at is not None
    assert results(client, gone.output_file_id).keys() == {"short0", "short1", "short2"}
    daemon.wait_for(lambda values: values["active_sessions"] == values["waiting_sessions"] == 0)
    # The file may go while the batch runs, and afterwards.
    client.files.delete(batch.input_file_id)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_batch_goes_on_after_the_daemons_end(tmp_path: Path, connect: Client, number: int):
    kept = Kept(tmp_path)
    daemon = kept.start()
    client = connect(daemon, kept.ann)
    names = [f"r{i}" for i in range(24)]
    batch = begin(client, lines(*(chat(name, max_tokens=12, ignore_eos=True) for name in names)))
    client.files.delete(batch.input_file_id)
    before = when(client, batch.id, lambda one: one.request_counts is not None and one.request_counts.completed >= 3)
    assert before.status == "in_progress", "the daemon is too fast for this test"
    status = daemon.stop(number)
    assert status == (-number if number == signal.SIGKILL else 0)

    daemon = kept.start()
    try:
        client = connect(daemon, kept.ann)
        after = when(client, batch.id, ended)
        assert after.status == "completed"
        assert after.request_counts is not None
        assert after.request_counts.model_dump() == {"total": 24, "completed": 24, "failed": 0}
        assert results(client, after.output_file_id).keys() == {*names}
        assert daemon.metrics()["batch_lines_total"] < 24
        deadline = time.monotonic() + ANSWER_S
        while os.listdir(tmp_path / "store" / "files") != [after.output_file_id]:
            assert time.monotonic() < deadline, "the input is left"
            time.sleep(0.01)
    finally:
        assert daemon.stop() == 0, daemon.logs


def test_a_batch_whose_key_was_revoked_ends(tmp_path: Path, connect: Client):
    kept = Kept(tmp_path)
    daemon = kept.start()
    try:
        client = connect(daemon, kept.ann)
        batch = begin(client, lines(*(chat(f"r{i}", max_tokens=400, ignore_eos=True) for i in range(9))))
        when(client, batch.id, lambda one: one.status == "in_progress")
        kept.revoke("ann")
        daemon.wait_for(lambda values: values["batches_unfinished"] == 0)
        assert "batch ended" in daemon.logs
        assert "status=failed" in daemon.logs
    finally:
        assert daemon.stop() == 0, daemon.logs


def test_a_stream_beside_a_batch_keeps_going(daemon: Daemon, connect: Client):
    client = connect(daemon, "none")
    endless = [chat(f"r{i}", max_tokens=2000, ignore_eos=True) for i in range(12)]
    batch = begin(client, lines(*endless))
    try:
        daemon.wait_for(lambda values: values["batch_lines_running"] == 4 and values["active_sessions"] >= 1)
        # The likeliest answer is one of words: an emoji takes three tokens for one chunk.
        stream = client.chat.completions.create(
            model="default", messages=[{"role": "user", "content": "Count."}], max_tokens=40, stream=True,
            temperature=0, extra_body={"ignore_eos": True},
        )  # fmt: skip
        assert sum(bool(chunk.choices and chunk.choices[0].delta.content) for chunk in stream) >= 30
        assert client.batches.retrieve(batch.id).status == "in_progress"
    finally:
        client.batches.cancel(batch.id)
    assert when(client, batch.id, ended).status == "cancelled"
    daemon.wait_for(lambda values: values["active_sessions"] == 0)
