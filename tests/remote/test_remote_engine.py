"""An engine behind sockets: what it may do, and what happens when its end is gone or says what makes no sense."""

from __future__ import annotations

import gc
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
import orjson
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from remote_engine import ALLOWANCE, remote_engine, serving
from standin import StandInEngine, StandInVoice, answer, heard

from umaserve.core.errors import ContextExceeded, Fault, ModelError, RequestError, TooLarge
from umaserve.core.queries import Detokenize, Detokenized, Embed
from umaserve.core.requests import Attachment, ChatTurn, Generate, Image
from umaserve.remote import frames
from umaserve.remote.channel import Channel, Kind
from umaserve.remote.client import EngineLost, RemoteEngine
from umaserve.remote.failures import EngineFailed
from umaserve.remote.frames import Incoming
from umaserve.remote.server import Server
from umaserve.remote.sounds import SAMPLES, SOUND
from umaserve.remote.values import Malformed, Tail
from umaserve.remote.voice import RemoteVoice
from umaserve.sessions.engine_api import Allowance, Outcome, Prepared, Run, Tick, YieldPoint
from umaserve.settings.daemon import Config
from umaserve.speech.voice import Samples
from umaserve.system.threads import LOADING_NICE, MEDIA_NICE


def picture(data: str) -> Generate:
    return Generate("r", (ChatTurn("user", "", attachments=(Attachment(0, Image(data, "image")),)),))


def tick(prepared: Prepared, slot: int = 0) -> Tick:
    return Tick([], [Run(slot, 0, prepared.tokens, prepared.sampler)])


def test_an_answer_is_the_same_as_without_the_sockets() -> None:
    engine = remote_engine(StandInEngine())
    prepared = engine.prepare(Generate("r", "hello"))
    other = engine.prepare_choice(Generate("s", "hello"), prepared)
    assert other.tokens is prepared.tokens
    results = [engine.run(tick(one, slot)) for slot, one in enumerate((prepared, other))]
    assert [result.tokens for result in results] == [[[ord(answer("hello")[0])]]] * 2
    assert engine.answer(Detokenize((104, 105))) == Detokenized("hi")
    changed = engine.change(prepared, Generate("r", "hello", max_tokens=3), [])
    assert (changed.max_tokens, changed.tokens) == (3, prepared.tokens)


def test_the_engine_gets_the_settings_without_the_secret() -> None:
    given: list[Config] = []
    ours, theirs = socket.socketpair()

    def load(config: Config, *_: object) -> tuple[StandInEngine, None]:
        given.append(config)
        return StandInEngine(), None

    threading.Thread(target=Server(load).serve, args=(Channel(theirs),), daemon=True).start()
    config = Config(model="m.gguf", relay=("ws://relay:1",), worker_secret="only for relays")
    RemoteEngine([Channel(ours)], config, None, ALLOWANCE, lambda _fraction: True)
    assert given == [Config(model="m.gguf")]


def test_errors_are_those_of_the_engine() -> None:
    behind = StandInEngine()
    engine = remote_engine(behind)
    with pytest.raises(RequestError, match="prompt: too long") as refused:
        engine.prepare(Generate("r", "refuse"))
    assert refused.value.fault is Fault.CONTEXT_EXCEEDED
    for call in (lambda: engine.prepare(Generate("r", "raise")), lambda: engine.embed(Embed(("raise",)), lambda: None)):
        with pytest.raises(EngineFailed):
            call()
    behind.failures.append(Outcome.NO_CELLS)
    assert engine.run(tick(engine.prepare(Generate("r", "hello")))).outcome is Outcome.NO_CELLS


def test_ticks_run_while_a_chunk_is_encoded_and_their_errors_are_their_own() -> None:
    engine = remote_engine(StandInEngine())
    prepared = engine.prepare(Generate("r", "hello"))
    (span,) = engine.prepare(picture("a cat")).spans
    assert not span.chunk.encoded
    results = []

    def pause() -> None:
        results.append(engine.run(tick(prepared)))
        with pytest.raises(EngineFailed):
            engine.prepare(Generate("r", "raise"))

    engine.encode(span.chunk, pause, lambda: True)
    assert span.chunk.encoded
    assert results[0].tokens == [[ord(answer("hello")[0])]]


def test_a_callback_that_fails_ends_the_call_with_its_own_error() -> None:
    engine = remote_engine(StandInEngine())
    (span,) = engine.prepare(picture("a cat")).spans

    def pause() -> None:
        raise ZeroDivisionError("told to")

    with pytest.raises(ZeroDivisionError, match="told to"):
        engine.encode(span.chunk, pause, lambda: True)
    engine.encode(span.chunk, lambda: None, lambda: True)
    assert span.chunk.encoded


def test_prompts_with_the_same_image_have_the_same_chunk() -> None:
    engine = remote_engine(StandInEngine())
    one, other = (engine.prepare(picture("a cat")).spans[0] for _ in range(2))
    assert one.chunk is other.chunk
    engine.encode(one.chunk, lambda: None, lambda: True)
    assert engine.prepare(picture("a cat")).spans[0].chunk is one.chunk


def test_the_engine_keeps_nothing_that_the_daemon_has_dropped() -> None:
    behind = StandInEngine()
    server = serving(behind)
    engine = remote_engine(behind, server=server)
    kept = [engine.prepare(picture("a cat")) for _ in range(3)]
    assert len(server.lent) == 3 + 1
    del kept[0]
    engine.shed()
    assert len(server.lent) == 2 + 1
    kept.clear()
    gc.collect()
    engine.shed()
    assert not len(server.lent)


def test_each_thread_has_a_channel_of_its_own() -> None:
    engine = remote_engine(StandInEngine(), threads=2)
    (span,) = engine.prepare(picture("a cat")).spans
    prepared = []

    def pause() -> None:
        other = threading.Thread(target=lambda: prepared.append(engine.prepare(Generate("r", "hello"))))
        other.start()
        other.join()

    engine.encode(span.chunk, pause, lambda: True)
    assert prepared[0].tokens == list(b"hello")


def test_media_arrive_as_they_were_sent() -> None:
    engine = remote_engine(StandInEngine())
    data = "x" * (1 << 20)
    with pytest.raises(RequestError, match="too long"):
        engine.prepare(picture(data))
    assert engine.prepare(picture("a cat")).spans[0].end == len("a cat")


def test_a_model_that_cannot_be_loaded_says_why() -> None:
    def load(*how: Any) -> NoReturn:
        assert how[-1](0.25)
        raise ModelError("no such file")

    ours, theirs = socket.socketpair()
    threading.Thread(target=Server(load).serve, args=(Channel(theirs),), daemon=True).start()
    told = []

    def progress(fraction: float) -> bool:
        told.append(fraction)
        return True

    with pytest.raises(ModelError, match="no such file"):
        RemoteEngine([Channel(ours)], Config(), None, ALLOWANCE, progress)
    assert told == [0.25]


def loaded(load: Callable[..., Any], allowance: Allowance) -> None:
    ours, theirs = socket.socketpair()
    threading.Thread(target=Server(load).serve, args=(Channel(theirs),), daemon=True).start()
    with ours:
        RemoteEngine([Channel(ours)], Config(), None, allowance, lambda _fraction: True)


def test_a_model_that_is_too_large_says_what_it_takes() -> None:
    def load(*how: Any) -> NoReturn:
        raise TooLarge(f"it takes 5 bytes, and {how[3].available_bytes} are available", 5)

    with pytest.raises(TooLarge, match="it takes 5 bytes, and 3 are available") as refused:
        loaded(load, Allowance(3, beside=False))
    assert refused.value.needed_bytes == 5


@pytest.mark.parametrize("beside", [False, True])
def test_a_model_is_loaded_at_low_priority_while_others_run(beside: bool) -> None:
    found: list[int] = []

    def load(*_how: object) -> tuple[StandInEngine, None]:
        with subprocess.Popen([sys.executable, "-c", "import os; print(os.nice(0))"], stdout=subprocess.PIPE) as child:
            found.append(int(child.communicate()[0]))
        found.append(nice())
        return StandInEngine(), None

    loaded(load, Allowance(1, beside))
    before = nice()
    assert found == [LOADING_NICE if beside else before] * 2


def nice() -> int:
    """The calling thread's niceness."""
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def test_requests_with_media_are_prepared_at_low_priority() -> None:
    found: list[int] = []

    class Preparing(StandInEngine):
        def prepare(self, *about: Any) -> Prepared:
            found.append(nice())
            return super().prepare(*about)

    engine = remote_engine(Preparing())
    engine.prepare(Generate("r", "hello"))
    engine.prepare(picture("a cat"))
    assert found == [nice(), MEDIA_NICE]


def test_another_version_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("umaserve.remote.client.__version__", "0.0.1")
    with pytest.raises(ModelError, match=r"umaserve 0\.0\.1 was replaced by .*: restart it"):
        remote_engine(StandInEngine())


# The voice of the engine's process.


class PausingVoice(StandInVoice):
    """A voice that pauses before it speaks."""

    clones = True

    def speak(self, text: str, speaker: Samples | None = None, language: str = "", pause: YieldPoint = int) -> Samples:
        self.asked = text, speaker, language
        pause()
        return super().speak(text)


def test_a_voice_speaks_while_ticks_run() -> None:
    behind = PausingVoice("unspeakable")
    engine = remote_engine(StandInEngine(), voice=behind)
    voice = RemoteVoice("v")
    assert voice.languages == ("en",)
    voice.engine = engine
    assert list(voice.languages) == ["en", "de"]
    prepared = engine.prepare(Generate("r", "hello"))
    results = []
    speaker = np.array([0.5, -1.25, 0.0], np.float32)
    samples = voice.speak("Guten Tag", speaker, "de", lambda: results.append(engine.run(tick(prepared))))
    assert heard(samples.tobytes()) == "Guten Tag"
    assert (samples.dtype, len(results)) == (np.float32, 1)
    assert (behind.asked[0], behind.asked[1].tolist(), behind.asked[2]) == ("Guten Tag", speaker.tolist(), "de")
    assert len(voice.speak("", None, "", lambda: None)) == 0
    assert behind.asked[1] is None
    with pytest.raises(EngineFailed):
        voice.speak("unspeakable", None, "", lambda: None)


def test_what_ends_a_voices_pause_ends_its_speaking() -> None:
    voice = RemoteVoice("v")
    voice.engine = remote_engine(StandInEngine(), voice=PausingVoice())

    def pause() -> None:
        raise ZeroDivisionError("told to")

    with pytest.raises(ZeroDivisionError, match="told to"):
        voice.speak("Hello", None, "", pause)
    assert heard(voice.speak("Hello", None, "", lambda: None).tobytes()) == "Hello"


@pytest.mark.parametrize("samples", [[1.5], [-2.0], [float("nan")], [float("-inf"), 0.0]])
def test_a_sound_that_is_none_is_not_taken(samples: list[float]) -> None:
    tail: list[bytes] = []
    written = SOUND.write(np.array(samples, np.float32), tail)
    assert len(SAMPLES.read(written, Tail(tail[0]))) == len(samples)
    with pytest.raises(Malformed, match="within"):
        SOUND.read(written, Tail(tail[0]))
    with pytest.raises(Malformed, match="4 bytes each"):
        SOUND.read(3, Tail(tail[0]))


# What comes from an engine's process that is gone or mad.


class Mad:
    """The other end of an engine that has loaded its model, and then says what it is told to."""

    def __init__(self) -> None:
        behind = StandInEngine()
        ours, theirs = socket.socketpair()
        self.channel = Channel(theirs)
        server = serving(behind)
        loading = threading.Thread(target=lambda: server._do(self.channel, self.channel.receive()))
        loading.start()
        self.engine = RemoteEngine([Channel(ours)], Config(), None, ALLOWANCE, lambda _fraction: True)
        loading.join()
        self.socket = theirs

    def said(self, data: bytes) -> Exception | None:
        """What becomes of a call that is answered with ``data``, and then with nothing more."""
        self.socket.sendall(data)
        self.socket.shutdown(socket.SHUT_WR)
        try:
            self.engine.answer(Detokenize((1,)))
        except Exception as error:
            return error
        return None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x01",
        b"\xff\xff\xff\xff\0\0\0\0",
        frames.encode([Kind.DONE]),
        frames.encode([Kind.DONE, [1, 5]]),
        frames.encode([Kind.DONE, [1, [2]]], [b"ab", b"c"]),
        frames.encode([Kind.CALL, "answer", [], []]),
        frames.encode([Kind.ASK, "x"]),
        frames.encode([Kind.FAILED, [9, []]]),
        frames.encode([Kind.DONE, [1, [2]]], [b"ab"]) + b"and more",
    ],
)
def test_what_makes_no_sense_is_the_end_of_the_engine(data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    mad = Mad()
    assert isinstance(mad.said(data), EngineLost)
    with pytest.raises(EngineLost):
        mad.engine.shed()
    assert ("has sent an invalid answer" in caplog.text) == (len(data) > 1)


@settings(max_examples=examples(60))
@given(st.binary() | st.lists(st.sampled_from([*Kind, 0, 1, -1, None, [], [0, 2], "x", 1e300])).map(frames.encode))
def test_whatever_comes_it_is_an_answer_or_the_end(data: bytes) -> None:
    assert isinstance(Mad().said(data), EngineLost | EngineFailed | None)


@given(st.lists(st.integers(1, 9)), st.binary(max_size=50))
def test_a_frame_may_come_in_any_pieces(pieces: list[int], tail: bytes) -> None:
    data = frames.encode([Kind.CALL, "run", [1, 2.5, None]], [tail])
    incoming, at = Incoming(), 0
    for piece in [*pieces, len(data)]:
        part = data[at : at + piece]
        at += len(part)
        frame = incoming.add(part) if part else None
        if frame is not None:
            break
    assert at == len(data)
    assert frame.head == ["call", "run", [1, 2.5, None]]
    assert bytes(frame.tail) == tail


@given(st.binary(max_size=40))
def test_what_is_no_frame_is_refused_or_waits_for_more(data: bytes) -> None:
    try:
        frame = Incoming().add(data)
    except Malformed:
        return
    assert frame is None or orjson.dumps(frame.head)


def test_no_frame_is_sent_that_would_not_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = remote_engine(StandInEngine())
    monkeypatch.setattr(frames, "MAX_BYTES", 1000)
    with pytest.raises(RequestError, match="too large for the engine") as refused:
        engine.prepare(Generate("r", "hello" * 300))
    assert refused.value.fault is Fault.PROMPT_TOO_LARGE
    monkeypatch.setattr(frames, "MAX_BYTES", 1 << 20)
    assert engine.prepare(Generate("r", "hello")).tokens == list(b"hello")


def test_the_context_that_a_prompt_exceeds_is_told() -> None:
    class Small(StandInEngine):
        def prepare(self, *_arguments: object) -> Prepared:
            raise ContextExceeded(7, 5)

    with pytest.raises(ContextExceeded) as exceeded:
        remote_engine(Small()).prepare(Generate("r", "hello"))
    assert (exceeded.value.prompt_tokens, exceeded.value.context_tokens) == (7, 5)
