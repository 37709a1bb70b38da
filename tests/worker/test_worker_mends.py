"""The daemon and the HTTP backend as a relay's: what is refused there, and jobs that are aborted in any state."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import pytest
from worker_wire import BackendPeer, LoopThread, Server
from world import DaemonWorld

from umaserve.core.events import Finished, FinishReason, Prefilled, Token, Usage
from umaserve.daemon.connection import Connection
from umaserve.daemon.relays import relay_backend
from umaserve.daemon.relays.relay_backend import DaemonBackend
from umaserve.dialects.generate.conversation import GenerateDialect
from umaserve.settings.daemon import Config
from umaserve.wire.fields import MAX_VALUES
from umaserve.wire.relay_codec import encode, parse_from_worker
from umaserve.wire.relay_messages import Request, TokenCounts
from umaserve.wire.relay_messages import ResponseComplete as Complete
from umaserve.worker.backend import Job
from umaserve.worker.dialer import Dialer
from umaserve.worker.http_backend import HttpBackend, HttpSettings

MAX_BYTES = 1024
MAX_CHAT_BYTES = 2048
CONFIG = Config(max_frame_bytes=MAX_BYTES, max_chat_bytes=MAX_CHAT_BYTES, max_prompt_bytes=512)
CHAT, EMBEDDINGS, GENERATE = "/v1/chat/completions", "/v1/embeddings", "/generate"
SPEECH = "/v1/audio/speech"
BODIES = {
    CHAT: {"messages": [{"role": "user", "content": "hello"}], "stream": True},
    EMBEDDINGS: {"input": "hello", "model": "stand-in"},
    GENERATE: {"type": "config", "prompt": "hello"},
}


class Told:
    """A reply that hears one end, and nothing after it or after its job was aborted."""

    def __init__(self) -> None:
        self.chunks: list[str | bytes] = []
        self.end: tuple[int, Mapping[str, str], str | bytes] | None = None
        self.aborted = False

    def chunk(self, data: str | bytes, status: int, headers: Mapping[str, str]) -> None:
        assert not self.aborted
        assert self.end is None
        self.chunks.append(data)

    def complete(
        self, status: int, headers: Mapping[str, str], body: str | bytes, token_counts: TokenCounts | None = None
    ) -> None:
        assert not self.aborted
        assert self.end is None
        self.end = status, headers, body


class Daemon(DaemonWorld):
    """The backend of a daemon for its relay."""

    def __init__(self) -> None:
        super().__init__(CONFIG)
        self.backend = DaemonBackend(self.services)

    def start(self, path: str, body: str | None = None) -> tuple[Job | None, Told]:
        reply = Told()
        text = json.dumps(BODIES[path]) if body is None else body
        return self.backend.start(Request("r-1", "stand-in", path, True, text, {}), reply), reply

    def deliver_all(self) -> None:
        for _ in range(4):
            self.turn()
            self.deliver()


@pytest.fixture
def daemon(caplog: pytest.LogCaptureFixture) -> Iterator[Daemon]:
    daemon = Daemon()
    yield daemon
    daemon.close()
    assert not [record for record in caplog.get_records("call") if record.exc_info]


@pytest.mark.parametrize("path", BODIES)
def test_a_relayed_body_may_be_no_larger_than_any_others(daemon: Daemon, path: str) -> None:
    max_bytes = MAX_BYTES if path == EMBEDDINGS else MAX_CHAT_BYTES
    job, reply = daemon.start(path, " " * (max_bytes + 1))
    assert job is None
    assert reply.end is not None
    status, headers, body = reply.end
    assert (status, headers) == (413, {"content-type": "application/json"})
    error = json.loads(body)
    message = error["message"] if path in ("/generate", "/v1/generate") else error["error"]["message"]
    assert message == f"body: expected at most {max_bytes} bytes, got more"
    assert daemon.backend.load == 0


class Counted(str):
    """Counts how often it is encoded."""

    n = 0

    def encode(self, *arguments: str) -> bytes:
        self.n += 1
        return super().encode(*arguments)


@pytest.mark.parametrize("path", BODIES)
def test_a_body_is_encoded_once(daemon: Daemon, path: str) -> None:
    body = Counted(json.dumps(BODIES[path]))
    job, _reply = daemon.start(path, body)
    assert job is not None
    assert body.n == 1


def test_a_daemon_without_a_voice_says_so_through_a_relay(daemon: Daemon) -> None:
    job, reply = daemon.start(SPEECH, '{"input": "Hello."}')
    assert job is None
    assert reply.end is not None
    assert reply.end[0] == 400
    assert "this daemon has no voice" in json.loads(reply.end[2])["error"]["message"]


def test_sound_goes_to_a_relay_as_bytes() -> None:
    reply = Told()
    responder = relay_backend._Responder(reply)
    responder.begin(200, [("Content-Type", "audio/wav")])
    responder.write(b"\xff\0")
    responder.end()
    assert reply.chunks == [b"\xff\0"]
    reply = Told()
    relay_backend._Responder(reply).respond(200, [("Content-Type", "audio/pcm")], b"\x80")
    assert reply.end == (200, {"content-type": "audio/pcm"}, b"\x80")


def test_nor_may_a_message_of_a_conversation(daemon: Daemon) -> None:
    job, reply = daemon.start(GENERATE)
    assert job is not None
    assert daemon.backend.load == 1
    job.frame("é" * (MAX_CHAT_BYTES // 2 + 1))
    assert reply.end is not None
    assert reply.end[0] == 413
    daemon.deliver_all()
    assert daemon.backend.load == 0


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("path", [CHAT, GENERATE])
def test_an_aborted_job_leaves_no_session_and_its_reply_hears_no_more(daemon: Daemon, path: str, held: bool) -> None:
    job, reply = daemon.start(path)
    assert job is not None
    job.pause(held)
    assert daemon.backend.load == 1
    job.abort()
    reply.aborted = True
    job.pause(not held)
    job.frame("{}")
    daemon.deliver_all()
    assert daemon.backend.load == 0


REALTIME = "/v1/realtime"
ASKED = {"type": "response.create", "response": {"instructions": "Hello.", "output_modalities": ["text"]}}


def types(reply: Told) -> list[str]:
    return [json.loads(chunk)["type"] for chunk in reply.chunks]


def test_a_relayed_session_is_held_for_a_slow_client_and_ends_with_it(daemon: Daemon) -> None:
    job, reply = daemon.start(REALTIME, "{}")
    assert job is not None
    assert types(reply) == ["session.created"]
    job.frame(json.dumps(ASKED))
    (session,) = daemon.sessions.running()
    job.pause(True)
    daemon.sessions.prompt_done(session)
    for output in (Prefilled(3), Token("Hi", 1)):
        daemon.sessions.put(session, output)
    daemon.deliver()
    assert session.holds
    job.pause(False)
    daemon.turn()
    assert not session.holds
    told = types(reply)
    assert told[1] == "response.created"
    assert told[-1] == "response.output_text.delta"
    job.abort()
    reply.aborted = True
    job.pause(True)
    job.frame(json.dumps(ASKED))
    job.pause(False)
    daemon.deliver_all()
    assert daemon.backend.load == 0


@pytest.mark.parametrize("path", [GENERATE, REALTIME])
def test_a_conversation_ends_with_its_answer_where_the_worker_leaves(daemon: Daemon, path: str) -> None:
    job, reply = daemon.start(path, "{}" if path == REALTIME else None)
    assert job is not None
    if path == REALTIME:
        job.frame(json.dumps(ASKED))
    (session,) = daemon.sessions.running()
    job.leave()
    daemon.deliver_all()
    assert reply.end is None
    daemon.sessions.put(session, Finished(FinishReason.STOP, Usage(3, 1)))
    daemon.deliver_all()
    assert reply.end == (200, {}, "")
    *_, last = map(json.loads, reply.chunks)
    assert last["type"] == ("error" if path == REALTIME else "completion")


def test_a_session_that_waits_for_its_client_ends_at_once_where_the_worker_leaves(daemon: Daemon) -> None:
    job, reply = daemon.start(REALTIME, "{}")
    assert job is not None
    job.leave()
    assert types(reply) == ["session.created", "error"]
    assert json.loads(reply.chunks[-1])["error"]["code"] == "shutting_down"
    assert reply.end == (200, {}, "")


def test_an_event_of_a_relayed_session_may_be_no_larger_than_any_others(daemon: Daemon) -> None:
    job, reply = daemon.start(REALTIME, "{}")
    assert job is not None
    job.frame("é" * (MAX_CHAT_BYTES // 2 + 1))
    message = json.loads(reply.chunks[-1])["error"]["message"]
    assert message == f"message: expected at most {MAX_CHAT_BYTES} bytes, got {MAX_CHAT_BYTES + 2}"
    assert reply.end is not None
    assert reply.end[0] == 413


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("", "not valid JSON"),
        ("[]", "body: expected an object"),
        ('{"models": 5}', "models: expected a string or an array of strings"),
    ],
)
def test_a_session_that_a_relay_cannot_have_is_refused(daemon: Daemon, body: str, message: str) -> None:
    job, reply = daemon.start(REALTIME, body)
    assert job is None
    assert reply.end is not None
    assert reply.end[0] in (400, 404)
    assert message in json.loads(reply.end[2])["error"]["message"]


def test_a_relayed_generation_keeps_nothing_for_a_resume_that_is_always_refused(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[GenerateDialect] = []

    def connect(*arguments: Any) -> Connection:
        made.append(arguments[3])
        return Connection(*arguments)

    monkeypatch.setattr(relay_backend, "Connection", connect)
    job, reply = daemon.start(GENERATE)
    assert job is not None
    (dialect,) = made
    before = dialect.held_bytes
    for number in range(100):
        assert dialect.send(Token("", number)) is not None
    assert dialect.held_bytes == before
    job.frame('{"type": "resume", "request_id": "gen_1", "position": 0}')
    assert json.loads(reply.chunks[-1])["message"].startswith("type: expected ")
    job.abort()
    daemon.deliver_all()


def test_of_what_a_client_may_not_send_a_relays_messages_may_have_more() -> None:
    # Or a client could have its worker's link closed, by a body with just as many as may be.
    parsed = parse_from_worker(encode(Complete("r-1", 200, {}, "," * (MAX_VALUES + 1))))
    assert parsed == Complete("r-1", 200, {}, "," * (MAX_VALUES + 1))


def test_an_embedding_that_nobody_wants_any_more_is_forgotten(daemon: Daemon) -> None:
    job, reply = daemon.start(EMBEDDINGS)
    assert job is not None
    job.abort()
    reply.aborted = True
    assert not daemon.questions.idle
    for _ in range(4):
        daemon.preparing.step()
        daemon.compute.step()
    assert daemon.questions.idle


def test_a_header_that_no_relay_takes_is_left_out() -> None:
    with ExitStack() as stack:
        server, thread = Server(stack), LoopThread()
        stack.callback(thread.close)
        settings = HttpSettings(server.url, "", (), 4, 100.0, 1024 * 1024)
        backend = thread.call(lambda: HttpBackend(thread.loop, Dialer(thread.loop, thread.resolving.submit), settings))
        reply = Told()
        thread.call(lambda: backend.start(Request("r-1", "m", CHAT, False, "{}"), reply))
        longest = "x" * 256
        BackendPeer(server.accept()).answer(b"{}", "200 OK", "application/json", f"{longest}: 1", f"{longest}y: 2")
        thread.until(lambda: reply.end is not None)
    assert reply.end == (200, {"content-type": "application/json", longest: "1"}, "{}")
    parse_from_worker(encode(Complete("r-1", *reply.end)))
