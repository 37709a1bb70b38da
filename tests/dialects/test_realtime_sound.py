"""Sound in sessions of OpenAI's Realtime API: turns found by how loud it is, transcripts, and what was heard."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from routes import MODEL_INFO, listed

from tests.dialects.test_realtime import USAGE, Talk, kinds
from umaserve.core.errors import Fault, RequestError
from umaserve.core.events import Finished, FinishReason, ModelState, Token
from umaserve.core.requests import Generate, Priority, Sound
from umaserve.dialects.realtime.ahead import Ahead, Drop
from umaserve.dialects.realtime.levels import Loudness
from umaserve.dialects.realtime.session import Write
from umaserve.dialects.realtime.settings import TurnDetection
from umaserve.dialects.realtime.sound_formats import Samples
from umaserve.dialects.realtime.turns import Change, Sign, TurnDetector

RATE = 24_000
MANUAL = {"audio": {"input": {"turn_detection": None}}}
DETECTION = TurnDetection(0.5, 300, 500, creates=True, interrupts=True)
EARS = replace(MODEL_INFO, name="ears", hears=True)


def tone(ms: int, level: float = 0.1) -> np.ndarray[Any, np.dtype[np.float32]]:
    return (level * np.sin(np.arange(RATE * ms // 1000) * 0.1)).astype(np.float32)


def follow(settings: TurnDetection) -> Callable[[Samples], Iterator[Change]]:
    """Finds turns in the next samples, by how loud they are."""
    levels = Loudness(RATE, settings.threshold)
    detector = TurnDetector(levels, settings.silence_ms)
    return lambda samples: detector.push(levels.push(samples))


def pcm(*parts: np.ndarray[Any, np.dtype[np.float32]]) -> bytes:
    return (np.concatenate(parts) * 32767).astype("<i2").tobytes()


SPEECH = pcm(tone(600, 0.0), tone(800), tone(700, 0.0))
"""Silence, 800 ms of speech from 600 ms on, silence."""


class Listening(Talk):
    """A session whose model hears (``own``), or another one of the server's does (``other``)."""

    def __init__(self, *, own: bool = False, other: bool = False, **settings: Any) -> None:
        super().__init__(**settings)
        self.writes: list[Write] = []
        models = [listed(MODEL_INFO, takes=("audio",) if own else ())]
        models += [listed(EARS, default=False, takes=("audio",))] if other else []
        self.session._facts = replace(self.session._facts, models=lambda: models)
        self.session._ahead = Ahead(self.session._facts, "")

    def tell(self, steps: Any) -> list[dict[str, Any]]:
        def others() -> Any:
            for step in steps:
                if isinstance(step, Write):
                    self.writes.append(step)
                else:
                    yield step

        return super().tell(others())

    def append(self, sound: bytes) -> list[dict[str, Any]]:
        return self.send("input_audio_buffer.append", audio=base64.b64encode(sound).decode())

    def write(self, *texts: str) -> list[dict[str, Any]]:
        transcript = self.writes[-1].transcript
        told = [event for text in texts for event in self.tell(transcript.push(Token(text, 5)))]
        return told + self.tell(self.session.written(transcript, transcript.finish(Finished(FinishReason.STOP, USAGE))))


def heard(request: Generate) -> list[int]:
    """The bytes of the sounds in a request."""
    assert isinstance(request.prompt, tuple)
    media = [one.media for turn in request.prompt for one in turn.attachments]
    return [len(one.data) for one in media if isinstance(one, Sound)]


# -- turns -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [7, 100, 480, 4801, 10**6])
def test_speech_begins_and_ends_wherever_the_sound_is_cut(cut: int) -> None:
    samples = np.concatenate([tone(600, 0.0), tone(800), tone(700, 0.0)])
    detector = follow(DETECTION)
    parts = [samples[i : i + cut] for i in range(0, len(samples), cut)]
    changes = [change for part in parts for change in detector(part)]
    assert changes == [Change(Sign.BEGINS, 600), Change(Sign.PAUSES, 1600), Change(Sign.ENDS, 1900)]


def test_a_pause_that_is_long_enough_is_told_and_that_speech_goes_on() -> None:
    detector = follow(DETECTION)
    assert [*detector(np.concatenate([tone(200), tone(180, 0.0), tone(200)]))] == [Change(Sign.BEGINS, 0)]
    changes = [*detector(np.concatenate([tone(400, 0.0), tone(100), tone(200, 0.0)]))]
    assert changes == [Change(Sign.PAUSES, 780), Change(Sign.GOES_ON, 1000), Change(Sign.PAUSES, 1280)]
    detector = follow(replace(DETECTION, silence_ms=200))
    assert [change.sign for change in detector(np.concatenate([tone(200), tone(400, 0.0)]))] == [
        Sign.BEGINS,
        Sign.ENDS,
    ]


def test_what_is_short_or_quiet_is_no_speech() -> None:
    for sound in (tone(40), tone(2000, 0.005)):
        detector = follow(DETECTION)
        assert [*detector(np.concatenate([tone(200, 0.0), sound, tone(900, 0.0)]))] == []


def test_speech_goes_on_while_it_gets_quieter() -> None:
    detector = follow(replace(DETECTION, silence_ms=100))
    sounds = [tone(200), tone(400, 0.0105), tone(200)]
    assert [*detector(np.concatenate(sounds))] == [Change(Sign.BEGINS, 0)]
    assert [change.sign for change in detector(tone(400, 0.005))] == [Sign.ENDS]


@given(st.lists(st.tuples(st.integers(1, 700), st.floats(0, 1)), max_size=8), st.floats(0, 1))
def test_each_sign_follows_one_that_it_may(parts: list[tuple[int, float]], threshold: float) -> None:
    detector = follow(replace(DETECTION, threshold=threshold, silence_ms=300))
    changes = [change for ms, level in parts for change in detector(tone(ms, level))]
    following = {
        Sign.ENDS: {Sign.BEGINS},
        Sign.BEGINS: {Sign.PAUSES},
        Sign.PAUSES: {Sign.GOES_ON, Sign.ENDS},
        Sign.GOES_ON: {Sign.PAUSES},
    }
    signs = [Sign.ENDS, *(change.sign for change in changes)]
    assert all(after in following[before] for before, after in itertools.pairwise(signs))
    assert all(one.at_ms <= other.at_ms for one, other in itertools.pairwise(changes))


def test_a_turn_becomes_an_item_and_is_answered() -> None:
    talk = Listening(own=True)
    told = [event for i in range(0, len(SPEECH), 960) for event in talk.append(SPEECH[i : i + 960])]
    assert kinds(told) == [
        "input_audio_buffer.speech_started",
        "input_audio_buffer.speech_stopped",
        "input_audio_buffer.committed",
        "conversation.item.added",
        "conversation.item.done",
        "response.created",
        "rate_limits.updated",
    ]
    assert (told[0]["audio_start_ms"], told[1]["audio_end_ms"]) == (300, 1900)
    assert len({event["item_id"] for event in told[:3]} | {told[3]["item"]["id"]}) == 1
    # The speech with what belongs before it, until the pause that was its end, as 32-bit samples.
    assert heard(talk.starts[-1].request) == [4 * RATE * 1300 // 1000]


def test_speech_stops_the_answer() -> None:
    talk = Listening(own=True)
    talk.append(SPEECH)
    talk.tell(talk.starts[-1].answer.push("Well,"))
    told = talk.append(pcm(tone(100)))
    assert kinds(told)[0] == "input_audio_buffer.speech_started"
    assert told[-1]["response"]["status_details"] == {"type": "cancelled", "reason": "turn_detected"}
    talk = Listening(own=True)
    talk.send(
        "session.update",
        session={"audio": {"input": {"turn_detection": {"type": "server_vad", "interrupt_response": False}}}},
    )
    talk.append(SPEECH)
    assert kinds(talk.append(pcm(tone(100)))) == ["input_audio_buffer.speech_started"]


def test_silence_takes_no_memory() -> None:
    talk = Listening(own=True)
    for _ in range(50):
        talk.append(pcm(tone(1000, 0.0)))
    assert talk.session.held_bytes < RATE


def test_the_client_may_say_where_turns_end() -> None:
    talk = Listening(own=True, **MANUAL)
    assert talk.append(SPEECH) == []
    assert kinds(talk.send("input_audio_buffer.clear")) == ["input_audio_buffer.cleared"]
    assert "100 ms" in talk.error("input_audio_buffer.commit")["message"]
    talk.append(SPEECH)
    told = talk.send("input_audio_buffer.commit")
    assert kinds(told) == ["input_audio_buffer.committed", "conversation.item.added", "conversation.item.done"]
    assert not talk.starts
    _, request = talk.ask()
    assert heard(request) == [2 * len(SPEECH)]


# -- transcripts -------------------------------------------------------------------------------------------------


def test_another_model_writes_down_what_the_sessions_model_does_not_hear() -> None:
    talk = Listening(other=True)
    told = talk.append(SPEECH)
    assert kinds(told)[-2:] == ["response.created", "rate_limits.updated"]
    assert not talk.starts, "an answer before its question is known"
    assert talk.writes[-1].request.model == "ears"
    told = talk.write(" Hello", " there. ")
    assert kinds(told) == [
        "conversation.item.input_audio_transcription.delta",
        "conversation.item.input_audio_transcription.delta",
        "conversation.item.input_audio_transcription.completed",
    ]
    assert told[-1]["transcript"] == "Hello there."
    request = talk.starts[-1].request
    assert heard(request) == []
    assert isinstance(request.prompt, tuple)
    assert request.prompt[-1].content == "Hello there."


def test_a_model_that_hears_does_not_wait_for_the_transcript() -> None:
    talk = Listening(own=True)
    talk.send("session.update", session={"audio": {"input": {"transcription": {"model": "whisper-1"}}}})
    talk.append(SPEECH)
    assert len(talk.starts) == len(talk.writes) == 1
    assert talk.write("Hello.")[-1]["transcript"] == "Hello."


def test_a_transcript_that_fails_fails_its_answer() -> None:
    talk = Listening(other=True)
    talk.append(SPEECH)
    transcript = talk.writes[-1].transcript
    error = RequestError(Fault.QUEUE_FULL, "request", "9 wait")
    told = talk.tell(talk.session.written(transcript, transcript.fail(error)))
    assert kinds(told) == ["conversation.item.input_audio_transcription.failed", "response.done"]
    assert told[-1]["response"]["status_details"]["error"]["code"] == "queue_full"


def test_an_answer_that_waits_may_be_cancelled() -> None:
    talk = Listening(other=True)
    talk.append(SPEECH)
    assert talk.send("response.cancel")[-1]["response"]["status"] == "cancelled"
    talk.write("Hello.")
    assert not talk.starts


def test_where_nobody_hears_the_error_says_what_is_missing() -> None:
    talk = Listening(**MANUAL)
    talk.append(SPEECH)
    assert "--mmproj" in talk.error("input_audio_buffer.commit")["message"]
    sound = {"type": "input_audio", "audio": base64.b64encode(SPEECH).decode()}
    item: dict[str, Any] = {"type": "message", "role": "user", "content": [sound]}
    assert "--mmproj" in talk.error("conversation.item.create", item=item)["message"]
    item["content"] = [{**sound, "transcript": "Hello."}]
    talk.send("conversation.item.create", item=item)
    _, request = talk.ask()
    assert isinstance(request.prompt, tuple)
    assert request.prompt[-1].content == "Hello."


# -- what was heard ----------------------------------------------------------------------------------------------


def test_what_was_heard_is_what_the_model_remembers() -> None:
    talk = Talk(speaks=True)
    talk.say("Hello!")
    answer, _ = talk.ask()
    talk.tell(answer.push("Good day. How are you today?"))
    item_id = talk.events[-1]["item_id"]
    second = bytes(2 * RATE)
    talk.tell([answer.hear(second, "Good day."), answer.hear(second, "How are you today?"), answer.hear(second)])
    truncate: dict[str, Any] = {"item_id": item_id, "content_index": 0}
    assert "3000 ms" in talk.error("conversation.item.truncate", **truncate, audio_end_ms=3001)["message"]
    (*_, done, told) = talk.send("conversation.item.truncate", **truncate, audio_end_ms=2000)
    assert done["response"]["status"] == "cancelled", "what nobody hears is not given"
    assert (told["type"], told["audio_end_ms"]) == ("conversation.item.truncated", 2000)
    talk.say("And you?")
    _, request = talk.ask()
    assert isinstance(request.prompt, tuple)
    assert request.prompt[1].content == "Good day. How are"


@pytest.mark.parametrize("kind", ["audio/pcm", "audio/pcmu"])
def test_all_that_was_sent_may_have_been_heard(kind: str) -> None:
    talk = Talk(speaks=True, audio={"output": {"format": {"type": kind}}})
    talk.say("Hello!")
    answer, _ = talk.ask()
    talk.tell(answer.push("Good day."))
    item_id = talk.events[-1]["item_id"]
    part = bytes(1002)
    talk.tell([answer.hear(part, "" if i else "Good day.") for i in range(10)])
    # A client counts the sound of all events together, and rounds up.
    a_ms = 48 if kind == "audio/pcm" else 8
    whole_ms = -(-10 * len(part) // a_ms)
    told = talk.send("conversation.item.truncate", item_id=item_id, content_index=0, audio_end_ms=whole_ms)
    assert told[-1]["type"] == "conversation.item.truncated"


@pytest.mark.parametrize(("eagerness", "silence_ms"), [(None, 500), ("low", 1000), ("high", 300)])
def test_semantic_vad_is_taken_for_server_vad(eagerness: str | None, silence_ms: int) -> None:
    talk = Talk()
    detection = {"type": "semantic_vad"} | ({"eagerness": eagerness} if eagerness else {})
    (told,) = talk.send("session.update", session={"audio": {"input": {"turn_detection": detection}}})
    shown = told["session"]["audio"]["input"]["turn_detection"]
    assert (shown["type"], shown["silence_duration_ms"]) == ("server_vad", silence_ms)


def test_what_is_left_to_play_is_dropped() -> None:
    talk = Talk(speaks=True)
    assert talk.error("output_audio_buffer.clear")["code"] == "not_found"
    talk.say("Hello!")
    answer, _ = talk.ask()
    told = talk.send("output_audio_buffer.clear")
    assert kinds(told)[-2:] == ["response.done", "output_audio_buffer.cleared"]
    assert told[-1]["response_id"] == answer.id


# -- what is warmed up while the user speaks ----------------------------------------------------------------------


def test_the_conversation_is_warmed_up_when_speech_begins_and_the_sound_in_each_pause() -> None:
    talk = Listening(own=True, instructions="Be brief.")
    talk.append(pcm(tone(300)))
    (before,) = talk.warmed.values()
    assert isinstance(before.prompt, tuple)
    assert [(turn.role, turn.content) for turn in before.prompt] == [("system", "Be brief."), ("user", "")]
    assert (before.max_tokens, before.priority, before.add_generation_prompt) == (1, Priority.BACKGROUND, False)
    talk.append(pcm(tone(250, 0.0)))
    first = [id_ for id_ in talk.warmed if id_ != before.id]
    assert len(first) == 1
    # Speech goes on: what it was until then is not the question.
    talk.append(pcm(tone(300)))
    assert talk.drops == [Drop(first[0], answering=False)]
    told = talk.append(pcm(tone(250, 0.0)))
    assert not told
    (sound,) = [request for id_, request in talk.warmed.items() if id_ != before.id]
    talk.append(pcm(tone(400, 0.0)))
    assert talk.drops[1:] == [Drop(before.id, answering=True), Drop(sound.id, answering=True)]
    asked = talk.starts[-1].request
    assert sound == replace(asked, id=sound.id, max_tokens=1, priority=Priority.BACKGROUND)


def test_the_sound_is_left_to_a_model_that_hears() -> None:
    talk = Listening(other=True)
    talk.append(SPEECH)
    assert len(talk.drops) == 1
    assert talk.writes


def test_nothing_is_warmed_up_where_no_answer_follows() -> None:
    detection = {"type": "server_vad", "create_response": False}
    talk = Listening(own=True, audio={"input": {"turn_detection": detection}})
    talk.append(SPEECH)
    assert not talk.drops
    detection = {"type": "server_vad", "interrupt_response": False}
    talk = Listening(own=True, audio={"input": {"turn_detection": detection}})
    talk.append(SPEECH)
    n_drops = len(talk.drops)
    talk.append(SPEECH)
    assert len(talk.drops) == n_drops, "while an answer is given"


def test_a_noise_loads_no_model() -> None:
    talk = Listening(own=True)
    unloaded = listed(MODEL_INFO, takes=("audio",), state=ModelState.UNLOADED)
    talk.session._facts = replace(talk.session._facts, models=lambda: [unloaded])
    talk.session._ahead = Ahead(talk.session._facts, "")
    talk.append(SPEECH)
    assert not talk.drops
    assert talk.starts


@pytest.mark.parametrize("kind", ["input_audio_buffer.clear", "input_audio_buffer.commit"])
def test_a_warm_up_is_dropped_with_its_sound(kind: str) -> None:
    talk = Listening(own=True)
    talk.append(pcm(tone(300), tone(250, 0.0)))
    assert len(talk.warmed) == 2
    talk.send(kind)
    assert not talk.warmed
    assert not any(drop.answering for drop in talk.drops)


def test_the_pauses_of_long_speech_are_no_warm_up() -> None:
    talk = Listening(own=True)
    talk.append(pcm(tone(29_000), tone(250, 0.0)))
    assert len(talk.warmed) == 2
    talk.append(pcm(tone(2000), tone(250, 0.0)))
    assert len(talk.warmed) == 1


def test_a_conversation_that_is_too_long_is_told_by_its_answer_alone() -> None:
    talk = Listening(own=True, instructions="a" * 2001)
    told = talk.append(SPEECH)
    assert not talk.drops
    assert [event["type"] for event in told if event["type"] == "error"] == ["error"]
