"""Clients that finish sending before they have their answers, and clients that look so but have left."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator

import pytest
from http_world import HEALTH, HttpWorld, post

from umaserve.core.events import Finished, FinishReason, Timing, Token, Usage
from umaserve.http.connection import REQUESTS_PER_TURN
from umaserve.net.channel import FIRST_POLL_S, HALF_CLOSED_POLL_S

COMPLETION = {"prompt": "Once", "max_tokens": 4}
HANDSHAKE = (
    b"GET %b HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


class TcpWorld(HttpWorld):
    """Over TCP a peer that has closed its socket can't be told from one that only finished sending."""

    def sockets(self) -> tuple[socket.socket, socket.socket]:
        with socket.create_server(("127.0.0.1", 0)) as server:
            client = socket.create_connection(server.getsockname())
            return server.accept()[0], client

    def ask_and_finish(self, data: bytes) -> None:
        self.send(data)
        self.client.shutdown(socket.SHUT_WR)
        self.turn()

    def token(self, text: str) -> None:
        for session in list(self.sessions.running()):
            self.sessions.put(session, Token(text, 1))
        self.deliver()

    def finish(self) -> None:
        for session in list(self.sessions.running()):
            self.sessions.put(session, Finished(FinishReason.STOP, Usage(1, 1), Timing(0.0, 0.0, 0.0)))
        self.deliver()


@pytest.fixture
def tcp() -> Iterator[TcpWorld]:
    world = TcpWorld()
    yield world
    world.close()


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/generate"])
@pytest.mark.parametrize("stream", [False, True])
def test_who_finishes_sending_gets_its_answer(tcp: TcpWorld, path: str, stream: bool) -> None:
    whole = TcpWorld()
    received = []
    for each in (tcp, whole):
        request = post(path, COMPLETION | {"stream": stream})
        if each is tcp:
            each.ask_and_finish(request)
        else:
            each.send(request)
        each.turn(100 * HALF_CLOSED_POLL_S)
        assert len(list(each.sessions.running())) == 1
        for text in ("upon", " a"):
            each.token(text)
            each.turn(HALF_CLOSED_POLL_S)
        each.finish()
        received.append(re.sub(rb'(cmpl-|gen_)\w+|"created":\d+|Date: [^\r]+', b"", each.received()))
    whole.close()
    answer, ended = received[0].removesuffix(b"<closed>"), received[0].endswith(b"<closed>")
    assert (answer.replace(b"\r\n\r\n0", b"\r\n\r\n"), ended) == (received[1], True)
    assert b"upon" in answer


@pytest.mark.parametrize("n", [1, REQUESTS_PER_TURN, 3 * REQUESTS_PER_TURN])
def test_all_that_it_asked_is_answered(tcp: TcpWorld, n: int) -> None:
    question = post("/tokenize", {"content": "hello"})
    tcp.ask_and_finish(n * HEALTH + question + question + n * HEALTH)
    for _ in range(2):
        tcp.preparing.step()
        tcp.turn()
    for _ in range(10):
        tcp.turn()
    received = tcp.received()
    assert received.count(b"HTTP/1.1 200 OK\r\n") == 2 * n + 2
    assert received.endswith(b"<closed>")


def test_a_request_that_is_not_whole_is_refused_after_the_answer_before_it(tcp: TcpWorld) -> None:
    tcp.ask_and_finish(post("/tokenize", {"content": "hello"}) + HEALTH[:-1])
    tcp.preparing.step()
    tcp.turn()
    received = tcp.received()
    assert re.findall(rb"HTTP/1\.1 (\d+) ", received) == [b"200", b"400"]
    assert b"the connection's input ended before it was whole" in received
    assert received.endswith(b"<closed>")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("begun", [False, True])
def test_who_has_left_is_found_before_another_token(tcp: TcpWorld, stream: bool, begun: bool) -> None:
    tcp.send(post("/v1/completions", COMPLETION | {"stream": stream}))
    if begun:
        tcp.token("upon")
        assert bool(tcp.received()) == stream
    tcp.client.close()
    tcp.turn()
    tcp.turn(FIRST_POLL_S)
    assert list(tcp.sessions.running()) == []
    assert tcp.lost == [tcp.connection]


def test_who_leaves_with_the_answer_half_read_is_found(tcp: TcpWorld) -> None:
    tcp.ask_and_finish(post("/v1/completions", COMPLETION | {"stream": True}))
    tcp.token("upon")
    assert tcp.received().startswith(b"HTTP/1.1 200 ")
    tcp.client.close()
    tcp.token(" a")
    for _ in range(3):
        tcp.turn(HALF_CLOSED_POLL_S)
    assert tcp.lost == [tcp.connection]


def test_a_client_of_1_0_that_finishes_sending_gets_its_answer(tcp: TcpWorld) -> None:
    tcp.ask_and_finish(post("/v1/completions", COMPLETION | {"stream": True}).replace(b"HTTP/1.1", b"HTTP/1.0"))
    tcp.token("upon")
    tcp.finish()
    received = tcp.received()
    assert received.startswith(b"HTTP/1.1 200 ")
    head, _, body = received.partition(b"\r\n\r\n")
    assert body.startswith(b"data: {")
    assert body.endswith(b"data: [DONE]\n\n<closed>")
    assert head.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize("path", [b"/generate", b"/ws/chat"])
def test_the_end_of_input_is_heard_also_after_an_upgrade(tcp: TcpWorld, path: bytes) -> None:
    tcp.ask_and_finish(post("/tokenize", {"content": "hello"}) + HANDSHAKE % path)
    assert tcp.lost == []
    tcp.preparing.step()
    for _ in range(3):
        tcp.turn()
    received = tcp.received()
    assert re.findall(rb"HTTP/1\.1 (\d+) ", received) == [b"200", b"101"]
    assert received.endswith(b"<closed>"), "a WebSocket without an end of its input is kept until its idle timeout"
    assert len(tcp.lost) == 1


def test_who_finishes_sending_hears_all_of_what_is_read_to_it(spoken: HttpWorld) -> None:
    spoken.send(post("/v1/audio/speech", {"input": "One. Two.", "voice": "alloy"}))
    spoken.speak()
    spoken.client.shutdown(socket.SHUT_WR)
    spoken.turn()
    spoken.speak()
    assert spoken.received().endswith(b"\r\n0\r\n\r\n<closed>")
