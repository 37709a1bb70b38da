"""The link to a relay, against relays played by the test: how it begins, works and ends; then the whole worker."""

from __future__ import annotations

import json
import logging
import queue
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import trustme
from worker_wire import PATIENCE_S, BackendPeer, LoopThread, RelayPeer, Server, listing

from umaserve.settings.worker import WorkerConfig
from umaserve.wire.relay_messages import Request
from umaserve.worker import relay_connection
from umaserve.worker.backend import Reply
from umaserve.worker.dialer import Dialer
from umaserve.worker.relay_link import RelayLink, WorkerIdentity
from umaserve.worker.server import WorkerServer
from umaserve.worker.versions import RelayVersions

SECRET = "s3cret-of-the-workers"


class Job:
    """A request at the backend; the test answers it."""

    def __init__(self, request: Request, reply: Reply) -> None:
        self.request = request
        self.reply = reply
        self.told: queue.Queue[Any] = queue.Queue()

    def abort(self) -> None:
        self.told.put("abort")

    def pause(self, paused: bool) -> None:
        self.told.put(paused)

    def frame(self, text: str) -> None:
        self.told.put(text)

    def leave(self) -> None:
        self.told.put("leave")

    def next(self) -> Any:
        return self.told.get(timeout=PATIENCE_S)


class Backend:
    """Gives its jobs to the test."""

    def __init__(self) -> None:
        self.features = ("flow", "websocket")
        self.models: tuple[str, ...] = ("m",)
        self.contexts: dict[str, int] = {}
        self.load = 0
        self.jobs: queue.Queue[Job] = queue.Queue()
        self.refusal: int | None = None

    def start(self, request: Request, reply: Reply) -> Job | None:
        if self.refusal is not None:
            reply.complete(self.refusal, {}, "no")
            return None
        self.jobs.put(job := Job(request, reply))
        return job

    def refresh(self, done: Callable[[], None]) -> None:
        self.models = (*self.models, "new")
        done()

    def next(self) -> Job:
        return self.jobs.get(timeout=PATIENCE_S)


class Log(logging.Handler):
    """The lines of the worker's log, as they come."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: queue.Queue[logging.LogRecord] = queue.Queue()

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.put(record)

    def until(self, text: str) -> logging.LogRecord:
        """The next line that has ``text`` in it."""
        while True:
            record = self.lines.get(timeout=PATIENCE_S)
            if text in record.getMessage():
                return record


class LinkedWorker:
    """A relay's server and a worker's link to it."""

    def __init__(
        self, stack: ExitStack, log: Log, server: Server, url: str, ca_file: str = "", state: Path | None = None
    ) -> None:
        versions = RelayVersions(state, [url])
        self.log = log
        self.server = server
        self.acks: queue.Queue[None] = queue.Queue()
        self.backend = Backend()
        self.thread = LoopThread()
        stack.callback(self.thread.close)
        introduction = WorkerIdentity(SECRET, "our box", "worker-name", 3)
        dialer = self.thread.call(lambda: Dialer(self.thread.loop, self.thread.resolving.submit, ca_file))
        self.link = RelayLink(
            self.thread.loop, dialer, url, introduction, self.backend, lambda: self.acks.put(None), versions
        )  # fmt: skip

    def start(self) -> None:
        self.thread.call(self.link.start)

    def accept(self) -> RelayPeer:
        return RelayPeer(self.server.accept())

    def begin(self, **ack: Any) -> RelayPeer:
        """Start, and a relay that has taken the worker."""
        self.start()
        peer = self.accept()
        peer.welcome(**ack)
        self.acks.get(timeout=PATIENCE_S)
        return peer

    def running(self, peer: RelayPeer, request_id: str = "r-1", **fields: Any) -> Job:
        """A request of this relay's at work."""
        peer.ask(request_id, **fields)
        return self.backend.next()

    def chunk(self, job: Job, text: str) -> None:
        self.thread.call(lambda: job.reply.chunk(text, 200, {"content-type": "text/event-stream"}))

    def complete(self, job: Job, status: int = 200, body: str = "") -> None:
        self.thread.call(lambda: job.reply.complete(status, {"x": "y"}, body))


@pytest.fixture
def stack(caplog: pytest.LogCaptureFixture) -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack
    assert not [record for record in caplog.get_records("call") if record.exc_info]


@pytest.fixture
def log(stack: ExitStack) -> Log:
    log, logger = Log(), logging.getLogger("umaserve")
    logger.addHandler(log)
    stack.callback(logger.removeHandler, log)
    before = logger.level
    logger.setLevel(logging.INFO)
    stack.callback(logger.setLevel, before)
    return log


@pytest.fixture
def linked(stack: ExitStack, log: Log) -> LinkedWorker:
    server = Server(stack)
    return LinkedWorker(stack, log, server, server.url)


# Beginning.


def test_a_worker_shows_its_secret_in_a_header_only_and_registers(linked: LinkedWorker) -> None:
    linked.start()
    peer = linked.accept()
    assert peer.request.path == "/v1/worker/connect?provider=our+box"
    assert peer.request.headers["x-worker-secret"] == SECRET
    assert peer.request.headers["host"] == f"127.0.0.1:{linked.server.port}"
    registered = peer.receive()
    assert len(registered.pop("instance")) == 16
    assert registered == {
        "type": "register",
        "worker_name": "worker-name",
        "models": ["m"],
        "max_concurrent": 3,
        "protocol_version": "1",
        "current_load": 0,
        "features": ["flow", "websocket"],
    }
    assert linked.acks.empty()
    peer.send("ping", timestamp_unix_ms=1)
    assert peer.receive() == {"type": "pong", "current_load": 0, "timestamp_unix_ms": 1}
    peer.send("register_ack", worker_id="worker-1", models=["m"], warnings=["careful"], unknown=1)
    assert peer.receive() == {"type": "models_update", "models": ["m"], "current_load": 0}, "before anything else"
    linked.acks.get(timeout=PATIENCE_S)
    assert linked.log.until("registered").fields["worker"] == "worker-1"  # type: ignore[attr-defined]
    assert linked.log.until("warning from a relay: 'careful'")


def test_a_path_in_the_url_stands_before_ours(stack: ExitStack, log: Log) -> None:
    server = Server(stack)
    linked = LinkedWorker(stack, log, server, f"ws://127.0.0.1:{server.port}/relays/7/")
    linked.start()
    assert linked.accept().request.path == "/relays/7/v1/worker/connect?provider=our+box"


def test_a_relay_that_refuses_the_contracts_version_is_told_the_other_and_that_one_from_then_on(
    linked: LinkedWorker,
) -> None:
    linked.start()
    for version in ("1", "2026-04-bridge-v1", "1"):
        peer = linked.accept()
        assert peer.receive().get("protocol_version") == version
        peer.close(1002, "worker registration protocol error")
        until_waiting(linked)
        linked.thread.pass_time(5.0)
    for _ in range(2):
        peer = linked.accept()
        assert peer.welcome()["protocol_version"] == "2026-04-bridge-v1"
        peer.close(1002, "worker protocol error")
        linked.log.until("connection to a relay lost: the relay closed with 1002: 'worker protocol error'")
        linked.thread.pass_time(2.0)


def test_the_next_start_begins_with_what_a_relay_took(stack: ExitStack, log: Log, tmp_path: Path) -> None:
    state, server = tmp_path / "versions.json", Server(stack)
    url = f"ws://127.0.0.1:{server.port}"
    first = LinkedWorker(stack, log, server, url, state=state)
    first.start()
    peer = first.accept()
    assert peer.receive()["protocol_version"] == "1"
    peer.close(1002, "worker registration protocol error")
    until_waiting(first)
    first.thread.pass_time(5.0)
    first.accept().welcome()
    first.acks.get(timeout=PATIENCE_S)
    second = LinkedWorker(stack, log, server, url, state=state)
    second.start()
    assert second.accept().welcome()["protocol_version"] == "2026-04-bridge-v1"


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"ws://a.example": "9"}', b'{"ws://b.example": "1"}'])
def test_a_damaged_or_foreign_file_of_versions_is_passed_over(content: bytes, tmp_path: Path) -> None:
    state = tmp_path / "versions.json"
    state.write_bytes(content)
    versions = RelayVersions(state, ["ws://a.example"])
    assert versions.get("ws://a.example") == "1"
    versions.put("ws://a.example", "2026-04-bridge-v1")
    assert RelayVersions(state, ["ws://a.example"]).get("ws://a.example") == "2026-04-bridge-v1"


def test_versions_that_cannot_be_kept_are_logged_and_hold_for_this_process(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    versions = RelayVersions(tmp_path / "missing" / "versions.json", ["ws://a.example"])
    versions.put("ws://a.example", "2026-04-bridge-v1")
    assert versions.get("ws://a.example") == "2026-04-bridge-v1"
    assert "the protocol version of a relay can't be stored" in caplog.text


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "other.example"])
def test_a_relay_with_tls_must_be_the_one_that_its_certificate_names(
    name: str, stack: ExitStack, log: Log, authority: trustme.CA, tmp_path: Path
) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert(name).configure_cert(context)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    server = Server(stack, context)
    host = "127.0.0.1" if name == "other.example" else name
    linked = LinkedWorker(stack, log, server, f"wss://{host}:{server.port}", str(tmp_path / "ca.pem"))
    if name == "other.example":
        linked.start()
        with pytest.raises(ssl.SSLError):
            server.accept()
        line = linked.log.until("no connection to a relay: TLS handshake failed: certificate verify failed")
        assert line.getMessage().endswith(
            "check the URL, and that ca_file has the authority of the relay's certificate"
        )
        return
    peer = linked.begin()
    peer.send("ping")
    assert peer.receive() == {"type": "pong", "current_load": 0}


# Failures to begin.


def test_a_wrong_secret_is_said_and_tried_again_at_growing_intervals(linked: LinkedWorker) -> None:
    linked.start()
    waits = []
    for failures in range(1, 9):
        peer = linked.accept()
        peer.close(1008, "worker authentication failed")
        if failures.bit_count() == 1:
            line = linked.log.until("no connection to a relay")
            assert line.getMessage() == (
                "no connection to a relay: the relay closed with 1008: 'worker authentication failed': "
                "check that worker_secret and provider are the relay's"
            )
            waits.append((line.fields["failures"], line.fields["next_try_s"]))  # type: ignore[attr-defined]
            assert line.fields["url"] == linked.server.url  # type: ignore[attr-defined]
        until_waiting(linked)
        linked.thread.pass_time(min(30.0, 2.0 ** (failures - 1)) + 0.5)
    assert waits == [(1, 1.0), (2, 2.0), (4, 8.0), (8, 30.0)]
    assert linked.accept().receive()["type"] == "register"
    assert not [line for line in iter_queue(linked.log.lines) if "no connection to a relay" in line.getMessage()]


def until_waiting(linked: LinkedWorker) -> None:
    """Until the link waits to dial again."""
    linked.thread.until(lambda: linked.link._timer is not None)


def iter_queue(lines: queue.Queue[Any]) -> Iterator[Any]:
    while not lines.empty():
        yield lines.get_nowait()


def test_an_acknowledgement_makes_the_next_try_soon_again(linked: LinkedWorker) -> None:
    linked.start()
    for wait in (1.5, 2.5, 4.5):
        linked.accept().close(1008, "worker authentication temporarily rate limited")
        until_waiting(linked)
        linked.thread.pass_time(wait)
    peer = linked.accept()
    peer.welcome()
    peer.sock.close()
    linked.log.until("connection to a relay lost")
    for _ in range(2):
        until_waiting(linked)
        linked.thread.pass_time(1.5)
        peer = linked.accept()
        peer.close(1008, "worker authentication temporarily rate limited")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            b"HTTP/1.1 404 Not Found\r\n\r\n",
            "status: expected 101 Switching Protocols, got 404: "
            "check that the URL is a relay's, which answers /v1/worker/connect",
        ),
        (b"SSH-2.0-x\r\n\r\n", "answer: expected HTTP/1.1 and a status"),
        (b"", "the relay ended the connection before it answered the handshake: check the URL"),
    ],
)
def test_what_is_no_relay_is_said(linked: LinkedWorker, answer: bytes, said: str) -> None:
    linked.start()
    sock = linked.server.accept()
    sock.recv(65536)
    sock.sendall(answer)
    sock.shutdown(socket.SHUT_WR)
    assert linked.log.until("no connection to a relay").getMessage().startswith(f"no connection to a relay: {said}")


def test_a_relay_that_is_down_is_said_and_tried_again(linked: LinkedWorker) -> None:
    linked.server.stop()
    linked.start()
    said = (
        f"no connection to a relay: can't connect to 127.0.0.1:{linked.server.port}: Connection refused: check the URL"
    )
    for wait in (1.5, 2.5):
        assert linked.log.until("no connection to a relay").getMessage().startswith(said)
        linked.thread.pass_time(wait)


@pytest.mark.parametrize("shaken", [False, True])
def test_a_relay_that_does_not_answer_in_time_is_given_up(linked: LinkedWorker, shaken: bool) -> None:
    linked.start()
    if shaken:
        peer = linked.accept()
        assert peer.receive()["type"] == "register"
    else:
        linked.server.accept().recv(65536)
    linked.thread.pass_time(10.0)
    if shaken:
        assert peer.receive()[0] == 1002
        peer.sock.close()
    assert linked.log.until("no connection to a relay: no acknowledgement within")


# Requests.


def test_a_request_is_given_to_the_backend_and_its_answer_to_the_relay(linked: LinkedWorker) -> None:
    peer = linked.begin()
    job = linked.running(peer, body='{"é":1}', headers={"A": "b"})
    assert job.request == Request("r-1", "m", "/v1/chat/completions", False, '{"é":1}', {"A": "b"})
    linked.complete(job, 418, "{…}")
    answer = {"type": "response_complete", "request_id": "r-1", "status_code": 418, "headers": {"x": "y"}}
    assert peer.receive() == {**answer, "body": "{…}"}
    assert linked.log.until("request answered").fields["status"] == 418  # type: ignore[attr-defined]


def test_the_first_part_of_a_stream_has_its_head(linked: LinkedWorker) -> None:
    peer = linked.begin()
    job = linked.running(peer, is_streaming=True)
    linked.chunk(job, "data: 1\n\n")
    linked.chunk(job, "data: 2\n\n")
    linked.complete(job)
    chunk = {"type": "response_chunk", "request_id": "r-1"}
    head = {"status_code": 200, "headers": {"content-type": "text/event-stream"}}
    assert peer.receive() == {**chunk, "chunk": "data: 1\n\n", **head}
    assert peer.receive() == {**chunk, "chunk": "data: 2\n\n"}
    assert peer.receive()["type"] == "response_complete"


def test_what_a_backend_refuses_at_once_is_over(linked: LinkedWorker) -> None:
    peer = linked.begin()
    linked.backend.refusal = 404
    for _ in range(2):
        peer.ask("r-1")
        assert peer.receive()["status_code"] == 404


def test_an_answer_that_no_relay_would_take_is_a_502(linked: LinkedWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_connection, "MAX_MESSAGE_BYTES", 1000)
    peer = linked.begin()
    linked.complete(linked.running(peer), body="x" * 1000)
    answer = peer.receive()
    assert (answer["status_code"], json.loads(answer["body"])["error"][:35]) == (
        502,
        "response: expected at most 1000 bytes"[:35],
    )


def test_a_cancelled_request_is_aborted_and_answered_once(linked: LinkedWorker) -> None:
    peer = linked.begin()
    job = linked.running(peer)
    peer.send("cancel", request_id="r-1", reason="client_disconnect")
    answer = peer.receive()
    assert (answer["type"], answer["status_code"], answer["body"]) == ("response_complete", 499, "")
    assert job.next() == "abort"
    peer.send("cancel", request_id="r-1", reason={"other": "again"})
    peer.send("cancel", request_id="r-unknown", reason="timeout")
    peer.send("ping")
    assert peer.receive()["type"] == "pong", "no second answer"


@pytest.mark.parametrize("features", [["flow", "websocket"], ["flow"]])
def test_a_request_with_the_id_of_a_running_one_is_a_frame(linked: LinkedWorker, features: list[str]) -> None:
    peer = linked.begin(features=features)
    job = linked.running(peer, path="/generate")
    peer.ask("r-1", "frame 1")
    peer.ask("r-1", "frame 2")
    assert (job.next(), job.next()) == ("frame 1", "frame 2")
    linked.complete(job)
    assert peer.receive()["type"] == "response_complete"
    # This one has crossed the end, where the relay has WebSockets; others may use an id again.
    peer.ask("r-1", "frame 3")
    peer.ask("r-2")
    ids = [linked.backend.next().request.request_id for _ in range(3 - len(features))]
    assert ids == (["r-2"] if "websocket" in features else ["r-1", "r-2"])


def test_a_ping_is_answered_with_the_load(linked: LinkedWorker) -> None:
    peer = linked.begin()
    linked.backend.load = 2
    peer.send("ping", timestamp_unix_ms=7)
    assert peer.receive() == {"type": "pong", "current_load": 2, "timestamp_unix_ms": 7}


def test_models_are_told_when_asked_for_and_when_they_change(linked: LinkedWorker) -> None:
    peer = linked.begin()
    peer.send("models_refresh", reason="periodic")
    assert peer.receive() == {"type": "models_update", "models": ["m", "new"], "current_load": 0}
    linked.thread.call(linked.link.say_models)
    assert peer.receive()["models"] == ["m", "new"]


# Flow.


def test_a_client_that_reads_slowly_pauses_its_job_alone(linked: LinkedWorker) -> None:
    peer = linked.begin()
    first, second = linked.running(peer, "r-1"), linked.running(peer, "r-2")
    for paused in (True, True, False):
        peer.send("flow", request_id="r-1", paused=paused)
    peer.send("flow", request_id="r-unknown", paused=True)
    assert (first.next(), first.next()) == (True, False)
    linked.thread.turn()
    assert first.told.empty()
    assert second.told.empty()


def test_a_relay_that_reads_slowly_pauses_all_jobs_until_it_has_read(stack: ExitStack, log: Log) -> None:
    server = Server(stack)
    server.narrow()
    linked = LinkedWorker(stack, log, server, server.url)
    peer = linked.begin()
    first, second = linked.running(peer, "r-1"), linked.running(peer, "r-2")
    peer.send("flow", request_id="r-2", paused=True)
    assert second.next() is True
    chunks = 0
    while first.told.empty():
        assert chunks < 1000, "nobody was paused"
        linked.chunk(first, "x" * 65536)
        chunks += 1
    third = linked.running(peer, "r-3")
    assert (first.next(), third.next()) == (True, True)
    assert second.told.empty(), "it was paused already"
    for _ in range(chunks):
        assert len(peer.until("response_chunk")["chunk"]) == 65536
    assert (first.next(), third.next()) == (False, False)
    assert second.told.empty(), "its client is still behind"
    peer.send("flow", request_id="r-2", paused=False)
    assert second.next() is False


# Ends.


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"type":"request"}', '{"type":"nonsense"}', '{"type":"register_ack","worker_id":"w","models":[]}'],
)
def test_a_message_that_is_wrong_ends_the_connection_and_not_the_link(linked: LinkedWorker, text: str) -> None:
    peer = linked.begin()
    job = linked.running(peer)
    peer.send_text(text)
    assert peer.receive()[0] == 1002
    assert job.next() == "abort"
    peer.sock.close()
    linked.log.until("invalid message from a relay: ")
    linked.log.until("connection to a relay lost: ")
    linked.thread.pass_time(1.5)
    linked.accept().welcome()


def test_work_before_the_acknowledgement_is_wrong(linked: LinkedWorker) -> None:
    linked.start()
    peer = linked.accept()
    assert peer.receive()["type"] == "register"
    peer.ask("r-1")
    assert peer.receive() == (1002, "type: expected register_ack first")
    assert linked.backend.jobs.empty()


@pytest.mark.parametrize("features", [["bytes"], ["flow"]])
def test_bytes_go_to_a_relay_that_takes_them(linked: LinkedWorker, features: list[str]) -> None:
    peer = linked.begin(features=features)
    job = linked.running(peer)
    linked.thread.call(lambda: job.reply.chunk(b"\xff\0", 200, {"content-type": "audio/wav"}))
    linked.thread.call(lambda: job.reply.complete(200, {}, b"\x80"))
    chunk, end = peer.receive(), peer.receive()
    if "bytes" in features:
        assert (chunk["chunk"], chunk["encoding"], end["body"], end["encoding"]) == ("/wA=", "base64", "gA==", "base64")
    else:
        assert (chunk["chunk"], end["body"]) == ("\ufffd\0", "\ufffd")
        assert linked.log.until("the answer is not text, which is all that this relay carries")


@pytest.mark.parametrize("features", [["flow"], []])
def test_a_relay_that_takes_any_end_for_a_good_one_is_given_the_late_error(
    linked: LinkedWorker, features: list[str]
) -> None:
    peer = linked.begin(features=features)
    job = linked.running(peer)
    linked.chunk(job, "data: 1\n\n")
    assert peer.receive()["chunk"] == "data: 1\n\n"
    linked.complete(job, 502)
    if not features:
        late = '\n\ndata: {"error":"the worker failed after it had begun to answer"}\n\n'
        assert peer.receive() == {"type": "response_chunk", "request_id": "r-1", "chunk": late}
    assert peer.receive()["status_code"] == 502
    # One that was cancelled may be in flight there no more.
    job = linked.running(peer, "r-2")
    linked.chunk(job, "data: 1\n\n")
    peer.send("cancel", request_id="r-2", reason="timeout")
    assert (peer.receive()["type"], peer.receive()["status_code"]) == ("response_chunk", 499)


def test_a_lost_connection_aborts_its_jobs(linked: LinkedWorker) -> None:
    peer = linked.begin()
    jobs = [linked.running(peer, f"r-{number}") for number in range(3)]
    peer.sock.close()
    assert [job.next() for job in jobs] == ["abort"] * 3
    linked.log.until("connection to a relay lost: ")


def test_a_relay_that_pings_only_idle_workers_is_pinged_while_its_stream_goes_on(linked: LinkedWorker) -> None:
    peer = linked.begin()
    job = linked.running(peer)
    for number in range(8):
        linked.thread.pass_time(31.0)
        linked.chunk(job, f"data: {number}\n\n")
        assert peer.until("response_chunk")["chunk"] == f"data: {number}\n\n"
    assert peer.pinged > 0
    linked.complete(job)
    assert peer.receive()["type"] == "response_complete"


def test_a_relay_that_says_something_is_not_pinged(linked: LinkedWorker) -> None:
    peer = linked.begin()
    for _ in range(5):
        peer.send("ping")
        assert peer.receive()["type"] == "pong"
        linked.thread.pass_time(31.0)
    assert peer.pinged == 0


def test_a_relay_that_answers_no_ping_is_left(linked: LinkedWorker) -> None:
    peer = linked.begin()
    linked.log.until("registered")
    for _ in range(2):
        linked.thread.pass_time(31.0)
        assert linked.log.lines.empty()
    linked.thread.pass_time(31.0)
    linked.log.until("a relay: closed: no answer to a ping within 30 s")
    linked.log.until("connection to a relay lost: ")
    peer.sock.close()
    linked.thread.pass_time(1.5)
    linked.accept().welcome()


def test_a_relay_that_lets_us_go_gets_its_answers_and_sees_us_again(linked: LinkedWorker) -> None:
    peer = linked.begin()
    job = linked.running(peer)
    peer.send("graceful_shutdown", reason="maintenance", drain_timeout_secs=30)
    peer.ask("r-2")
    refused = peer.receive()
    assert (refused["request_id"], refused["status_code"]) == ("r-2", 503)
    assert json.loads(refused["body"]) == {"error": "the worker is leaving this relay"}
    linked.chunk(job, "data: 1\n\n")
    linked.complete(job)
    assert peer.receive()["type"] == "response_chunk"
    assert peer.receive()["request_id"] == "r-1"
    assert peer.receive() == (1000, "")
    peer.sock.close()
    linked.log.until("disconnected from a relay that had asked for it")
    linked.thread.pass_time(1.9)
    assert linked.link._connection is None
    linked.thread.pass_time(0.6)
    linked.accept().welcome()


def test_draining_offers_no_models_finishes_and_ends(linked: LinkedWorker) -> None:
    peer = linked.begin()
    job = linked.running(peer)
    linked.thread.call(linked.link.drain)
    assert peer.receive() == {"type": "models_update", "models": [], "current_load": 0}
    linked.thread.call(linked.link.say_models)
    assert not linked.link.over
    linked.complete(job)
    assert peer.receive()["type"] == "response_complete"
    assert peer.receive() == (1000, "")
    peer.sock.close()
    linked.thread.until(lambda: linked.link.over)


@pytest.mark.parametrize("stage", ["dialing", "handshake", "waiting"])
def test_a_link_that_is_not_up_drains_at_once(linked: LinkedWorker, stage: str) -> None:
    linked.start()
    if stage != "dialing":
        peer = linked.accept()
    if stage == "waiting":
        peer.close(1008)
        until_waiting(linked)
    linked.thread.call(linked.link.drain)
    if stage == "handshake":
        while peer.receive() is not None:
            pass
        peer.sock.close()
    linked.thread.until(lambda: linked.link.over)
    linked.thread.pass_time(100.0)
    assert linked.link._dialing is None or linked.link._dialing.over


# The whole worker.


class Running:
    """A worker in a thread of its own."""

    def __init__(self, stack: ExitStack, **settings: Any) -> None:
        self.server = WorkerServer(WorkerConfig(worker_secret=SECRET, **settings))
        self.status: queue.Queue[int] = queue.Queue()
        self._thread = threading.Thread(target=lambda: self.status.put(self.server.run()), daemon=True)
        self._thread.start()
        stack.callback(self._stop)

    def _stop(self) -> None:
        if self._thread.is_alive() and self.status.empty():
            self.server.stop()

    def end(self) -> int:
        return self.status.get(timeout=PATIENCE_S)


def test_a_worker_looks_up_its_models_works_for_several_relays_and_drains(stack: ExitStack, log: Log) -> None:
    relays, server = [Server(stack), Server(stack)], Server(stack)
    worker = Running(stack, relay=tuple(relay.url for relay in relays), backend=server.url, max_concurrent=1, name="n")
    BackendPeer(server.accept()).answer(listing("a", "b"))
    peers = [RelayPeer(relay.accept()) for relay in relays]
    registered = [peer.welcome() for peer in peers]
    assert len({one.pop("instance") for one in registered}) == 1, (
        "relays that know each other see that it is one worker"
    )
    for one in registered:
        assert one == {
            "type": "register", "worker_name": "n", "models": ["a", "b"], "max_concurrent": 1,
            "protocol_version": "1",
            "current_load": 0, "features": ["flow", "bytes", "forms"],
        }  # fmt: skip
    peers[0].ask("r-1", '{"stream":true}', is_streaming=True)
    first = BackendPeer(server.accept())
    peers[1].ask("r-1")
    peers[1].send("ping")
    assert peers[1].receive()["current_load"] == 2, "what waits for the one place counts, for whichever relay"
    worker.server.stop()
    assert [peer.until("models_update")["models"] for peer in peers] == [[], []]
    first.answer("data: é\n\n".encode(), kind="text/event-stream")
    assert peers[0].receive()["chunk"] == "data: é\n\n"
    assert peers[0].receive()["status_code"] == 200
    assert peers[0].receive() == (1000, "")
    peers[0].sock.close()
    BackendPeer(server.accept()).answer(b'{"usage":{"total_tokens":7}}')
    answer = peers[1].receive()
    assert (answer["body"], answer["token_counts"]) == ('{"usage":{"total_tokens":7}}', {"total_tokens": 7})
    assert peers[1].receive() == (1000, "")
    peers[1].sock.close()
    assert worker.end() == 0


def test_a_cancel_reaches_the_backend(stack: ExitStack, log: Log) -> None:
    relay, server = Server(stack), Server(stack)
    Running(stack, relay=(relay.url,), backend=server.url, models=("m",), drain_timeout=0.0)
    peer = RelayPeer(relay.accept())
    assert peer.welcome()["models"] == ["m"]
    peer.ask("r-1", is_streaming=True)
    backend = BackendPeer(server.accept())
    backend.begin()
    backend.chunk(b"data: 1\n\n")
    assert peer.receive()["chunk"] == "data: 1\n\n"
    peer.send("cancel", request_id="r-1", reason="client_disconnect")
    assert peer.receive()["status_code"] == 499
    assert backend.ended()


def test_a_backend_that_comes_up_later_is_offered_then(stack: ExitStack, log: Log) -> None:
    relay, server = Server(stack), Server(stack)
    Running(stack, relay=(relay.url,), backend=server.url, refresh_interval=0.05)
    BackendPeer(server.accept()).answer(b"loading", "503 Service Unavailable")
    peer = RelayPeer(relay.accept())
    assert peer.welcome()["models"] == []
    log.until("the backend doesn't list its models: status 503: 'loading'")
    BackendPeer(server.accept()).answer(listing("a"))
    assert peer.receive() == {"type": "models_update", "models": ["a"], "current_load": 0}


def test_what_does_not_end_in_the_time_to_drain_is_left_to_the_relay(stack: ExitStack, log: Log) -> None:
    relay, server = Server(stack), Server(stack)
    worker = Running(stack, relay=(relay.url,), backend=server.url, models=("m",), drain_timeout=0.0)
    peer = RelayPeer(relay.accept())
    peer.welcome()
    peer.ask("r-1")
    backend = BackendPeer(server.accept())
    worker.server.stop()
    assert peer.until_close() == (1000, "the worker is shutting down")
    assert backend.ended()
    peer.sock.close()
    assert worker.end() == 0


def test_sigterm_drains(stack: ExitStack, tmp_path: Path) -> None:
    relay = Server(stack)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.settimeout(PATIENCE_S)
        manager.bind(str(tmp_path / "notify"))
        program = (
            "from umaserve.settings.worker import WorkerConfig; from umaserve.worker.server import WorkerServer;"
            f"raise SystemExit(WorkerServer(WorkerConfig(relay=({relay.url!r},), models=('m',),"
            f" worker_secret='s')).run())"
        )
        process = stack.enter_context(
            subprocess.Popen([sys.executable, "-c", program], env={"NOTIFY_SOCKET": str(tmp_path / "notify")})
        )
        stack.callback(process.kill)
        assert manager.recv(4096) == b"STATUS=connecting"
        peer = RelayPeer(relay.accept())
        peer.welcome()
        assert manager.recv(4096).startswith(b"READY=1")
        process.send_signal(signal.SIGTERM)
        assert peer.receive()["models"] == []
        assert peer.receive() == (1000, "")
        peer.sock.close()
        assert process.wait(PATIENCE_S) == 0
