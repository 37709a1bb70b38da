"""Large input of many clients at once: what they hold together is bounded, and all of them get on in the end."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from typing import Any, cast

import pytest
from clock import Clock
from http_world import HttpWorld, last_words
from hypothesis import given
from hypothesis import strategies as st

from umaserve.core.events import FinishReason, Placed, Started
from umaserve.http.connection import HttpConnection
from umaserve.net.channel import READ_PER_TURN, Channel
from umaserve.net.input_budget import GONE_POLL_S, InputBudget, InputShare
from umaserve.net.loop import Loop
from umaserve.relay.http import site as relay_site
from umaserve.relay.server import RelayServer
from umaserve.settings.daemon import Config
from umaserve.settings.relay import RelayConfig
from umaserve.wire.websocket import WebSocketCodec

FREE = READ_PER_TURN + 1000
"""What each may hold without asking, by the book of a budget that was made with 1000."""

# The book.


class Peer:
    """A client with messages to send, and as much of a channel as a budget knows."""

    peer_gone = False

    def __init__(self, budget: InputBudget) -> None:
        self.share = budget.share(cast(Channel, self))
        self.unfinished = self.kept = 0
        self.read = True
        """Whether its socket is watched: nobody asks again who is not told to."""

    def reconsider(self) -> None:
        self.read = self.share.may_grow

    @property
    def drawn(self) -> int:
        return max(0, self.unfinished - FREE) + max(0, self.kept - FREE)

    def receive(self, n_bytes: int, message: int) -> None:
        """A part of a message of this size, which is a request."""
        self.unfinished += n_bytes
        if self.unfinished >= message:
            # One more than that is refused.
            self.kept, self.unfinished = self.kept or message, 0
            self.share.keep(self.kept)
        self.share.hold(self.unfinished)
        self.reconsider()

    def prepared(self) -> None:
        self.kept = 0
        self.share.keep(0)


SIZES = st.integers(1, 10 * READ_PER_TURN)
STEPS = st.tuples(st.integers(0, 5), st.sampled_from(["read", "read", "read", "prepared", "leave"]),
                  st.integers(1, READ_PER_TURN))  # fmt: skip


@given(st.integers(1, 20 * READ_PER_TURN), st.lists(SIZES, min_size=6, max_size=6), st.lists(STEPS, max_size=150))
def test_whatever_they_send_the_bound_holds_and_all_get_on(
    total: int, sizes: list[int], steps: list[tuple[int, str, int]]
) -> None:
    loop = Loop(Clock())
    budget = InputBudget(loop, total, 1000)
    peers = [Peer(budget) for _ in sizes]
    drawing: list[Peer] = []
    for index, step, n_bytes in steps:
        peer = peers[index]
        if step == "read" and peer.read:
            peer.receive(n_bytes, sizes[index])
        elif step == "prepared":
            peer.prepared()
        elif step == "leave":
            peer.share.close()
            peer.unfinished = peer.kept = 0
            peers[index] = Peer(budget)
        drawing = [*(p for p in drawing if p.drawn), *(p for p in peers if p.drawn and p not in drawing)]
        assert budget.drawn == sum(p.drawn for p in peers)
        assert budget.drawn < total + max(sizes) + len(peers) * READ_PER_TURN
        assert not drawing or drawing[0].read
        for p in peers:
            assert p.read == p.share.may_grow
            assert p.read or (budget.drawn >= total and p.unfinished > FREE)
    rounds = 0
    done = [False] * len(peers)
    while not all(done):
        rounds += 1
        assert rounds < 10 * sum(sizes) // READ_PER_TURN + 100, "somebody waits for ever"
        for index, peer in enumerate(peers):
            if peer.kept:
                peer.prepared()
                done[index] = not peer.unfinished
            elif peer.read and not done[index]:
                peer.receive(READ_PER_TURN, sizes[index])
    assert budget.drawn == 0
    loop.close()


def test_a_small_message_behind_a_small_request_draws_nothing() -> None:
    loop = Loop(Clock())
    budget = InputBudget(loop, 10, 1000)
    share = budget.share(None)
    share.keep(FREE)
    share.hold(FREE)
    assert (budget.drawn, share.growing) == (0, False)
    loop.close()


def test_who_closes_holds_nothing_whatever_it_still_says() -> None:
    loop = Loop(Clock())
    budget = InputBudget(loop, 10, 1000)
    share = budget.share(None)
    share.keep(10 * FREE)
    share.close()
    share.keep(10 * FREE)
    share.hold(10 * FREE)
    assert (budget.drawn, share.may_grow) == (0, True)
    loop.close()


def test_the_time_that_one_waits_is_counted_once() -> None:
    clock = Clock()
    loop = Loop(clock)
    budget = InputBudget(loop, 1, 1000)
    first, second = Peer(budget).share, Peer(budget).share
    first.hold(2 * FREE)
    clock.now += 1.0
    second.hold(2 * FREE)
    assert (first.may_grow, second.may_grow) == (True, False)
    clock.now += 2.0
    assert second.take_waited() == 2.0
    clock.now += 3.0
    first.hold(0)
    assert second.may_grow
    clock.now += 4.0
    assert (second.take_waited(), second.take_waited(), first.take_waited()) == (3.0, 0.0, 0.0)
    first.hold(2 * FREE)
    clock.now += 5.0
    first.hold(0)
    assert first.take_waited() == 0.0, "what it waited for is over"
    loop.close()


# Connections.

LIMITS = Config(
    header_timeout=10.0,
    body_timeout=20.0,
    idle_timeout=60.0,
    ping_interval=50.0,
    resume_window=0.0,
    max_prompt_bytes=1000,
    max_frame_bytes=1000,
    max_chat_bytes=600_000,
)
LARGE = 590_000
CHAT = {"messages": [{"role": "user", "content": "Hi"}]}
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Client:
    """One that sends a large request over HTTP, or in a message of /ws/chat, as far as it is taken."""

    def __init__(self, world: HttpWorld, kind: str, size: int) -> None:
        self.world, self.kind = world, kind
        self.socket, self.connection = world.join()
        self.codec = WebSocketCodec(1 << 20, client=True)
        body = json.dumps(CHAT).encode().ljust(size)
        if kind == "chat":
            head = b"GET /ws/chat HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            head += b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " + b"A" * 22 + b"==\r\n\r\n"
            self.socket.sendall(head)
            world.turn()
            assert self.socket.recv(4096).startswith(b"HTTP/1.1 101 ")
            self.unsent = self.codec.send(body)
        else:
            head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            self.unsent = head + b"Content-Length: %d\r\n\r\n" % size + body

    def send(self, leave: int = 0) -> None:
        """All but the last ``leave`` bytes, until no more is taken."""
        while len(self.unsent) > leave:
            try:
                sent = self.socket.send(self.unsent[: len(self.unsent) - leave])
            except BlockingIOError:
                unsent = len(self.unsent)
                self.world.turn()
                try:
                    sent = self.socket.send(self.unsent[: len(self.unsent) - leave])
                except BlockingIOError:
                    assert len(self.unsent) == unsent
                    return
            self.unsent = self.unsent[sent:]
            self.world.turn()

    def received(self) -> bytes:
        data = b""
        try:
            while part := self.socket.recv(65536):
                data += part
        except BlockingIOError:
            return data
        return data + b"<closed>"

    @property
    def share(self) -> InputShare:
        handler: Any = self.connection.channel.handler
        return handler._input if self.kind == "chat" else handler.input


class Crowd(HttpWorld):
    """Many such clients of one daemon."""

    def __init__(self) -> None:
        super().__init__(config=LIMITS)
        self.clients: list[Client] = []

    def come(self, kind: str, size: int = LARGE) -> Client:
        self.clients.append(Client(self, kind, size))
        return self.clients[-1]

    def healthy(self) -> bool:
        """Whether a small request is answered."""
        self.send(HEALTH)
        return self.statuses() == [200]

    def let_run(self, *outputs: Any) -> None:
        """All requests come as far as these outputs."""
        for session in list(self.sessions.running()):
            for output in outputs:
                self.sessions.put(session, output)
        self.deliver()

    def pass_time(self, seconds: float) -> None:
        # Timers of a real clock are hardly late.
        for _ in range(round(seconds)):
            self.turn(1.0)

    def close(self) -> None:
        for client in self.clients:
            client.connection.channel.abort()
            client.socket.close()
        assert self.budget.drawn == 0
        super().close()


@pytest.fixture
def crowd(caplog: pytest.LogCaptureFixture) -> Iterator[Crowd]:
    crowd = Crowd()
    yield crowd
    crowd.close()
    assert not [record for record in caplog.get_records("call") if record.exc_info]


KINDS = pytest.mark.parametrize("kind", ["http", "chat"])
MOST = 2 * LIMITS.max_chat_bytes + LARGE


@KINDS
def test_what_is_beyond_the_budget_stays_in_the_kernel_until_others_are_done(crowd: Crowd, kind: str) -> None:
    clients = [crowd.come(kind) for _ in range(8)]
    for client in clients:
        client.send(leave=10_000)
        assert crowd.budget.drawn < MOST + len(clients) * READ_PER_TURN
        assert crowd.healthy()
    waiting = [client for client in clients if not client.share.may_grow]
    assert clients[0] not in waiting
    assert len(waiting) > 3
    assert any(client.unsent[:-10_000] for client in waiting), "its kernel takes no more either"
    for _ in range(20):
        for client in clients:
            client.send()
        assert crowd.budget.drawn < MOST + len(clients) * READ_PER_TURN
        assert crowd.healthy()
        crowd.let_run(Started(), Placed())
    assert [client.unsent for client in clients] == [b""] * len(clients)
    assert sum(1 for _ in crowd.sessions.running()) == len(clients)
    assert crowd.budget.drawn == 0


@KINDS
@pytest.mark.parametrize("end", ["placed", "failed", "left"])
def test_a_request_counts_until_its_media_are_prepared_or_it_ends(crowd: Crowd, kind: str, end: str) -> None:
    client = crowd.come(kind)
    client.send()
    (session,) = crowd.sessions.running()
    crowd.let_run(Started())
    assert crowd.budget.drawn == LARGE - FREE
    if end == "placed":
        crowd.let_run(Placed())
        assert session.running
    elif end == "failed":
        crowd.sessions.expire(-1.0)
        crowd.deliver()
    else:
        client.socket.close()
        crowd.turn()
        assert not session.running
    assert crowd.budget.drawn == 0


@KINDS
def test_a_whole_request_keeps_nobody_from_being_heard(crowd: Crowd, kind: str) -> None:
    for _ in range(2):
        crowd.come("http").send()
    assert crowd.budget.drawn < 2 * LIMITS.max_chat_bytes
    # Its last bytes use the budget up.
    third = crowd.come(kind, 250_000)
    third.send()
    assert crowd.budget.drawn >= 2 * LIMITS.max_chat_bytes
    assert sum(1 for _ in crowd.sessions.running()) == 3
    third.socket.close()
    crowd.turn()
    assert sum(1 for _ in crowd.sessions.running()) == 2


@KINDS
def test_a_deadline_does_not_run_while_one_waits(crowd: Crowd, kind: str) -> None:
    for _ in range(3):
        crowd.come("http").send()
    late = crowd.come(kind)
    late.send()
    assert not late.share.may_grow
    limit = LIMITS.body_timeout if kind == "http" else LIMITS.idle_timeout
    crowd.pass_time(100.0)
    assert late.received() == b""
    crowd.let_run(Started(), Placed())
    assert late.share.may_grow
    crowd.pass_time(limit - 1.0)
    assert late.received() == b""
    crowd.pass_time(1.0)
    assert b"did not arrive in time" in late.received()
    assert late.share.drawn == 0


@KINDS
def test_who_is_read_and_dawdles_is_ended_and_the_others_go_on(crowd: Crowd, kind: str) -> None:
    dawdlers, others = ([crowd.come(kind) for _ in range(n)] for n in (2, 4))
    for client in dawdlers:
        client.send(leave=1)
    for client in others:
        client.send()
    assert [client.share.may_grow for client in others] == [False] * len(others)
    crowd.pass_time((LIMITS.body_timeout if kind == "http" else LIMITS.idle_timeout) - 1.0)
    assert [client.received() for client in dawdlers] == [b"", b""]
    crowd.pass_time(1.0)
    assert [b"did not arrive in time" in client.received() for client in dawdlers] == [True, True]
    for _ in others:
        for client in others:
            client.send()
        crowd.let_run(Started(), Placed())
    assert sum(1 for _ in crowd.sessions.running()) == len(others)


def test_a_message_behind_a_request_that_runs_has_a_deadline_too(crowd: Crowd) -> None:
    client = crowd.come("chat")
    client.send()
    crowd.let_run(Started(), Placed())
    client.unsent = client.codec.send(b" " * LARGE)
    client.send(leave=1)
    assert crowd.budget.drawn == client.share.drawn > 0
    crowd.pass_time(LIMITS.idle_timeout)
    assert b"did not arrive in time" in client.received()
    assert crowd.budget.drawn == 0


def test_nobody_is_taken_for_silent_who_is_not_read(crowd: Crowd) -> None:
    for _ in range(3):
        crowd.come("http").send()
    late = crowd.come("chat")
    late.send()
    assert not late.share.may_grow
    crowd.pass_time(10 * LIMITS.ping_interval)
    assert late.received() == b""
    crowd.let_run(Started(), Placed())
    late.send()
    crowd.let_run(Started(), Placed())
    for session in list(crowd.sessions.running()):
        crowd.sessions.finish(session, FinishReason.STOP)
    crowd.deliver()
    *_, done, code = last_words(cast(HttpWorld, late), late.codec)
    assert (done["type"], code) == ("done", 1000)


@KINDS
def test_who_leaves_while_it_waits_is_noticed(crowd: Crowd, kind: str) -> None:
    for _ in range(3):
        crowd.come("http").send()
    drawn = crowd.budget.drawn
    waiting = [crowd.come(kind) for _ in range(3)]
    for client in waiting:
        client.send()
    assert [client.share.may_grow for client in waiting] == [False] * 3
    for client in waiting[:2]:
        client.socket.shutdown(socket.SHUT_RDWR)
    crowd.turn(GONE_POLL_S)
    crowd.turn(GONE_POLL_S)
    assert [client.connection.channel.open for client in waiting] == [False, False, True]
    assert crowd.budget.drawn == drawn + waiting[2].share.drawn


def test_the_clients_of_a_relay_share_a_budget_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_site, "MAX_BODIES", 4)
    size = 3 << 20
    relay = RelayServer(RelayConfig(worker_secret="s3cret", max_body_bytes=size))
    loop, site = relay._loop, relay._site
    pairs = [socket.socketpair() for _ in range(10)]
    connections = []
    for ours, client in pairs:
        client.setblocking(False)
        channel = Channel(loop, ours, high_water=1 << 16, stall_timeout=60.0)
        connections.append(
            HttpConnection(loop, site, channel, "ip:127.0.0.1", lambda _old, _new: None, lambda _client: None)
        )
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    wire = head + b"Content-Length: %d\r\n\r\n" % size + b" " * (size - 1)
    sent = [0] * len(pairs)
    # More turns than there are reads, were all of them read.
    for _ in range(100):
        for index, (_, client) in enumerate(pairs):
            with contextlib.suppress(BlockingIOError):
                sent[index] += client.send(wire[sent[index] :])
        loop.call_soon(lambda: None)
        loop.turn()
    assert sent[0] == len(wire)
    assert 4 * size <= site.input_budget.drawn < 5 * size + len(pairs) * READ_PER_TURN
    assert not all(connection.input.may_grow for connection in connections)
    for connection, (_, client) in zip(connections, pairs, strict=True):
        connection.channel.abort()
        client.close()
    assert site.input_budget.drawn == 0
    loop.close()
