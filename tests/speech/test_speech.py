"""Text that comes token by token is spoken in sentences, in order, one at a time."""

from __future__ import annotations

import base64
import importlib.util
import io
import itertools
import json
import logging
import subprocess
import sys
import wave
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from routes import facts
from standin import SteppedWorker

from umaserve.daemon.exchange import Exchange
from umaserve.daemon.http.exchanges.new_exchange import new_exchange
from umaserve.dialects.openai.routes import DIALECT as OPENAI
from umaserve.media import sound_decoder
from umaserve.media.sound_encoder import SoundEncoder
from umaserve.sessions import content_filter
from umaserve.sessions.caller import Caller
from umaserve.sessions.manager import SessionManager
from umaserve.settings.daemon import Config
from umaserve.speech import reference as under_test
from umaserve.speech.load import load
from umaserve.speech.plain_text import PlainText
from umaserve.speech.reference import Reference
from umaserve.speech.sentences import FIRST_CLAUSE, LIMIT, Sentences
from umaserve.speech.speaker import TRANSITIONS, Event, Speaker, State
from umaserve.speech.voice import MAX_HEARD_S, SAMPLE_RATE, BadReference, Samples, SpeechError
from umaserve.stages.spoken import ENCODED_AT_ONCE, Speech
from umaserve.system.threads import YieldPoint
from umaserve.wire import pcm as wire


def pieces(*parts: str) -> list[str]:
    sentences = Sentences()
    return [piece for part in parts for piece in sentences.push(part)] + sentences.finish()


def plain(*parts: str) -> str:
    text = PlainText()
    return "".join(text.push(part) for part in parts) + text.finish()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It rains. It pours!  Does it stop? Wait… No.", ["It rains.", "It pours!", "Does it stop?", "Wait…", "No."]),
        ("One line\nanother\r\n\r\nand more", ["One line", "another", "and more"]),
        ("Dr. Smith met Mrs. Jones. They left.", ["Dr. Smith met Mrs. Jones.", "They left."]),
        ("Use it, e.g. the red one, i.e. This.", ["Use it, e.g. the red one,", "i.e. This."]),
        ("J. K. Rowling wrote. I read.", ["J. K. Rowling wrote.", "I read."]),
        ("Pi is 3.14 or so. See Fig. 2 and No. 5.", ["Pi is 3.14 or so.", "See Fig. 2 and No. 5."]),
        ("No. You can't.", ["No.", "You can't."]),
        ("It was 1990. Then came 1991.", ["It was 1990.", "Then came 1991."]),
        ("1. Wash it. Then dry it.\n2. Go.", ["1. Wash it.", "Then dry it.", "2. Go."]),
        ('"Yes." He left (slowly.) "Why?" he asked. End.', ['"Yes."', "He left (slowly.)", '"Why?" he asked.', "End."]),
        ("v1.2.3 is at example.com today. Get it.", ["v1.2.3 is at example.com today.", "Get it."]),
        ("Well... it works, etc. and so on.", ["Well... it works, etc. and so on."]),
        ("Spaces \t and\u00a0more   here.", ["Spaces and more here."]),
        ("Great 😀! Thumbs 👍🏽 up 🇩🇪 family 👨\u200d👩\u200d👧 1\ufe0f\u20e3.", ["Great !", "Thumbs up family 1."]),
        ("", []),
        (" \n\t\n ", []),
        ("***\n---\n😀 🎉\n...\n| --- |\n\u200b\x00", []),
    ],
)
def test_text_is_cut_at_the_ends_of_its_sentences(text: str, expected: list[str]) -> None:
    assert pieces(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("**Bold** and *slanted*, __both__ ~~gone~~", "Bold and slanted, both gone"),
        ("`code_with_names` in *a*", "code with names in a"),
        ("a [link](https://a.example/b_(c).html?d=1) on", "a link on"),
        ("![picture](p.png)!", "picture!"),
        ("[text] (aside) [1]", "text (aside) 1"),
        ("[open](never closed\nnext", "open\nnext"),
        ("# Title #\n## More", " Title \n More"),
        ("C# and issue #5", "C# and issue #5"),
        ("- one\n* two\n + three\n> four\n- [x] five", " one\n two\n  three\n four\n x five"),
        ("-5 - 3 -- no --- yes", "-5 - 3 — no — yes"),
        ("~5 in C++ -> x | y", "~5 in C++ -> x   y"),
        ("a\n```python\nprint('x')  # `y`\n```\nb", "a\n\n\nb"),
        ("a\n~~~~\n~~~\n```\nx\n~~~~~\nb", "a\n\n\nb"),
        ("a ```never closed. Really", "a \n"),
        ("Stop!!! Now!", "Stop! Now!"),
    ],
)
def test_marks_and_code_are_not_read_aloud(text: str, expected: str) -> None:
    assert plain(text).removesuffix("\n") == expected.removesuffix("\n")


MARKED_UP = st.lists(
    st.sampled_from([*'aB1 .,!?\n*_`~#-+>|[]()"😀\u200d', ". A", "```", "](", "e.g. ", "word " * 9, "x" * 90])
).map("".join)


@given(MARKED_UP, st.lists(st.integers(0, 200)))
@example("word " * 100, [7, 100])
@example("x" * 1000, [])
def test_what_is_spoken_does_not_depend_on_how_the_text_was_cut(text: str, cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    parts = [text[start:end] for start, end in itertools.pairwise(edges)]
    whole = pieces(text)
    assert pieces(*parts) == pieces(*text) == whole
    assert all(0 < len(piece) <= LIMIT and piece == piece.strip() for piece in whole)
    assert all(any(map(str.isalnum, piece)) for piece in whole)


@given(st.lists(st.text("abcXYZ019", min_size=1, max_size=12), max_size=200))
def test_every_word_is_spoken_once_and_in_order(words: list[str]) -> None:
    assert " ".join(pieces(" ".join(words))) == " ".join(words)


def test_a_sentence_is_given_as_soon_as_the_next_one_begins() -> None:
    sentences = Sentences()
    assert sentences.push("It rains") == sentences.push(".") == sentences.push(" ") == []
    assert sentences.push("I") == ["It rains."]
    assert sentences.push("t pours.\n") == ["It pours."]


def test_only_the_first_piece_may_be_a_clause() -> None:
    clause = "x" * (FIRST_CLAUSE - 1) + ","
    assert pieces(f"{clause} and {clause} again. Then {clause} too.") == [
        clause,
        f"and {clause} again.",
        f"Then {clause} too.",
    ]
    assert pieces("Sure, of course.") == ["Sure, of course."]
    assert pieces("It began on the 3rd of March, 2024 and went on.")[0].endswith("went on.")


def test_long_text_without_ends_is_cut_behind_a_clause_or_else_behind_a_word() -> None:
    words = "word " * 30
    assert pieces("Once.\n" + words + "word; " + words) == ["Once.", words + "word;", words.strip()]
    assert all(piece.replace("word", "").strip() == "" for piece in pieces("word " * 500))
    assert pieces("x" * (2 * LIMIT + 1)) == ["x" * LIMIT, "x" * LIMIT, "x"]


@pytest.mark.parametrize("unit", ["`", "*", "_", "](", "[", "(", "x", " ", "- ", "😀", "](x"])
def test_what_is_kept_of_endless_text_is_bounded(unit: str) -> None:
    sentences = Sentences()
    for _ in range(50):
        sentences.push(unit * 200)
    kept = [value for value in [*vars(sentences).values(), *vars(sentences._plain).values()] if isinstance(value, str)]
    assert sum(map(len, kept)) <= LIMIT + 10


class StandInVoice:
    """Says one sample for each character, and fails where told."""

    name = "stand-in"
    languages = ("en",)
    clones = True

    def __init__(self) -> None:
        self.said: list[str] = []
        self.speakers: list[Samples | None] = []
        self.spoken_in: list[str] = []
        self.failure: Exception | None = None
        self.pauses = 0

    def speak(self, text: str, speaker: Samples | None, language: str, pause: YieldPoint) -> Samples:
        self.said.append(text)
        self.speakers.append(speaker)
        self.spoken_in.append(language)
        for _ in range(self.pauses):
            pause()
        if self.failure is not None:
            raise self.failure
        return (
            np.zeros(0, np.float32) if text == "Nothing." else np.frombuffer(text.encode(), np.uint8) / np.float32(256)
        )


def heard(audio: bytes) -> str:
    return (np.frombuffer(audio, "<f4") * 256).astype(np.uint8).tobytes().decode()


def raw(samples: Samples, pause: YieldPoint) -> bytes:
    return samples.astype("<f4").tobytes()


class Answer:
    """A speaker with what it was told."""

    def __init__(
        self,
        voice: StandInVoice | None = None,
        worker: SteppedWorker | None = None,
        reference: Reference | None = None,
    ) -> None:
        self.voice = voice or StandInVoice()
        self.worker = worker or SteppedWorker()
        self.heard: list[str] = []
        self.ends: list[SpeechError | None] = []
        self.on_audio: Callable[[], None] = lambda: None
        self.speaker = Speaker(self.voice, "en", self.worker.submit_lengthy, raw, self._spoken, self.ends.append)
        if reference is not None:
            self.speaker.clone(reference, self.worker.submit)

    def _spoken(self, audio: bytes, n_samples: int, sentence: str) -> None:
        assert sentence
        assert n_samples == len(audio) // 4
        self.heard.append(heard(audio))
        self.on_audio()

    def run(self) -> None:
        while self.worker.jobs:
            self.worker.step()


def test_sentences_are_spoken_in_order_one_at_a_time_and_then_it_ends() -> None:
    answer = Answer()
    answer.speaker.push("One. Two. Three. Fo")
    assert len(answer.worker.jobs) == 1
    answer.worker.step()
    assert (answer.heard, len(answer.worker.jobs), answer.ends) == (["One."], 1, [])
    answer.speaker.push("ur.")
    answer.speaker.finish()
    assert len(answer.worker.jobs) == 1
    answer.run()
    assert (answer.heard, answer.ends) == (["One.", "Two.", "Three.", "Four."], [None])


def test_the_next_sentence_is_in_work_before_the_audio_of_the_last_is_given_away() -> None:
    answer = Answer()
    queued: list[int] = []
    answer.on_audio = lambda: queued.append(len(answer.worker.jobs))
    answer.speaker.push("One. Two. Th")
    answer.run()
    assert queued == [1, 0]


@pytest.mark.parametrize("text", ["", "  \n", "```\ncode.\n```"])
def test_an_answer_with_nothing_to_say_ends_at_once(text: str) -> None:
    answer = Answer()
    answer.speaker.push(text)
    answer.speaker.finish()
    assert (answer.heard, answer.ends, answer.voice.said) == ([], [None], [])


def test_a_sentence_that_the_voice_has_no_sound_for_is_passed_over() -> None:
    answer = Answer()
    answer.speaker.push("One. Nothing. Two.")
    answer.speaker.finish()
    answer.run()
    assert (answer.heard, answer.ends) == (["One.", "Two."], [None])


def test_speakers_of_one_voice_take_turns() -> None:
    voice, worker = StandInVoice(), SteppedWorker()
    first, second = Answer(voice, worker), Answer(voice, worker)
    for answer, text in ((first, "A. \n A2.\nA3.\n"), (second, "B1.\nB2.\n")):
        answer.speaker.push(text)
        answer.speaker.finish()
    first.run()
    assert voice.said == ["A.", "B1.", "A2.", "B2.", "A3."]
    assert (first.ends, second.ends) == ([None], [None])


@pytest.mark.parametrize(
    ("failure", "message", "logged"),
    [(SpeechError("too odd"), "too odd", False), (IndexError("list index out of range"), "the voice failed", True)],
)
def test_a_failure_of_the_voice_ends_the_speech_once(
    failure: Exception, message: str, logged: bool, caplog: pytest.LogCaptureFixture
) -> None:
    answer = Answer()
    answer.voice.failure = failure
    answer.speaker.push("One. Two. Three.")
    with caplog.at_level(logging.ERROR):
        answer.worker.step()
    answer.speaker.push(" Four. Five.")
    answer.speaker.finish()
    answer.run()
    assert (answer.voice.said, answer.heard) == (["One."], [])
    [error] = answer.ends
    assert isinstance(error, SpeechError)
    assert message in str(error)
    assert [record.exc_info is not None for record in caplog.records] == [True] * logged


@pytest.mark.parametrize("finished", [False, True])
@pytest.mark.parametrize("failure", [None, SpeechError("late")])
def test_nothing_is_called_after_an_abandon(finished: bool, failure: Exception | None) -> None:
    answer = Answer()
    answer.voice.failure = failure
    answer.speaker.push("One. Two. Three.")
    if finished:
        answer.speaker.finish()
    job, done = answer.worker.jobs.popleft()
    result: object = failure
    if failure is None:
        result = job()
    answer.speaker.abandon()
    done(result)
    answer.speaker.abandon()
    if not finished:
        answer.speaker.push(" More. And more.")
        answer.speaker.finish()
    assert (answer.heard, answer.ends, len(answer.worker.jobs)) == ([], [], 0)


def test_a_sentence_that_waits_for_the_thread_is_not_spoken_after_an_abandon() -> None:
    answer = Answer()
    answer.speaker.push("One. Two.")
    answer.speaker.abandon()
    answer.run()
    assert answer.voice.said == []


def test_a_voice_ends_at_its_next_pause_after_an_abandon() -> None:
    answer = Answer()
    answer.voice.pauses = 5
    answer.speaker.push("One. Two. ")
    ticks: list[int] = []

    def tick() -> None:
        ticks.append(len(answer.worker.jobs))
        if len(ticks) == 2:
            answer.speaker.abandon()

    for _ in range(5):
        answer.worker.submit(tick, lambda result: None)
    answer.worker.step()
    assert ticks == [4, 3]
    answer.run()
    assert (answer.voice.said, answer.heard, answer.ends) == (["One."], [], [])


def test_others_run_in_the_pauses_of_a_voice() -> None:
    answer = Answer()
    answer.voice.pauses = 3
    order: list[str] = []
    answer.on_audio = lambda: order.append("spoken")
    answer.speaker.push("One. ")
    answer.speaker.finish()
    for _ in range(3):
        answer.worker.submit(lambda: order.append("tick"), lambda result: None)
    answer.worker.step()
    assert order == ["tick", "tick", "tick", "spoken"]
    assert answer.ends == [None]


def test_the_table_of_a_speaker_has_one_end_that_can_always_be_reached() -> None:
    assert {State.LISTENING, *TRANSITIONS.values()} == set(State)
    assert {event for _state, event in TRANSITIONS} == set(Event)
    assert all(TRANSITIONS[state, Event.STOP] is State.ENDED for state in State)
    assert [key for key in TRANSITIONS if key[0] is State.ENDED] == [(State.ENDED, Event.STOP)]


class Speeches(RuleBasedStateMachine):
    """Whatever happens in whatever order: one job at a time, sentences in order, one end, and nothing after it."""

    @initialize(reference=st.booleans())
    def begin(self, reference: bool) -> None:
        self.answer = Answer(reference=Reference(pcm(0.5, SAMPLE_RATE), "f", SAMPLE_RATE) if reference else None)
        self.text = ""
        self.complete = self.stopped = False

    @precondition(lambda self: not self.complete)
    @rule(text=st.sampled_from(["One. ", "Two. Three. ", "Fo", "ur. ", "Nothing. ", "\n"]))
    def push(self, text: str) -> None:
        self.text += text
        self.answer.speaker.push(text)

    @precondition(lambda self: not self.complete)
    @rule()
    def finish(self) -> None:
        self.complete = True
        self.answer.speaker.finish()

    @precondition(lambda self: self.answer.worker.jobs)
    @rule(failure=st.sampled_from([None] * 5 + [SpeechError("told to fail"), IndexError("a mistake")]))
    def work(self, failure: Exception | None) -> None:
        self.answer.voice.failure = failure
        self.answer.worker.step()

    @rule()
    def abandon(self) -> None:
        self.stopped = True
        self.answer.speaker.abandon()

    @precondition(lambda self: self.answer.worker.jobs and not self.answer.ends)
    @rule()
    def abandon_when_a_sentence_is_heard(self) -> None:
        n_heard = len(self.answer.heard)
        self.answer.voice.failure = None
        self.answer.on_audio = self.answer.speaker.abandon
        self.answer.worker.step()
        self.answer.on_audio = lambda: None
        self.stopped |= len(self.answer.heard) > n_heard

    @invariant()
    def all_is_in_order(self) -> None:
        if not hasattr(self, "answer"):
            return
        ends, jobs, state = self.answer.ends, len(self.answer.worker.jobs), self.answer.speaker.state
        assert len(ends) <= 1
        assert (state is State.ENDED) == (bool(ends) or self.stopped)
        if state is not State.ENDED:
            assert jobs == (state is not State.LISTENING)
            assert (state is State.DRAINING) == self.complete
        expected = [piece for piece in pieces(self.text) if piece != "Nothing."]
        assert self.answer.heard == expected[: len(self.answer.heard)]
        if ends == [None]:
            assert self.answer.heard == expected


TestSpeeches = Speeches.TestCase
TestSpeeches.settings = settings(stateful_step_count=20)


with_media = pytest.mark.skipif(
    importlib.util.find_spec("av") is None, reason="no media packages are installed (umaserve[media])"
)


def base64_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


def pcm(seconds: float, rate: int) -> str:
    return base64_of((np.sin(np.arange(round(seconds * rate)) / 20) / 2).astype("<f4").tobytes())


def wav(seconds: float, rate: int) -> str:
    file = io.BytesIO()
    with wave.open(file, "wb") as written:
        written.setnchannels(1)
        written.setsampwidth(2)
        written.setframerate(rate)
        written.writeframes(bytes(2 * round(seconds * rate)))
    return base64_of(file.getvalue())


@pytest.mark.parametrize(
    ("reference", "seconds"),
    [
        pytest.param(Reference(pcm(1, 16_000), "f", 16_000), 1, marks=with_media),
        (Reference(pcm(0.5, SAMPLE_RATE), "f", SAMPLE_RATE), 0.5),
        pytest.param(Reference(pcm(60, 8000), "f", 8000), MAX_HEARD_S, marks=with_media),
    ],
    ids=["16 kHz", "24 kHz", "long"],
)
def test_a_recording_is_decoded_once_for_all_sentences(reference: Reference, seconds: float) -> None:
    answer = Answer(reference=reference)
    answer.speaker.push("One. Two. Three. ")
    answer.speaker.finish()
    assert answer.voice.speakers == []
    answer.run()
    assert answer.ends == [None]
    first, second, third = answer.voice.speakers
    assert answer.voice.spoken_in == ["en"] * 3
    assert first is not None
    assert first is second is third
    assert first.dtype == np.float32
    assert len(first) == pytest.approx(seconds * SAMPLE_RATE, abs=2)
    assert np.abs(first).max() <= 1


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("", "expected float32 samples, 4 bytes each, at least one, got 0 bytes"),
        ("AAAA", "expected float32 samples, 4 bytes each, at least one, got 3 bytes"),
        ("AA", "expected base64, got 2 characters that are not valid"),
        ("AAAA\n", "expected base64, got 5 characters that are not valid"),
        ("é", "expected base64, got 1 characters that are not valid"),
        (pcm(0.4, 16_000), "expected at least 0.5 s of a voice, got 0.40 s"),
        (wav(2, 16_000), "expected float32 samples, got a WAV file"),
        (wav(2.00003, 16_000), "expected float32 samples, got a WAV file"),
        (base64_of(np.full(20_000, np.nan, "<f4").tobytes()), "expected finite samples, got nan at index 0"),
    ],
    ids=lambda value: str(value)[:12],
)
@pytest.mark.parametrize("text", ["", "One. Two. "])
def test_what_is_no_recording_of_a_voice_is_refused_by_the_name_of_its_field(
    data: str, message: str, text: str
) -> None:
    answer = Answer(reference=Reference(data, "tts.ref_audio_data", 16_000))
    answer.speaker.push(text)
    answer.speaker.finish()
    assert answer.ends == [], "the end waits for it, whatever was said"
    answer.run()
    assert (answer.voice.said, answer.heard) == ([], [])
    [error] = answer.ends
    assert isinstance(error, BadReference)
    assert str(error).startswith(f"tts.ref_audio_data: {message}")


def test_a_recording_is_decoded_before_there_is_text_and_what_is_not_heard_is_not_resampled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lengths: list[int] = []
    monkeypatch.setattr(under_test, "resampled", lambda samples, *_: lengths.append(len(samples)) or samples)
    answer = Answer(reference=Reference(pcm(60, 16_000), "f", 16_000))
    answer.run()
    assert lengths == [MAX_HEARD_S * 16_000]
    answer.speaker.push("One. Two. ")
    answer.speaker.finish()
    answer.run()
    assert (answer.heard, answer.ends, len(lengths)) == (["One.", "Two."], [None], 1)


def test_whoever_leaves_before_a_recording_is_decoded_hears_nothing_of_it() -> None:
    answer = Answer(reference=Reference("!", "f", 16_000))
    answer.speaker.abandon()
    answer.run()
    assert (answer.heard, answer.ends) == ([], [])


def test_voices_and_what_carries_their_speech_have_one_rate() -> None:
    assert SAMPLE_RATE == wire.SAMPLE_RATE


def test_the_client_may_be_gone_while_it_is_given_audio() -> None:
    answer = Answer()
    answer.on_audio = answer.speaker.abandon
    answer.speaker.push("One. Two. Three.")
    answer.speaker.finish()
    answer.run()
    assert (answer.heard, answer.ends, answer.voice.said) == (["One."], [], ["One."])


def test_the_end_of_the_text_may_come_while_audio_is_given() -> None:
    answer = Answer()
    answer.on_audio = lambda: answer.speaker.finish()
    answer.speaker.push("One.\n")
    answer.run()
    assert (answer.heard, answer.ends) == (["One."], [None])


# A text read aloud


class Reply:
    """Implements ``http.exchange.Responder``."""

    congested = False

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""

    def begin(self, status: int, headers: Sequence[tuple[str, str]]) -> None:
        self.status, self.headers = status, dict(headers)

    def write(self, data: bytes) -> None:
        self.body += data

    def respond(self, status: int, headers: Sequence[tuple[str, str]], body: bytes) -> None:
        self.begin(status, headers)
        self.write(body)

    def end(self) -> None:
        self.body += b"<end>"

    def abort(self) -> None:
        raise AssertionError("a mistake of ours")


class Reader:
    """Reads texts aloud for whoever asks, with a filter and a cap, when its thread is told to."""

    def __init__(self, folder: Path, patterns: str = "forbidden", most: int = 256) -> None:
        (folder / "patterns").write_text(patterns)
        self.worker = SteppedWorker()
        self.speech = Speech(StandInVoice(), lambda: None, self.worker)
        self.services: Any = SimpleNamespace(
            speech=self.speech,
            content_filter=content_filter.load(str(folder / "patterns")),
            config=Config(max_queue=most),
            models=SessionManager(clock=lambda: 0.0),
            loop=SimpleNamespace(now=lambda: 0.0),
            loaded=lambda: None,
            traced=None,
        )

    def ask(self, text: str, audio_format: str = "pcm") -> tuple[Exchange, Reply]:
        reply = Reply()
        endpoint = OPENAI.routes["/v1/audio/speech"].endpoint
        about = replace(facts(), voice=self.speech.voice)
        share: Any = SimpleNamespace(keep=lambda _n_bytes: None)
        caller = Caller("openai", "ip:127.0.0.1")
        reading = new_exchange(self.services, about, endpoint, OPENAI.errors, reply, caller, share, {})
        reading.start(json.dumps({"input": text, "response_format": audio_format}).encode())
        return reading, reply

    def run(self) -> None:
        while self.worker.jobs:
            self.worker.step()


def test_what_the_filter_does_not_allow_is_not_read(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    _reading, reply = reader.ask("It rains. This is FORBIDDEN text.")
    assert reply.status == 0, "it is looked at away from the loop"
    reader.run()
    assert reply.status == 400
    message = json.loads(reply.body)["error"]["message"]
    assert message == "input: contains text that this server does not allow"
    assert reader.speech.idle
    _reading, reply = reader.ask("It rains. It pours.")
    reader.run()
    assert (reply.status, reply.body) == (200, wire.pcm16(spoken("It rains.") + spoken("It pours.")) + b"<end>")


def spoken(text: str) -> bytes:
    return StandInVoice().speak(text, None, "", lambda: None).astype("<f4").tobytes()


@pytest.mark.parametrize("text", ["forbidden", "allowed"])
def test_whoever_leaves_while_the_filter_looks_hears_nothing(tmp_path: Path, text: str) -> None:
    reader = Reader(tmp_path)
    reading, reply = reader.ask(text)
    reading.abandon()
    reader.run()
    assert (reply.status, reply.body, reader.speech.idle) == (0, b"", True)


def test_a_mistake_of_ours_in_the_filter_is_an_error_reply(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    reader = Reader(tmp_path)

    def fail(_text: str) -> None:
        raise LookupError("of ours")

    reader.services.content_filter.check_prompt = fail
    _reading, reply = reader.ask("It rains.")
    reader.run()
    assert (reply.status, reader.speech.idle) == (500, True)
    assert b"input: internal error; see the server's log" in reply.body
    assert "LookupError: of ours" in caplog.text


def test_no_more_are_read_at_once_than_may_wait(tmp_path: Path) -> None:
    reader = Reader(tmp_path, most=2)
    (first, _reply), (_second, heard) = [reader.ask("It rains.") for _ in range(2)]
    _reading, refused = reader.ask("It rains.")
    assert (refused.status, refused.headers["Retry-After"]) == (503, "1")
    message = json.loads(refused.body)["error"]["message"]
    assert message == "request: 2 texts are being spoken already; try again later"
    first.abandon()
    _reading, another = reader.ask("It rains.")
    reader.run()
    assert (heard.status, another.status, reader.speech.idle) == (200, 200, True)


CONTENT_TYPES = {"mp3": "audio/mpeg", "opus": "audio/ogg; codecs=opus", "aac": "audio/aac", "flac": "audio/flac"}


@with_media
@pytest.mark.parametrize("audio_format", CONTENT_TYPES)
def test_a_text_is_heard_in_a_compressed_format(tmp_path: Path, audio_format: str) -> None:
    reader = Reader(tmp_path)
    _reading, reply = reader.ask("It rains. It pours. It stops.", audio_format)
    reader.run()
    assert (reply.status, reply.headers["Content-Type"]) == (200, CONTENT_TYPES[audio_format])
    assert reply.body.endswith(b"<end>")
    samples, rate = sound_decoder.decode(io.BytesIO(reply.body.removesuffix(b"<end>")))
    expected = np.concatenate([np.frombuffer(spoken(text), "<f4") for text in ("It rains.", "It pours.", "It stops.")])
    assert len(samples) / rate >= len(expected) / SAMPLE_RATE
    if audio_format == "flac":
        assert np.abs(samples - expected).max() < 1 / 32767
    assert reader.speech.snapshot()["speech_seconds_total"] == round(len(expected) / SAMPLE_RATE, 3)


@with_media
@pytest.mark.parametrize("audio_format", CONTENT_TYPES)
def test_what_has_no_sound_is_an_empty_reply_in_a_compressed_format(tmp_path: Path, audio_format: str) -> None:
    reader = Reader(tmp_path)
    _reading, reply = reader.ask("***", audio_format)
    reader.run()
    assert (reply.status, reply.body, reply.headers["Content-Type"]) == (200, b"", CONTENT_TYPES[audio_format])


@with_media
def test_others_run_while_a_long_sentence_is_compressed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StandInVoice, "speak", lambda *_: np.zeros(5 * ENCODED_AT_ONCE, np.float32))
    reader = Reader(tmp_path)
    _reading, reply = reader.ask("It rains.", "mp3")
    reader.worker.step()  # The filter.
    ticks: list[int] = []
    for _ in range(10):
        reader.worker.submit(lambda: ticks.append(len(reply.body)), lambda _result: None)
    reader.worker.step()
    assert ticks == [0] * 4, "one in each pause, and none after the sound"
    assert reply.body


@with_media
def test_a_client_that_leaves_while_a_sentence_is_compressed_costs_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StandInVoice, "speak", lambda *_: np.zeros(5 * ENCODED_AT_ONCE, np.float32))
    encoded: list[int] = []
    encode = SoundEncoder.encode
    monkeypatch.setattr(SoundEncoder, "encode", lambda *args: encoded.append(1) or encode(*args))
    reader = Reader(tmp_path)
    reading, reply = reader.ask("It rains.", "mp3")
    reader.worker.step()
    reader.worker.submit(reading.abandon, lambda _result: None)
    reader.run()
    assert (len(encoded), reply.status, reader.speech.idle) == (1, 0, True)


@with_media
@pytest.mark.parametrize("method", ["encode", "finish"])
def test_an_encoder_that_fails_ends_the_reply(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> bytes:
        raise MemoryError

    monkeypatch.setattr(StandInVoice, "speak", lambda *_: np.zeros(ENCODED_AT_ONCE, np.float32))
    monkeypatch.setattr(SoundEncoder, method, fail)
    monkeypatch.setattr(Reply, "abort", lambda self: setattr(self, "body", self.body + b"<cut>"))
    reader = Reader(tmp_path)
    _reading, reply = reader.ask("It rains. It pours.", "mp3")
    reader.run()
    if method == "encode":
        assert reply.status == 500
    else:
        assert (reply.status, reply.body[-5:]) == (200, b"<cut>")
    assert reader.speech.idle
    assert "MemoryError" in caplog.text


def test_without_the_media_packages_the_voice_has_no_compressed_format(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    voice = Speech(StandInVoice(), lambda: None, SteppedWorker()).voice
    assert voice is not None
    assert voice.formats == ()


def test_there_is_a_voice_where_its_package_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", {"hibari": "found"}.get)
    voice = load()
    assert voice is not None
    assert (voice.languages, voice.clones) == (("en",), False)
    monkeypatch.setattr(importlib.util, "find_spec", {}.get)
    assert load() is None


def test_looking_for_a_voice_does_not_import_its_packages() -> None:
    code = (
        "import sys; from umaserve.speech.load import load; load(); print({'hibari', 'onnxruntime'} & set(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
