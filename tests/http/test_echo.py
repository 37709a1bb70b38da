"""The WebSocket that sends everything back: in portions, and only to those who are there."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
from http_world import CONFIG, HttpWorld, upgraded
from websockets.frames import Opcode

from umaserve.http.echo import MESSAGES_PER_TURN
from umaserve.wire.websocket import CloseCode, Message, State, WebSocketCodec

ECHO = dataclasses.replace(CONFIG, debug_echo=True, ping_interval=15.0, idle_timeout=60.0)
PING = bytes([0x80 | Opcode.PING, 0])


@pytest.fixture
def world() -> Iterator[HttpWorld]:
    world = HttpWorld(config=ECHO)
    yield world
    world.close()


@pytest.fixture
def codec(world: HttpWorld) -> WebSocketCodec:
    return upgraded(world, "/debug/echo")


def take(world: HttpWorld, codec: WebSocketCodec) -> list[Message]:
    """The messages that came back; pings are answered."""
    codec.receive_data(world.received().removesuffix(b"<closed>"))
    messages = []
    while (message := codec.next_message()) is not None:
        messages.append(message)
    world.send(codec.take_output())
    return messages


def test_each_message_comes_back_however_many_come_at_once(world: HttpWorld, codec: WebSocketCodec) -> None:
    sent = [Message(b"%d" % i, True) for i in range(3 * MESSAGES_PER_TURN + 1)]
    world.send(b"".join(codec.send_message(message) for message in sent))
    world.turn()
    assert take(world, codec) == sent


def test_who_answers_no_ping_is_given_up(world: HttpWorld, codec: WebSocketCodec) -> None:
    world.turn(ECHO.ping_interval)
    assert world.received() == b""
    world.turn(ECHO.ping_interval)
    assert world.received() == PING
    world.turn(ECHO.ping_interval)
    assert world.received() == b"<closed>"
    assert len(world.lost) == 1


def test_who_answers_pings_stays_until_it_has_said_nothing_for_too_long(
    world: HttpWorld, codec: WebSocketCodec
) -> None:
    for _ in range(3):
        for _ in range(5):
            world.turn(ECHO.idle_timeout / 6)
            assert take(world, codec) == []
        world.send(codec.send(b"here"))
        assert take(world, codec) == [Message(b"here", True)]
    for _ in range(6):
        assert codec.state is State.OPEN
        world.turn(ECHO.idle_timeout / 6)
        assert take(world, codec) == []
    assert (codec.state, codec.close_code) == (State.LEFT, CloseCode.GOING_AWAY)


def test_nobody_is_late_who_has_gone(world: HttpWorld, codec: WebSocketCodec, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    world.client.close()
    for _ in range(10):
        world.turn(ECHO.ping_interval)
    assert len(world.lost) == 1
    assert "closed: no message" not in caplog.text
