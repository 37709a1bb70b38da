"""One HTTP connection on a loop whose clock the test moves: deadlines, refusals before the body, mistakes of ours."""

from __future__ import annotations

import base64
import json
import re
import struct
from typing import Any

import numpy as np
import pytest
from http_world import CONFIG, HEALTH, PAGE, HttpWorld, last_words, post, upgraded
from routes import routes
from standin import StandInVoice

from umaserve.core.errors import Fault, RequestError
from umaserve.core.events import Finished, FinishReason, Output, Started, Timing, Token, Usage
from umaserve.core.requests import Generate
from umaserve.daemon.http.routes import Routes
from umaserve.dialects import sse
from umaserve.dialects.openai.errors import ERRORS
from umaserve.dialects.routes import FormReply, HttpDialect, Page, Route, TextReply
from umaserve.sessions.session import Hold
from umaserve.stages.spoken import Speech
from umaserve.wire.pcm import pcm16
from umaserve.wire.websocket import Message

# Deadlines.


def test_a_connection_that_is_kept_alive_with_pages_has_a_deadline_for_each_request(world: HttpWorld) -> None:
    for _ in range(10):
        world.turn(9.0)
        world.send(HEALTH)
        assert world.statuses() == [200]
    world.turn(60.0)
    assert world.received() == b"<closed>"


def test_a_head_that_is_begun_with_the_last_ones_end_has_its_whole_time(world: HttpWorld) -> None:
    for _ in range(10):
        world.send(HEALTH[:10])
        world.turn(9.0)
        world.send(HEALTH[10:] + b"G")
        assert world.statuses() == [200]
        world.turn(9.0)
        world.send(HEALTH[1:])
        assert world.statuses() == [200]
    world.send(b"G")
    world.turn(9.9)
    assert world.statuses() == []
    world.turn(0.1)
    assert world.statuses() == [408]


def test_a_byte_now_and_then_keeps_no_connection_open(world: HttpWorld) -> None:
    for byte in HEALTH[:9]:
        world.send(bytes([byte]))
        world.turn(1.0)
    assert world.received() == b""
    world.turn(1.0)
    assert world.received().endswith(b"<closed>")


def test_a_deadline_that_comes_while_the_last_words_are_read_does_nothing(world: HttpWorld) -> None:
    world.send(HEALTH[:-2])
    world.turn(9.0)
    world.send(b"Connection: close\r\n\r\nGET /")
    assert world.statuses() == [200]
    for _ in range(20):
        world.turn(1.0)
    assert world.received() == b"<closed>"
    assert world.lost == [world.connection]


def test_nobody_is_late_whose_connection_the_server_ends(world: HttpWorld, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    world.send(b"GET")
    world.connection.close()
    for _ in range(20):
        world.turn(1.0)
    assert world.received() == b"<closed>"
    assert "did not arrive in time" not in caplog.text


def test_a_body_has_its_own_time_and_an_answer_has_none(world: HttpWorld) -> None:
    wire = post("/tokenize", {"content": "hello"})
    world.send(wire[:-1])
    world.turn(19.0)
    world.send(wire[-1:])
    world.turn(1000.0)
    assert world.received() == b""
    world.preparing.step()
    world.turn()
    assert world.statuses() == [200]


def test_embeddings_are_traced_and_tokens_are_not(world: HttpWorld) -> None:
    texts = [("/tokenize", {"content": "x"}), *(("/v1/embeddings", {"input": text}) for text in ("x", "refuse"))]
    for path, fields in texts:
        world.send(post(path, {**fields, "model": "stand-in"}))
        for _ in range(3):
            world.preparing.step()
            world.compute.step()
            world.turn()
    assert world.statuses() == [200, 200, 400]
    told = [(operation, model, end) for operation, model, _, _, end in world.traced]
    assert told == [("embeddings", "stand-in", "done"), ("embeddings", "stand-in", "context_exceeded")]


# What ends a conversation.


@pytest.mark.parametrize("running", [False, True])
@pytest.mark.parametrize(
    ("message", "error", "code"),
    [
        (Message(b"x" * 5001, True), "message: expected at most 5000 bytes, got 5001", 1009),
        (Message(b"{}", False), "message: expected text, got binary", 1003),
        (Message(b"\xff", True), "text: expected UTF-8", 1007),
    ],
)
def test_a_chat_that_the_codec_ends_is_told_why(
    world: HttpWorld, message: Message, error: str, code: int, running: bool
) -> None:
    codec = upgraded(world, "/ws/chat")
    if running:
        world.send(codec.send(b'{"messages":[{"role":"user","content":"Hi"}]}'))
        assert len(list(world.sessions.running())) == 1
    world.send(codec.send_message(message))
    assert last_words(world, codec) == [{"type": "error", "error": error}, code]
    assert not list(world.sessions.running())


def test_a_chat_whose_message_does_not_come_in_time_is_told_so(world: HttpWorld) -> None:
    codec = upgraded(world, "/ws/chat")
    large = codec.send(b"x" * 4000)
    for start in range(0, 3000, 500):
        world.send(large[start : start + 500])
        world.turn(10.0)
    assert last_words(world, codec) == [{"type": "error", "error": "request: it did not arrive in time"}, 1001]


def test_of_a_generation_the_close_code_says_it_all(world: HttpWorld) -> None:
    codec = upgraded(world, "/generate")
    world.send(codec.send_message(Message(b"{}", False)))
    assert last_words(world, codec) == [1003]
    other = HttpWorld()
    codec = upgraded(other, "/generate")
    other.turn(60.0)
    assert last_words(other, codec) == [1001]
    other.close()


# Refused by the head alone.


@pytest.mark.parametrize("expects", [True, False])
@pytest.mark.parametrize(
    ("line", "host", "content_type", "status"),
    [
        (b"POST /tokenize", b"localhost", b"application/json", None),
        (b"POST /nowhere", b"localhost", b"application/json", 404),
        (b"POST /tokenize", b"evil.example", b"application/json", 403),
        (b"POST /tokenize", b"localhost\r\nOrigin: http://evil.example", b"application/json", 403),
        (b"PUT /tokenize", b"localhost", b"application/json", 405),
        (b"POST /tokenize", b"localhost", b"text/plain", 415),
    ],
)
def test_a_body_is_asked_of_nobody_who_is_refused(
    world: HttpWorld, line: bytes, host: bytes, content_type: bytes, status: int | None, expects: bool
) -> None:
    expect = b"Expect: 100-continue\r\n" if expects else b""
    world.send(
        b"%b HTTP/1.1\r\nHost: %b\r\nContent-Type: %b\r\nContent-Length: 1000\r\n%b\r\n"
        % (line, host, content_type, expect)
    )
    if status is None:
        assert world.statuses() == ([100] if expects else [])
        return
    received = world.received()
    assert received.startswith(b"HTTP/1.1 %d " % status)
    assert b"\r\nConnection: close\r\n" in received
    assert received.endswith(b"<closed>")


WITH_MEDIA = (
    *("/v1/chat/completions", "/v1/chat/completions/input_tokens", "/v1/messages", "/v1/messages/count_tokens"),
    *("/v1/responses", "/v1/responses/input_tokens", "/v1/responses/compact"),
    *("/api/chat", "/api/generate", "/v1/generate", "/mcp"),
)
FORMS = [path for path, route in routes().items() if isinstance(route.endpoint, FormReply)]


@pytest.mark.parametrize(
    ("path", "most"),
    [
        *((path, CONFIG.max_chat_bytes) for path in (*WITH_MEDIA, *FORMS, "/chat/completions/")),
        *(
            (path, CONFIG.max_frame_bytes)
            for path, route in routes().items()
            if route.method == "POST" and path not in (*WITH_MEDIA, *FORMS)
        ),
    ],
)
def test_only_bodies_that_carry_media_may_be_large(path: str, most: int) -> None:
    # An empty object asks for a client secret or a conversation with the defaults; the body of a cancel is ignored, and
    # without a store there are no batches.
    taken = (
        200
        if path in ("/v1/conversations", "/v1/realtime/client_secrets")
        else 404
        if path.endswith("/cancel") and not path.startswith("/v1/batches")
        else 400
    )
    for n_bytes, status in ((most, taken), (most + 1, 413)):
        world = HttpWorld()
        kind = "multipart/form-data; boundary=b" if path in FORMS else "application/json"
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\nContent-Length: {n_bytes}"
        world.send(head.encode() + b"\r\n\r\n")
        if status == taken:
            assert world.received() == b""
            world.send(b"{}" + b" " * (n_bytes - 2))
        assert world.statuses() == [status]
        world.close()


@pytest.mark.parametrize(
    "framed",
    [b"Content-Length: 5001\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n1389\r\n", b"Expect: more\r\n\r\n"],
)
def test_a_page_may_read_why_its_body_was_refused(
    world: HttpWorld, framed: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    line = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    world.send(line + b"Origin: %b\r\n" % PAGE.encode() + framed)
    received = world.received()
    assert received[:12] in (b"HTTP/1.1 413", b"HTTP/1.1 417")
    assert b"\r\nAccess-Control-Allow-Origin: %b\r\n" % PAGE.encode() in received
    (refused,) = [record for record in caplog.records if record.message == "request refused"]
    assert vars(refused)["fields"]["path"] == "/v1/chat/completions"


def test_each_request_is_judged_by_itself(world: HttpWorld) -> None:
    world.send(post("/nowhere") + HEALTH + post("/tokenize") + post("/health") + HEALTH)
    assert world.statuses() == [404, 200, 400, 405, 200]


def test_aliases_and_slashes_at_the_end_lead_to_the_same_route(world: HttpWorld) -> None:
    get = HEALTH.replace(b"/health", b"%b")
    world.send(get % b"/models" + get % b"/v1/models/" + get % b"/models/" + post("/tokenize/"))
    assert world.statuses() == [200, 200, 200, 400]
    world.send(post("/chat/completions/"))
    head, _, body = world.received().partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert json.loads(body)["error"]["param"] == "messages"


def test_health_names_the_threads_that_do_not_advance(world: HttpWorld) -> None:
    world.stuck["preparing"] = 75.25
    world.send(HEALTH)
    head, _, body = world.received().partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 ")
    assert json.loads(body) == {
        "status": "stuck",
        "error": {
            "message": "server: the preparing thread has not advanced for 75 s: restart it if this persists",
            "code": 503,
        },
        "threads": {"preparing": 75.25},
    }


def probed(world: HttpWorld, path: bytes) -> tuple[int, str, str]:
    """Status, and the body's ``status`` and message."""
    world.send(HEALTH.replace(b"/health", path))
    head, _, body = world.received().partition(b"\r\n\r\n")
    answer = json.loads(body)
    return int(head.split()[1]), answer["status"], answer.get("error", {}).get("message", "")


def test_ready_is_no_while_requests_would_wait_and_live_is_until_a_restart_is_due(world: HttpWorld) -> None:
    ready, live = b"/health/ready", b"/health/live"
    assert probed(world, ready) == probed(world, live) == (200, "ok", "")
    world.tick_s = 9.0
    assert probed(world, ready) == (200, "ok", "")
    world.tick_s = 11.0
    assert probed(world, ready) == (503, "stuck", "model: a call to the engine of stand-in does not return")
    world.recovers = True
    assert probed(world, ready) == (503, "loading", "model: its engine process has ended, and a new one is starting")
    world.loaded = world.recovers = False
    world.tick_s = 0.0
    assert probed(world, ready) == (503, "loading", "model: it is still loading")
    assert probed(world, live) == probed(world, b"/health/live") == (200, "ok", "")
    world.leaving = True
    assert probed(world, ready) == (503, "draining", "server: it is shutting down")
    assert probed(world, live) == (200, "ok", "")
    world.loaded, world.leaving = True, False
    world.stuck["compute"] = 301.0
    assert probed(world, ready) == probed(world, live) == probed(world, b"/health")
    assert probed(world, live)[:2] == (503, "stuck")


@pytest.mark.parametrize(("peer", "status"), [("ip:127.0.0.1", 403), ("uid:1000", 200)])
def test_over_a_file_any_host_is_ours(peer: str, status: int) -> None:
    world = HttpWorld(peer)
    world.send(HEALTH.replace(b"localhost", b"evil.example"))
    assert world.statuses() == [status]
    world.send(HEALTH.replace(b"localhost", b"localhost\r\nOrigin: http://evil.example"))
    assert world.statuses() == [403]
    world.close()


# Questions.


def test_who_leaves_has_its_question_forgotten(world: HttpWorld) -> None:
    world.send(post("/tokenize", {"content": "hello"}))
    assert [question.forgotten for question in world.asked] == [False]
    world.client.close()
    world.turn()
    assert [question.forgotten for question in world.asked] == [True]
    world.preparing.step()
    world.turn()
    assert world.lost == [world.connection]


def test_one_question_too_many_is_told_when_to_come_back(world: HttpWorld) -> None:
    others = [HttpWorld() for _ in range(4)]
    site = world.connection._site
    for other in others:
        other.connection._site = site
        other.send(post("/tokenize", {"content": "hello"}))
    world.send(post("/tokenize", {"content": "hello"}))
    received = world.received()
    assert received.startswith(b"HTTP/1.1 503 ")
    assert b"\r\nRetry-After: 1\r\n" in received
    assert b"requests of this kind are waiting" in received
    for other in others:
        other.close()


# Mistakes of ours.


def mistake(*_arguments: object) -> Any:
    raise ZeroDivisionError("ours")


class Body:
    """A dialect that makes a mistake at one of its outputs."""

    end = None
    done = True
    headers = (("x-told", "yes"),)
    stream_type = sse.CONTENT_TYPE
    whole_type = "application/json"
    ping = staticmethod(sse.ping)
    frame = staticmethod(sse.event)

    def __init__(self, at: str, streaming: bool) -> None:
        self.at, self.streaming = at, streaming

    def receive(self, _body: bytes) -> list[Generate]:
        return [Generate("a", "hello"), Generate("b", "hello")]

    def send(self, _index: int, output: Output) -> list[bytes]:
        if type(output).__name__ == self.at:
            mistake()
        return [b"event"] if self.streaming else []

    def result(self) -> bytes:
        return mistake() if self.at == "result" else b"{}"


def set_route(world: HttpWorld, method: str, endpoint: Page | TextReply) -> None:
    world.site._routes = Routes([HttpDialect("own", {"/props": Route(method, endpoint)}, ERRORS)])


def check_500(world: HttpWorld) -> None:
    received = world.received()
    assert received.startswith(b"HTTP/1.1 500 ")
    assert b"request: internal error; see the server's log" in received
    assert b"ours" not in received
    assert received.count(b"\r\nConnection: close\r\n") == 1
    assert received.endswith(b"<closed>")


def test_a_page_that_fails_is_a_500_and_the_end(world: HttpWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    set_route(world, "GET", Page(mistake))
    world.send(HEALTH.replace(b"/health", b"/props") + HEALTH)
    check_500(world)


@pytest.mark.parametrize("at", ["Token", "result"])
def test_an_answer_that_fails_before_it_begins_is_a_500(
    world: HttpWorld, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    set_route(world, "POST", TextReply(lambda _services: Body(at, streaming=False)))
    world.send(post("/props"))
    running = list(world.sessions.running())
    assert len(running) == 2
    world.sessions.put(running[0], Token("x", 1))
    world.sessions.put(running[0], Finished(FinishReason.STOP, Usage(1, 1), Timing(0.0, 0.0, 0.0)))
    world.deliver()
    check_500(world)
    assert list(world.sessions.running()) == [], "its sessions end with it"


def test_a_stream_that_fails_after_it_began_ends_without_its_end(
    world: HttpWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_route(world, "POST", TextReply(lambda _services: Body("Finished", streaming=True)))
    world.send(post("/props"))
    session = next(world.sessions.running())
    world.sessions.put(session, Token("x", 1))
    world.deliver()
    world.sessions.put(session, Finished(FinishReason.STOP, Usage(1, 1), Timing(0.0, 0.0, 0.0)))
    world.deliver()
    received = world.received()
    assert received.startswith(b"HTTP/1.1 200 ")
    assert b"\r\nX-Accel-Buffering: no\r\nx-told: yes\r\n" in received
    assert b"data: event\n\n" in received
    assert received.endswith(b"<closed>")
    assert b"0\r\n\r\n" not in received
    assert list(world.sessions.running()) == []


def test_a_stream_that_fails_before_its_prompt_starts_is_an_error_of_http(world: HttpWorld) -> None:
    world.send(post("/v1/chat/completions", {"messages": [{"role": "user", "content": "hello"}], "stream": True}))
    (session,) = world.sessions.running()
    world.sessions.put(session, Started())
    world.deliver()
    assert world.received() == b""
    world.sessions.fail(session, RequestError(Fault.MEMORY_PRESSURE, "request", "try again later"))
    world.deliver()
    assert world.statuses() == [503]


def test_a_body_that_fails_after_it_set_something_going_takes_that_along(
    world: HttpWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_route(world, "POST", TextReply(lambda _services: Body("", streaming=True)))
    monkeypatch.setattr("umaserve.daemon.exchange.stages_of", mistake)
    world.send(post("/props"))
    check_500(world)
    assert world.sessions.totals.sessions == 1
    assert list(world.sessions.running()) == []


@pytest.mark.parametrize("wire", [HEALTH, post("/tokenize", {"content": "hello"})], ids=["page", "question"])
def test_a_reply_that_cannot_be_written_costs_the_connection_and_nothing_else(
    world: HttpWorld, monkeypatch: pytest.MonkeyPatch, wire: bytes
) -> None:
    # What comes back from a worker's thread is called in the loop's own hook, which may raise nothing.
    monkeypatch.setattr(world.connection, "_common", lambda: [("Bad\nName", "x")])
    world.send(wire)
    world.preparing.step()
    world.turn()
    assert world.received() == b"<closed>"
    assert world.lost == [world.connection]


# Speech.


def chunks(received: bytes) -> list[bytes]:
    """Those of a body that may still be coming."""
    _head, _, rest = received.partition(b"\r\n\r\n")
    found = []
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        found.append(rest[: int(size, 16)])
        rest = rest[int(size, 16) + 2 :]
    return found


def sound(text: str) -> bytes:
    """What the stand-in voice says, as 16-bit numbers."""
    return struct.pack(f"<{len(text)}h", *(round(ord(char) / 2**21 * 32767) for char in text))


def reading(text: str = "One. Two. Three.", **more: Any) -> bytes:
    return post("/v1/audio/speech", {"input": text, "voice": "alloy", "response_format": "wav", **more})


@pytest.mark.parametrize("audio_format", ["wav", "pcm"])
def test_a_text_is_sent_as_its_sentences_are_spoken(spoken: HttpWorld, audio_format: str) -> None:
    spoken.send(reading(response_format=audio_format))
    assert spoken.received() == b""
    spoken.speak()
    begin = spoken.received()
    assert begin.startswith(b"HTTP/1.1 200 ")
    assert b"\r\nContent-Type: audio/%b\r\n" % audio_format.encode() in begin
    assert b"\r\nTransfer-Encoding: chunked\r\n" in begin
    header = [b"RIFF\xff\xff\xff\xffWAVE"] if audio_format == "wav" else []
    assert [chunk[: len(header[0])] for chunk in chunks(begin)[:-1]] == header
    assert chunks(begin)[-1] == sound("One.")
    assert not spoken.speech.idle
    spoken.speak()
    assert spoken.received() == b"8\r\n" + sound("Two.") + b"\r\n"
    spoken.speak()
    assert spoken.received().endswith(sound("Three.") + b"\r\n0\r\n\r\n")
    spoken.send(HEALTH)
    assert spoken.statuses() == [200]


def events(received: bytes) -> list[Any]:
    """The data of the events in a reply's chunks."""
    return [json.loads(event.removeprefix(b"data: ")) for event in b"".join(chunks(received)).split(b"\n\n") if event]


def delta(data: bytes) -> Any:
    return {"type": "speech.audio.delta", "audio": base64.b64encode(data).decode()}


@pytest.mark.parametrize("text", ["One. Two.", "One. Fail.", "***"])
def test_a_text_is_sent_in_events_and_so_is_its_end(spoken: HttpWorld, text: str) -> None:
    spoken.send(reading(text, response_format="pcm", stream_format="sse"))
    for _ in range(2):
        if spoken.speaking.jobs:
            spoken.speak()
    spoken.turn()
    received = spoken.received()
    assert b"\r\nContent-Type: text/event-stream\r\n" in received
    *deltas, last = events(received)
    heard = {"One. Two.": ["One.", "Two."], "One. Fail.": ["One."], "***": []}[text]
    assert deltas == [delta(sound(sentence)) for sentence in heard]
    if text == "One. Fail.":
        assert "told to fail" in last["error"]["message"]
    else:
        assert last == {"type": "speech.audio.done"}
    spoken.send(HEALTH)
    assert spoken.statuses() == [200], "the connection goes on"


def test_what_has_no_sound_is_an_empty_file(spoken: HttpWorld) -> None:
    spoken.send(reading("***") + reading("…", response_format="pcm"))
    received = spoken.received()
    assert re.findall(rb"\r\nContent-Length: (\d+)\r\n", received) == [b"44", b"0"]
    assert b"data\0\0\0\0" in received


def read_all(world: HttpWorld) -> bytes:
    """What a reader gets who has all the time it needs."""
    data = b""
    while more := world.received():
        data += more
        world.turn()
    return data


LONG = np.linspace(-1, 1, 4 * CONFIG.tx_high_water, dtype=np.float32)
"""A sentence that takes more than sockets hold."""


def test_a_reader_that_is_behind_holds_the_next_sentence(spoken: HttpWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StandInVoice, "speak", lambda *_: LONG)
    spoken.send(reading("One. Two. Three. Four."))
    for _ in range(3):
        spoken.speak()
    assert not spoken.speaking.jobs, "the second was in work already when the reader fell behind"
    assert b"".join(chunks(read_all(spoken))[1:]) == 2 * pcm16(LONG.tobytes())
    for _ in range(2):
        spoken.speak()
        assert pcm16(LONG.tobytes()) in b"".join(chunks(b"\r\n\r\n" + read_all(spoken)))
    assert spoken.speech.idle


def ends(caplog: pytest.LogCaptureFixture) -> list[str]:
    """How the log says that readings ended."""
    return [record.fields["end"] for record in caplog.records if record.message == "text read aloud"]


@pytest.mark.parametrize("spoken_before", [0, 1])
def test_who_leaves_is_read_no_more(spoken: HttpWorld, spoken_before: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    spoken.send(reading())
    for _ in range(spoken_before):
        spoken.speak()
    spoken.client.close()
    spoken.turn()
    assert spoken.speech.idle
    spoken.speak()
    assert not spoken.speaking.jobs
    assert ends(caplog) == ["abandoned"]


def test_a_failure_before_the_first_sound_is_an_error_and_a_later_one_the_end(
    spoken: HttpWorld, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    spoken.send(reading("Fail. Two."))
    spoken.speak()
    received = spoken.received()
    assert received.startswith(b"HTTP/1.1 500 ")
    assert b"tts: told to fail" in received
    spoken.send(reading("One. Fail."))
    spoken.speak()
    assert chunks(spoken.received())[-1] == sound("One.")
    spoken.speak()
    assert spoken.received() == b"<closed>", "without the last chunk"
    assert spoken.lost == [spoken.connection]
    assert ends(caplog) == ["decode_failed"] * 2
    assert [(told[0], told[-1]) for told in spoken.traced] == [("speech", "decode_failed")] * 2


def test_a_text_is_refused_like_any_request(spoken: HttpWorld) -> None:
    spoken.send(reading("") + reading(voice=5))
    assert spoken.statuses() == [400, 400]
    spoken.loaded = False
    spoken.send(reading())
    assert spoken.statuses() == [503]
    spoken.loaded = True
    spoken.sessions.draining = True
    spoken.send(reading())
    assert spoken.statuses() == [503]
    assert not spoken.speaking.jobs


def test_what_the_admission_refuses_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    world = HttpWorld(voice=StandInVoice())

    def refuse(*_: object) -> None:
        raise RequestError(Fault.RATE_LIMITED, "request", "the limit is used up", retry_after_s=2.0)

    monkeypatch.setattr(world.sessions, "_admit", refuse)
    world.send(reading())
    received = world.received()
    assert received.startswith(b"HTTP/1.1 429 ")
    assert b"\r\nRetry-After: 2\r\n" in received
    assert world.speech.idle
    world.close()


def test_without_a_voice_nothing_is_read(world: HttpWorld) -> None:
    world.send(reading())
    received = world.received()
    assert received.startswith(b"HTTP/1.1 400 ")
    assert b"pip install 'umaserve[speech]'" in received


def test_the_end_of_the_daemon_ends_a_reading(spoken: HttpWorld) -> None:
    spoken.send(reading())
    spoken.speech.fail_all(RequestError(Fault.SHUTTING_DOWN, "request", "the server is shutting down"))
    spoken.turn()
    assert spoken.statuses() == [503]


def test_a_mistake_of_ours_in_a_reading_ends_its_connection(world: HttpWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world.speech = Speech(StandInVoice(), lambda: None, world.speaking)
    monkeypatch.setattr("umaserve.dialects.spoken_reply.pcm16", mistake)
    object.__setattr__(world.services, "speech", world.speech)
    world.send(reading())
    world.speak()
    check_500(world)
    assert world.speech.idle


AUDIO = {"modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "pcm16"}}


def ask_aloud(world: HttpWorld, **more: Any) -> None:
    world.send(post("/v1/chat/completions", {"messages": [{"role": "user", "content": "hello"}], **AUDIO, **more}))


def answer(world: HttpWorld, *outputs: Output) -> None:
    (session,) = world.sessions.running()
    for output in outputs:
        world.sessions.put(session, output)
    world.deliver()


END = Finished(FinishReason.STOP, Usage(1, 1), Timing(0.0, 0.0, 0.0))


def heard(received: bytes) -> bytes:
    return b"".join(map(base64.b64decode, re.findall(rb'"data":"([^"]*)"', received)))


@pytest.mark.parametrize("stream", [True, False])
def test_the_answer_of_a_chat_is_spoken(spoken: HttpWorld, stream: bool) -> None:
    ask_aloud(spoken, stream=stream)
    answer(spoken, Started(), Token("One. Two.", 1), END)
    assert (b"One. Two." in spoken.received()) is stream
    assert not spoken.speech.idle
    spoken.speak()
    assert len(spoken.speaking.jobs) == 1
    spoken.speak()
    received = spoken.received()
    assert heard(received) in (sound("One.Two."), sound("One.Two.")[6:])
    assert received.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n") is stream


def test_a_chats_reader_that_is_behind_holds_its_speech(spoken: HttpWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StandInVoice, "speak", lambda *_: LONG)
    ask_aloud(spoken, stream=True)
    (session,) = spoken.sessions.running()
    spoken.sessions.prompt_done(session)
    answer(spoken, Started(), Token("One. Two. Three. Four", 1))
    for _ in range(3):
        spoken.speak()
    assert not spoken.speaking.jobs
    assert session.holds == {Hold.READER}
    assert heard(read_all(spoken)) == (2 * pcm16(LONG.tobytes()))[: -(4 * len(LONG) % 6) or None]
    assert not session.holds
    assert len(spoken.speaking.jobs) == 1


def test_who_leaves_a_chat_is_spoken_to_no_more(spoken: HttpWorld) -> None:
    ask_aloud(spoken, stream=True)
    answer(spoken, Started(), Token("One. Two. ", 1))
    spoken.client.close()
    spoken.turn()
    assert spoken.speech.idle
    assert list(spoken.sessions.running()) == []
    spoken.speak()
    assert not spoken.speaking.jobs


@pytest.mark.parametrize("stream", [True, False])
def test_a_voice_that_fails_ends_the_chat(spoken: HttpWorld, stream: bool) -> None:
    ask_aloud(spoken, stream=stream)
    answer(spoken, Started(), Token("Fail. Two. ", 1))
    spoken.speak()
    received = spoken.received()
    assert received.startswith(b"HTTP/1.1 200 " if stream else b"HTTP/1.1 500 ")
    assert b"tts: told to fail" in received
    assert list(spoken.sessions.running()) == []
