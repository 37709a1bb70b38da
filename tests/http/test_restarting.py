"""Connections of ``/generate`` whose daemon ends, and leaves their generations to the next one."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator

import pytest
from http_world import CONFIG, HttpWorld, last_words, upgraded

from umaserve.core.events import Finished, FinishReason, Started, Timing, Token, Usage
from umaserve.wire.websocket import CloseCode


class RestartingWorld(HttpWorld):
    """``/generate`` with one generation."""

    def __init__(self) -> None:
        super().__init__(config=dataclasses.replace(CONFIG, resume_window=60.0, resume_file="left"))
        self.codec = upgraded(self, "/generate")
        self.tell(type="config", prompt="Once")
        (self.session,) = self.sessions.running()

    def tell(self, **message: object) -> None:
        self.send(self.codec.send(json.dumps(message).encode()))

    def start(self) -> None:
        self.session.announced = True
        self.sessions.put(self.session, Started())
        self.sessions.put(self.session, Token(" upon", 1))
        self.deliver()

    def words(self) -> list[object]:
        """The types of the messages that came, and the code of the close frame."""
        return [word["type"] if isinstance(word, dict) else word for word in last_words(self, self.codec)]


@pytest.fixture
def world() -> Iterator[RestartingWorld]:
    world = RestartingWorld()
    yield world
    world.close()


def test_one_that_has_a_stream_parts_with_it(world: RestartingWorld) -> None:
    world.start()
    world.services.detached.restart_all()
    world.turn()
    assert world.words() == ["init", "token", CloseCode.SERVICE_RESTART]
    assert world.codec.close_reason.startswith("the server restarts")
    (left,) = world.services.detached.left
    assert left.kept.text == " upon"
    assert world.session.ended


def test_one_whose_client_knows_no_id_yet_is_told_as_ever(world: RestartingWorld) -> None:
    world.services.detached.restart_all()
    world.turn()
    assert world.words() == [None]
    assert world.session.running
    assert not world.services.detached.left


def test_one_that_has_all_is_left_alone(world: RestartingWorld) -> None:
    world.start()
    world.sessions.put(world.session, Finished(FinishReason.STOP, Usage(1, 1), Timing()))
    world.deliver()
    world.services.detached.restart_all()
    world.turn()
    assert world.words() == ["init", "token", "token", "completion", None]
    assert not world.services.detached.left


def test_who_comes_to_resume_is_sent_to_the_next_daemon(world: RestartingWorld) -> None:
    world.start()
    world.client.close()
    world.turn()
    assert len(world.services.detached) == 1
    world.services.detached.leave_all()
    world.client, world.connection = world.join()
    world.codec = upgraded(world, "/generate")
    world.tell(type="resume", request_id="gen_1", position=1)
    assert world.words() == [CloseCode.SERVICE_RESTART]
    assert len(world.services.detached.left) == 1
