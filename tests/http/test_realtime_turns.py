"""A detector of speech beside the loop: what it finds comes in order, and no more sound waits than one event's."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from http_world import CONFIG, HttpWorld, last_words, upgraded

from umaserve.daemon.relays import relay_realtime
from umaserve.daemon.relays.relay_realtime import RelayedSession
from umaserve.dialects.realtime.session import RealtimeSession
from umaserve.dialects.realtime.sound_formats import Samples
from umaserve.sessions.caller import Caller
from umaserve.speech.silero import Silero
from umaserve.worker.backend import Reply

RATE = 24_000


class StandInSilero(Silero):
    """Takes for speech what is loud, or fails."""

    fails = False

    def _run(self, window: Samples, state: Samples) -> tuple[float, Samples]:
        if self.fails:
            raise ValueError("no model")
        return float(np.abs(window).max() > 0.05), state


def appended(level: float, ms: int = 1000, **fields: Any) -> str:
    """The event of a tone."""
    tone = level * np.sin(np.arange(RATE * ms // 1000) * 0.1)
    sound = base64.b64encode((tone * 32767).astype("<i2").tobytes()).decode()
    return json.dumps({"type": "input_audio_buffer.append", "audio": sound, **fields})


class TalkWorld(HttpWorld):
    """One client of the Realtime API."""

    def __init__(self) -> None:
        super().__init__(config=replace(CONFIG, max_chat_bytes=1 << 20))
        self.services.turns.model = self.silero = StandInSilero(Path())
        self.codec = upgraded(self, "/v1/realtime")
        self.tell("session.update", session={"type": "realtime", "output_modalities": ["text"]})
        self.told()

    def tell(self, kind: str, **fields: Any) -> None:
        self.send(self.codec.send(json.dumps({"type": kind, **fields}).encode()))

    def append(self, level: float, ms: int = 1000, **fields: Any) -> None:
        self.send(self.codec.send(appended(level, ms, **fields).encode()))

    def told(self) -> list[dict[str, Any]]:
        *events, _code = last_words(self, self.codec)
        return events

    def look(self) -> None:
        """Look for speech in the oldest sound."""
        self.turns.step()
        self.turn()


@pytest.fixture
def talk(caplog: pytest.LogCaptureFixture) -> Iterator[TalkWorld]:
    world = TalkWorld()
    yield world
    world.close()
    assert "a callback failed" not in caplog.text
    assert "internal error" not in caplog.text


def test_the_next_events_wait_for_what_is_found(talk: TalkWorld) -> None:
    talk.append(0.1)
    talk.append(0.0, event_id="end")
    talk.tell("input_audio_buffer.clear")
    assert talk.told() == []
    assert len(talk.turns.jobs) == 1
    talk.look()
    (started,) = talk.told()
    assert (started["type"], started["audio_start_ms"]) == ("input_audio_buffer.speech_started", 0)
    assert len(talk.turns.jobs) == 1
    talk.look()
    stopped, error, cleared = talk.told()
    assert (stopped["type"], stopped["item_id"]) == ("input_audio_buffer.speech_stopped", started["item_id"])
    # The stand-in for a model doesn't hear.
    assert (error["error"]["event_id"], cleared["type"]) == ("end", "input_audio_buffer.cleared")
    assert not talk.turns.jobs


def test_a_detector_that_fails_is_an_error_of_its_event(talk: TalkWorld, caplog: pytest.LogCaptureFixture) -> None:
    talk.silero.fails = True
    talk.append(0.1, event_id="first")
    talk.append(0.1)
    talk.look()
    (error,) = talk.told()
    assert (error["error"]["event_id"], error["error"]["type"]) == ("first", "server_error")
    assert "see the server's log" in error["error"]["message"]
    assert "no model" in caplog.text
    caplog.clear()
    talk.silero.fails = False
    talk.look()
    assert [event["type"] for event in talk.told()] == ["input_audio_buffer.speech_started"]


def test_a_client_may_leave_meanwhile(talk: TalkWorld) -> None:
    talk.append(0.1)
    talk.client.close()
    talk.turn()
    talk.look()
    assert not talk.turns.jobs


def test_without_turns_nothing_is_looked_for(talk: TalkWorld) -> None:
    talk.tell("session.update", session={"type": "realtime", "audio": {"input": {"turn_detection": None}}})
    talk.append(0.1)
    assert not talk.turns.jobs


class StandInReply:
    """A relay's end of a session."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.status = 0

    def chunk(self, text: str, _status: int, _headers: dict[str, str]) -> None:
        self.events.append(json.loads(text))

    def complete(self, status: int, _headers: dict[str, str], _body: str) -> None:
        self.status = status


@pytest.fixture
def relayed(talk: TalkWorld) -> tuple[RelayedSession, StandInReply]:
    services, reply = talk.services, StandInReply()
    caller = Caller("openai", "relay:stand-in")
    session = RealtimeSession(services.facts(caller), "", {"output_modalities": ["text"]})
    relayed = RelayedSession(services, session, caller, cast("Reply", reply))
    reply.events.clear()
    return relayed, reply


def test_events_of_a_relay_wait_as_well(talk: TalkWorld, relayed: tuple[RelayedSession, StandInReply]) -> None:
    session, reply = relayed
    session.frame(appended(0.1))
    session.frame(json.dumps({"type": "input_audio_buffer.clear"}))
    session.frame(appended(0.1))
    assert reply.events == []
    talk.look()
    assert [event["type"] for event in reply.events] == [
        "input_audio_buffer.speech_started",
        "input_audio_buffer.cleared",
    ]
    talk.look()
    assert len(reply.events) == 3
    assert not talk.turns.jobs


def test_a_relay_that_sends_sound_too_fast_is_refused(
    monkeypatch: pytest.MonkeyPatch, talk: TalkWorld, relayed: tuple[RelayedSession, StandInReply]
) -> None:
    session, reply = relayed
    monkeypatch.setattr(relay_realtime, "MAX_WAITING_BYTES", 100_000)
    for _ in range(3):
        session.frame(appended(0.1))
    assert "too fast" in reply.events[-1]["error"]["message"]
    assert reply.status == 413
    talk.look()
    assert len(reply.events) == 1
