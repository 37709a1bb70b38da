"""Wyoming's connection on a loop whose clock the test moves, with a voice and a model that are stand-ins."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from examples import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st
from routes import listed
from standin import StandInEngine, StandInVoice
from world import DaemonWorld, StandInModels
from wyoming.asr import Transcribe, Transcript
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.error import Error
from wyoming.event import Event as ReferenceEvent
from wyoming.event import Eventable
from wyoming.info import Describe, Info
from wyoming.ping import Ping, Pong
from wyoming.tts import Synthesize, SynthesizeChunk, SynthesizeStart, SynthesizeStop, SynthesizeVoice

from umaserve.core.errors import Fault, RequestError
from umaserve.core.events import Finished, FinishReason, ModelInfo, ModelState, Placed, Token, Usage
from umaserve.core.requests import Generate, Sound
from umaserve.daemon import wyoming
from umaserve.daemon.wyoming import WyomingConnection
from umaserve.daemon.wyoming_tasks import Transcription
from umaserve.dialects.wyoming.replies import CHUNK_BYTES
from umaserve.net.channel import Channel
from umaserve.net.input_budget import InputShare
from umaserve.sessions import content_filter
from umaserve.sessions.caller import Caller
from umaserve.sessions.session import Session
from umaserve.settings.daemon import Config
from umaserve.speech.voice import SAMPLE_RATE
from umaserve.wire.pcm import pcm16
from umaserve.wire.wyoming import Event, WyomingCodec, encode

CONFIG = Config(
    idle_timeout=60.0, resume_window=0.0, max_queue=2, max_prompt_bytes=100, max_frame_bytes=4000, max_chat_bytes=20_000
)
STOPPED = "synthesize-stopped"


class Hearing(StandInEngine):
    """An engine whose model takes sounds."""

    @property
    def info(self) -> ModelInfo:
        return replace(super().info, hears=True)


class WyomingWorld(DaemonWorld):
    """One client with its connection; others may join."""

    def __init__(self, voice: StandInVoice | None, engine: StandInEngine | None = None) -> None:
        super().__init__(CONFIG, engine, voice)
        self.lost: list[WyomingConnection] = []
        self.client, self.connection = self.join()

    def join(self) -> tuple[socket.socket, WyomingConnection]:
        ours, client = socket.socketpair()
        client.setblocking(False)
        channel = Channel(self.loop, ours, high_water=CONFIG.tx_high_water, stall_timeout=60.0)
        caller = Caller("wyoming", "ip:127.0.0.1")
        return client, WyomingConnection(self.services, channel, caller, self.lost.append)

    def turn(self, seconds: float = 0.0, count: int = 4) -> None:
        super().turn(seconds, count)

    def send(self, *events: Eventable | ReferenceEvent | Event) -> None:
        for event in events:
            given = event.event() if isinstance(event, Eventable) else event
            # Not by our own ``encode``: clients may send larger integers than orjson writes.
            data, payload = json.dumps(given.data).encode(), given.payload or b""
            header = {"type": given.type, "data_length": len(data), "payload_length": len(payload)}
            self.client.sendall(json.dumps(header).encode() + b"\n" + data + payload)
        self.turn()

    def speak(self) -> None:
        """All that the voice and the filter have to do now."""
        while self.speaking.jobs:
            self.speaking.step()
            self.turn()

    def received(self, client: socket.socket | None = None) -> list[Any]:
        """What has come, by the reference's classes; ends with None if no more will."""
        codec, closed = WyomingCodec(1 << 20), False
        while True:
            try:
                part = (client or self.client).recv(65536)
            except BlockingIOError:
                break
            if not part:
                closed = True
                break
            codec.receive_data(part)
        events: list[Any] = []
        while (event := codec.next_event()) is not None:
            given = ReferenceEvent(event.type, dict(event.data), event.payload or None)
            kinds = (AudioStart, AudioChunk, AudioStop, Error, Info, Pong, Transcript)
            events.append(next((kind.from_event(given) for kind in kinds if kind.is_type(event.type)), event.type))
        assert codec.buffered == 0
        return [*events, None] if closed else events

    def close(self) -> None:
        self.connection.channel.abort()
        self.client.close()
        super().close()


@pytest.fixture
def world() -> Iterator[WyomingWorld]:
    world = WyomingWorld(StandInVoice("Fail."), Hearing())
    yield world
    world.close()


@pytest.fixture
def mute() -> Iterator[WyomingWorld]:
    """Neither voice nor ears."""
    world = WyomingWorld(None)
    yield world
    world.close()


START, STOP = AudioStart(SAMPLE_RATE, 2, 1), AudioStop()


def chunk(*texts: str) -> AudioChunk:
    sound = np.concatenate([StandInVoice().speak(text) for text in texts]).astype("<f4").tobytes()
    return AudioChunk(SAMPLE_RATE, 2, 1, pcm16(sound))


def refused(world: WyomingWorld) -> str:
    """The error that the client got last, before the end."""
    *_, error, end = world.received()
    assert end is None
    assert isinstance(error, Error)
    assert error.code is not None
    return f"{error.code}: {error.text}"


# About the service


def test_it_tells_what_it_has(world: WyomingWorld) -> None:
    world.send(Describe(), Ping("hello"), Ping())
    info, pong, bare = world.received()
    (tts,), (asr,) = info.tts, info.asr
    ((voice,), (model,)) = tts.voices, asr.models
    assert (tts.name, tts.installed, tts.supports_synthesize_streaming) == ("umaserve", True, True)
    assert (voice.name, voice.languages, voice.installed) == ("stand-in", ["en", "de"], True)
    assert (asr.name, asr.installed, asr.supports_transcript_streaming) == ("umaserve", True, False)
    assert (model.name, model.installed) == ("stand-in", True)
    assert {"en", "de", "fr", "zh"} <= set(model.languages)
    assert asr.version == tts.version != ""
    assert all(one.attribution.name for one in (tts, voice, asr, model))
    assert info.handle == info.intent == info.wake == info.mic == info.snd == []
    assert (pong, bare) == (Pong("hello"), Pong())


def test_it_has_no_more_than_it_has(mute: WyomingWorld) -> None:
    mute.send(Describe())
    (info,) = mute.received()
    assert (info.tts, info.asr) == ([], [])


@pytest.mark.parametrize("name", ["ears", "unread"])
def test_a_client_may_choose_a_model_that_hears_or_may_do_so(world: WyomingWorld, name: str) -> None:
    deaf, hearing = (replace(world.engine.info, name=name, hears=name == "ears") for name in ("eyes", "ears"))
    unread = {"state": ModelState.UNLOADED, "info": None, "default": False}
    models = [
        listed(deaf, takes=("image",)),
        listed(hearing, takes=("audio",), default=False),
        listed(deaf, name="text", takes=(), **unread),
        listed(deaf, name="unread", takes=None, **unread),
    ]
    with (
        patch.object(
            StandInModels, "info", lambda _self, name, _caller: {"ears": hearing, "unread": None}.get(name, deaf)
        ),
        patch.object(StandInModels, "listed", lambda _self: models),
    ):
        world.send(Describe())
        (info,) = world.received()
        assert [model.name for asr in info.asr for model in asr.models] == ["ears", "unread"]
        world.send(Transcribe(name), START, chunk("Hi."), STOP)
        _session, request, _sound = asked(world)
        assert request.model == name


def test_until_the_model_is_loaded_nobody_is_told_half(world: WyomingWorld) -> None:
    world.loaded = False
    world.send(Describe())
    assert refused(world) == "model_not_loaded: model: still loading; try again later"
    assert world.lost == []
    world.client.close()
    world.turn()
    assert world.lost == [world.connection]


def test_events_of_other_services_are_ignored(world: WyomingWorld) -> None:
    world.send(Event("detect", {"names": ["x"]}), Event("run-satellite"), Event("select-program"), Ping("on"))
    assert world.received() == [Pong("on")]


def test_another_protocol_is_told_so_and_closed(world: WyomingWorld) -> None:
    world.client.sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\n\r\n{}\n" * 3)
    world.turn()
    assert refused(world).startswith("invalid_json: header: not valid JSON")


# Speech


def test_a_text_is_spoken(world: WyomingWorld) -> None:
    world.send(Synthesize("One. Two.", voice=SynthesizeVoice(name="any", speaker="one")))
    assert world.received() == []
    world.speak()
    assert world.received() == [START, chunk("One."), chunk("Two."), STOP]
    world.send(Synthesize(""), Synthesize("***"), Synthesize("Three."))
    world.speak()
    assert world.received() == [START, STOP, START, STOP, START, chunk("Three."), STOP]
    assert world.speech.idle


def test_long_sound_comes_in_chunks(world: WyomingWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = np.linspace(-1, 1, CHUNK_BYTES + 7, dtype=np.float32)
    monkeypatch.setattr(StandInVoice, "speak", lambda *_: samples)
    world.send(Synthesize("One."))
    world.speak()
    _start, *chunks, _stop = world.received()
    assert [len(one.audio) for one in chunks] == [CHUNK_BYTES, CHUNK_BYTES, 14]
    assert b"".join(one.audio for one in chunks) == pcm16(samples.tobytes())


def test_a_text_is_spoken_as_its_sentences_come(world: WyomingWorld) -> None:
    world.send(SynthesizeStart(), SynthesizeChunk("On"), SynthesizeChunk("e. T"))
    world.speak()
    assert world.received() == [START, chunk("One.")]
    world.send(SynthesizeChunk("wo. Three."), Ping("meanwhile"))
    world.speak()
    assert world.received() == [Pong("meanwhile"), chunk("Two.")]
    world.send(Synthesize("One. Two. Three."), SynthesizeStop())
    world.speak()
    assert world.received() == [chunk("Three."), STOP, STOPPED]
    world.send(SynthesizeStart(), SynthesizeStop(), Synthesize("Four."))
    world.speak()
    assert world.received() == [START, STOP, STOPPED, START, chunk("Four."), STOP]


def test_what_is_asked_next_waits(world: WyomingWorld) -> None:
    world.send(Synthesize("One. Two."), Ping(), SynthesizeStart(), SynthesizeChunk("Three."), SynthesizeStop())
    assert world.received() == []
    world.speak()
    own = [chunk("One."), chunk("Two.")]
    assert world.received() == [START, *own, STOP, Pong(), START, chunk("Three."), STOP, STOPPED]


@pytest.mark.parametrize("language", ["de", "de-DE", "de_AT", "DE"])
def test_the_voice_speaks_the_language_that_is_asked_for(
    world: WyomingWorld, monkeypatch: pytest.MonkeyPatch, language: str
) -> None:
    spoken_in: list[str] = []
    monkeypatch.setattr(
        StandInVoice, "speak", lambda _self, _text, _speaker, language, _pause: spoken_in.append(language) or np.ones(1)
    )
    world.send(Synthesize("Eins.", voice=SynthesizeVoice(language=language)))
    world.speak()
    assert spoken_in == ["de"]


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (Synthesize("x" * 101), "prompt_too_large: text: expected at most 100 bytes, got 101"),
        (Synthesize("a", text_format="ssml"), 'bad_request: text_format: expected "text", got "ssml"'),
        (
            Synthesize("a", voice=SynthesizeVoice(language="fr")),
            'bad_request: voice.language: expected "en" or "de", got "fr"',
        ),
        (
            SynthesizeStart(voice=SynthesizeVoice(name="x" * 257)),
            "bad_request: voice.name: expected a string of at most",
        ),
        (Event("synthesize"), "bad_request: text: expected a string, got null"),
        (Event("synthesize", {"text": 5}), "bad_request: text: expected a string, got a whole number"),
        (Event("synthesize", {"text": "a", "voice": "b"}), "bad_request: voice: expected an object, got a string"),
        (Event("ping", {"text": 1}), "bad_request: text: expected a string of at most 1024 bytes, got a whole number"),
        (SynthesizeChunk("a"), "bad_request: synthesize-chunk: expected elsewhere"),
        (SynthesizeStop(), "bad_request: synthesize-stop: expected elsewhere"),
        (AudioChunk(16_000, 2, 1, b"123"), "bad_request: payload_length: expected whole samples, got 3 bytes of 1 x 2"),
        (AudioChunk(16_000, 3, 1, b""), "bad_request: width: expected 1, 2 or 4 bytes, got 3"),
        (AudioStart(999, 2, 1), "bad_request: rate: expected a whole number from 1000 to 384000, got 999"),
        (
            Event("audio-start", {"rate": 16_000, "width": 2}),
            "bad_request: channels: expected a whole number from 1 to 8",
        ),
        (Transcribe(language="x" * 257), "bad_request: language: expected a string of at most 256 bytes"),
        (Event("transcribe", {"transcript_names": 5}), "bad_request: transcript_names: expected a string or an array"),
    ],
)
def test_what_is_wrong_is_told_and_ends_the_connection(world: WyomingWorld, event: Eventable, message: str) -> None:
    world.send(event, Ping())
    assert refused(world).startswith(message)
    assert world.speech.idle


@pytest.mark.parametrize("event", [SynthesizeStart(), Transcribe(), AudioStop()])
def test_within_a_text_nothing_else_begins(world: WyomingWorld, event: Eventable) -> None:
    world.send(SynthesizeStart(), event)
    assert refused(world).startswith(f"bad_request: {event.event().type}: expected elsewhere")
    assert world.speech.idle


def test_the_parts_of_a_text_count_together(world: WyomingWorld) -> None:
    world.send(SynthesizeStart(), SynthesizeChunk("é" * 50), SynthesizeChunk("x"))
    assert refused(world) == "prompt_too_large: text: expected at most 100 bytes, got 101"


def test_a_voice_that_fails_ends_the_text(world: WyomingWorld) -> None:
    world.send(Synthesize("One. Fail."))
    world.speak()
    *sound, error, end = world.received()
    assert (sound, error, end) == ([START, chunk("One.")], Error("tts: told to fail", "decode_failed"), None)
    assert world.speech.idle


def test_without_a_voice_nothing_is_spoken(mute: WyomingWorld) -> None:
    mute.send(Synthesize("One."))
    assert refused(mute).startswith("bad_request: voice: can't be used, since this daemon has no voice")


def test_admission_and_the_cap_on_texts_count(world: WyomingWorld) -> None:
    others = [world.join() for _ in range(2)]
    for client, _ in others:
        client.sendall(encode(Event("synthesize-start")))
    world.turn()
    world.send(Synthesize("One."))
    assert refused(world) == "memory_pressure: request: 2 texts are being spoken already; try again later"
    for client, connection in others:
        client.close()
        world.turn()
        assert connection in world.lost
    assert world.speech.idle
    world.sessions.draining = True
    client, _ = world.join()
    client.sendall(encode(Event("synthesize", {"text": "One."})))
    world.turn()
    error, end = world.received(client)
    assert (error.code, end) == ("shutting_down", None)
    client.close()


def test_a_drain_that_takes_too_long_fails_the_text(world: WyomingWorld) -> None:
    world.send(SynthesizeStart(), SynthesizeChunk("One. Two"))
    world.speech.fail_all(RequestError(Fault.SHUTTING_DOWN, "request", "the server is shutting down"))
    world.turn()
    assert refused(world) == "shutting_down: request: the server is shutting down"


@pytest.mark.parametrize("begun", [SynthesizeStart(), Synthesize("One. Two.")])
def test_who_leaves_is_read_no_more(world: WyomingWorld, begun: Eventable, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    world.send(begun)
    world.client.close()
    world.turn()
    assert world.speech.idle
    assert world.lost == [world.connection]
    world.speak()
    assert [record.fields["end"] for record in caplog.records if record.message == "text read aloud"] == ["abandoned"]


def test_who_has_asked_and_only_listens_hears_all(world: WyomingWorld) -> None:
    world.send(Synthesize("One."))
    world.client.shutdown(socket.SHUT_WR)
    world.turn()
    world.speak()
    assert world.received() == [START, chunk("One."), STOP, None]


def test_a_text_without_its_end_is_given_up_when_no_more_comes(world: WyomingWorld) -> None:
    world.send(SynthesizeStart(), SynthesizeChunk("One. Two"))
    world.client.shutdown(socket.SHUT_WR)
    world.turn()
    assert world.speech.idle
    assert world.received() == [None]


LONG = np.linspace(-1, 1, 4 * CONFIG.tx_high_water, dtype=np.float32)
"""A sentence that takes more than sockets hold."""


def test_a_reader_that_is_behind_holds_the_next_sentence(world: WyomingWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StandInVoice, "speak", lambda *_: LONG)
    other, _ = world.join()
    world.send(SynthesizeStart(), SynthesizeChunk("One. Two. Three. Four. Five"))
    codec = WyomingCodec(1 << 20)
    for _ in range(2):
        world.speak()
        assert not world.speaking.jobs, "the second was in work already when the reader fell behind"
        while True:
            try:
                codec.receive_data(world.client.recv(65536))
            except BlockingIOError:
                break
            world.turn()
        heard = 0
        while (event := codec.next_event()) is not None:
            heard += len(event.payload)
        assert heard == 2 * 2 * len(LONG)
    assert not world.speaking.jobs, "the fifth is not complete"
    other.sendall(encode(Event("ping")))
    world.turn()
    assert world.received(other) == [Pong()]
    other.close()


def filtered(world: WyomingWorld, folder: Path) -> None:
    (folder / "patterns").write_text("forbidden\n")
    config = world.services
    made = replace(config, content_filter=content_filter.load(str(folder / "patterns")))
    world.connection._services = made


@pytest.mark.parametrize(
    "events",
    [
        [Synthesize("One. This is FORBIDDEN.")],
        [SynthesizeStart(), SynthesizeChunk("This is for"), SynthesizeChunk("bidden text. Yes."), SynthesizeStop()],
        [SynthesizeStart(), SynthesizeChunk("This is forbidden"), SynthesizeStop()],
    ],
)
def test_what_the_filter_does_not_allow_is_not_read(
    world: WyomingWorld, tmp_path: Path, events: list[Eventable]
) -> None:
    filtered(world, tmp_path)
    world.send(*events)
    world.speak()
    assert refused(world) == "content_filtered: text: contains text that this server does not allow"
    assert world.speech.idle


def test_what_the_filter_allows_is_read_in_order(world: WyomingWorld, tmp_path: Path) -> None:
    filtered(world, tmp_path)
    texts = [SynthesizeChunk(text) for text in ("One. A f", "orm. ", "Two", ".")]
    world.send(Synthesize("Zero."), SynthesizeStart(), *texts, SynthesizeStop())
    world.speak()
    words = [chunk("One."), chunk("A form."), chunk("Two.")]
    assert world.received() == [START, chunk("Zero."), STOP, START, *words, STOP, STOPPED]


def test_a_mistake_of_ours_ends_one_connection(
    world: WyomingWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    other, _ = world.join()

    def fail(*_: object) -> None:
        raise LookupError("of ours")

    world.send(Synthesize("One."))
    monkeypatch.setattr("umaserve.dialects.wyoming.replies.audio_start", fail)
    world.speak()
    assert world.received() == [None]
    monkeypatch.setattr(Transcription, "take", fail)
    other.sendall(encode(Event("transcribe")))
    world.turn()
    assert world.received(other) == [None]
    assert len(world.lost) == 2
    assert world.speech.idle
    assert caplog.text.count("LookupError: of ours") == 2
    other.close()


# Transcripts


def asked(world: WyomingWorld) -> tuple[Session, Generate, Sound]:
    (session,) = world.sessions.take_arrived()
    turns = session.request.prompt
    assert isinstance(turns, tuple)
    (attachment,) = turns[-1].attachments
    sound = attachment.media  # type: ignore[union-attr]
    assert isinstance(sound, Sound)
    return session, session.request, sound


def hear(*parts: bytes, rate: int = 16_000) -> list[Eventable]:
    return [AudioStart(rate, 2, 1), *(AudioChunk(rate, 2, 1, part) for part in parts), AudioStop()]


def answer(world: WyomingWorld, session: Session, *texts: str) -> None:
    session.sink(Placed())
    for text in texts:
        session.sink(Token(f"<thought>{text}", 5, answer=text))
    session.sink(Finished(FinishReason.STOP, Usage(1, 1)))
    world.turn()


def test_speech_becomes_a_transcript(world: WyomingWorld) -> None:
    pcm = np.array([0, 16384, -32768, 8192], "<i2").tobytes()
    world.send(Transcribe(name="any", language="de", transcript_names=["Küche"], transcript_terms=["Licht", "Lampe"]))
    world.send(*hear(pcm[:4], pcm[4:]), Ping("next"))
    session, request, sound = asked(world)
    assert (bytes(sound.data), sound.sample_rate) == (np.array([0, 0.5, -1, 0.25], "<f4").tobytes(), 16_000)
    assert (session.caller.dialect, session.caller.peer) == ("wyoming", "ip:127.0.0.1")
    assert "language of the speech: de." in request.prompt[-1].content  # type: ignore[union-attr]
    assert "Küche, Licht, Lampe" in request.prompt[-1].content  # type: ignore[union-attr]
    assert request.sampling.temperature == 0
    answer(world, session, " Mach das ", "Licht an.\n")
    assert world.received() == [Transcript("Mach das Licht an.", language="de"), Pong("next")]


def test_a_sound_needs_no_word_before_it_and_keeps_nothing_behind_it(world: WyomingWorld) -> None:
    world.send(Transcribe(language="de"), *hear(b"12"))
    answer(world, asked(world)[0], "a")
    world.send(AudioChunk(8000, 1, 2, bytes([0, 128])), AudioStop())
    session, request, sound = asked(world)
    assert np.frombuffer(sound.data, "<f4").tolist() == [-0.5]
    assert "language" not in request.prompt[-1].content  # type: ignore[union-attr]
    answer(world, session, "b")
    assert world.received() == [Transcript("a", language="de"), Transcript("b")]


def test_where_nothing_was_said_there_is_nothing_to_read(world: WyomingWorld) -> None:
    world.send(Transcribe(), *hear(), Transcribe(), AudioStop())
    assert world.received() == [Transcript(""), Transcript("")]
    assert world.sessions.take_arrived() == []


@pytest.mark.parametrize(
    "event", [Transcribe(), AudioStart(16_000, 2, 1), AudioChunk(16_000, 2, 1, b"12"), AudioStop()]
)
def test_a_model_that_hears_nothing_transcribes_nothing(mute: WyomingWorld, event: Eventable) -> None:
    mute.send(event)
    expected = (
        "can't be used: this daemon's model takes no audio; its operator can load one that hears, with its projector"
    )
    assert refused(mute) == f"bad_request: {event.event().type}: {expected} (--mmproj)"


def test_a_sound_has_one_format(world: WyomingWorld) -> None:
    world.send(AudioStart(16_000, 2, 1), AudioChunk(16_000, 2, 2, bytes(4)))
    assert refused(world) == (
        "bad_request: audio-chunk: expected one format for all of the sound, 1 x 2 bytes at 16000 Hz,"
        " got 2 x 2 bytes at 16000 Hz"
    )


def test_a_sound_is_capped(world: WyomingWorld) -> None:
    most = CONFIG.max_chat_bytes // 4 * 2
    pieces = [bytes(2000)] * (most // 2000)
    world.send(AudioStart(16_000, 2, 1), *(AudioChunk(16_000, 2, 1, piece) for piece in pieces))
    assert world.received() == []
    world.send(AudioChunk(16_000, 2, 1, b"12"))
    assert refused(world) == "frame_too_large: audio-chunk: expected at most 5000 samples, got more"
    world.client.close()
    world.turn()
    assert world.budget.drawn == 0


def test_a_sounds_memory_counts_until_it_is_prepared(world: WyomingWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[int] = []
    monkeypatch.setattr(InputShare, "hold", lambda _share, n_bytes: held.append(n_bytes))
    kept: list[int] = []
    monkeypatch.setattr(InputShare, "keep", lambda _share, n_bytes: kept.append(n_bytes))
    world.send(AudioStart(16_000, 2, 1), AudioChunk(16_000, 2, 1, bytes(2000)))
    assert held[-1] == 4000
    world.send(AudioStop())
    assert (held[-1], kept) == (0, [4000])
    session, _, _ = asked(world)
    session.sink(Placed())
    assert kept[-1] == 0


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        (
            FinishReason.LENGTH,
            "context_exceeded: audio-chunk: its transcript reached the limit of an answer and is truncated",
        ),
        (FinishReason.CONTENT_FILTER, "content_filtered: audio-chunk: the server's content filter stopped"),
    ],
)
def test_a_transcript_that_lacks_its_end_is_an_error(world: WyomingWorld, reason: FinishReason, message: str) -> None:
    world.send(*hear(b"12"))
    session, _, _ = asked(world)
    session.sink(Token("a", 5))
    session.sink(Finished(reason, Usage(1, 1)))
    world.turn()
    assert refused(world).startswith(message)


def test_a_transcript_that_fails_is_an_error(world: WyomingWorld) -> None:
    world.send(*hear(b"12"))
    session, _, _ = asked(world)
    session.sink(RequestError(Fault.QUEUE_FULL, "request", "too many wait"))
    world.turn()
    assert refused(world) == "queue_full: request: too many wait"


def test_who_leaves_needs_no_transcript(world: WyomingWorld) -> None:
    world.send(*hear(b"12"))
    session, _, _ = asked(world)
    world.client.close()
    world.turn()
    assert session.ended
    assert world.lost == [world.connection]


# Time


def test_a_connection_that_asks_nothing_is_closed(world: WyomingWorld) -> None:
    world.turn(59.0)
    world.send(Ping())
    world.turn(59.0)
    assert world.received() == [Pong()]
    world.turn(2.0)
    assert world.received() == [None]


def test_one_that_is_being_answered_is_not(world: WyomingWorld) -> None:
    world.send(Synthesize("One."))
    for _ in range(3):
        world.turn(59.0)
    world.speak()
    assert world.received() == [START, chunk("One."), STOP]
    world.turn(59.0)
    assert world.received() == []


def test_a_text_may_come_slowly_and_a_large_sound_may_not(world: WyomingWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world.send(SynthesizeStart())
    for _ in range(3):
        world.turn(59.0)
        world.send(SynthesizeChunk("One. "))
    world.send(SynthesizeStop())
    world.speak()
    assert world.received()[-2:] == [STOP, STOPPED]
    monkeypatch.setattr(InputShare, "growing", True)
    for _ in range(3):
        world.send(AudioChunk(16_000, 2, 1, b"12"))
        world.turn(25.0)
    assert world.received() == [None]


# Anything

SENT = {
    "synthesize": {"text": "One. Two"},
    "synthesize-start": {},
    "synthesize-chunk": {"text": "hree. F"},
    "synthesize-stop": {},
    "transcribe": {"language": "en"},
    "audio-start": {"rate": 16_000, "width": 2, "channels": 1},
    "audio-chunk": {"rate": 16_000, "width": 2, "channels": 1},
    "audio-stop": {},
    "describe": {},
    "ping": {"text": "x"},
    "unknown": {},
}
junk = st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.just([]) | st.just({})
junk |= st.floats(allow_nan=False, allow_infinity=False)
steps = st.lists(
    st.tuples(
        st.sampled_from(sorted(SENT)), st.dictionaries(st.sampled_from(["text", "rate", "voice"]), junk, max_size=1)
    )
    | st.sampled_from(["speak", "answer", "late"]),
    max_size=12,
)


@settings(max_examples=examples(150))
@given(steps)
@example([("audio-chunk", {"text": -(2**63) - 1}), ("ping", {"text": 2**80})])
@example([("synthesize-start", {}), ("synthesize-chunk", {}), "speak", ("synthesize-stop", {}), "speak", ("ping", {})])
@example([("audio-start", {}), ("audio-chunk", {}), ("audio-stop", {}), ("ping", {}), "answer", ("synthesize", {})])
def test_whatever_is_sent_is_answered_or_refused_and_nothing_is_left(steps: list[Any]) -> None:
    """In any order, with any values: no bug closes the connection, an error is the last event, and nothing goes on once
    the client has left."""
    world = WyomingWorld(StandInVoice(), Hearing())
    sessions: list[Session] = []
    with patch.object(wyoming.log, "exception") as complained:
        for step in steps:
            if step == "speak":
                world.speak()
            elif step == "answer":
                for session in (session for session in sessions if not session.ended):
                    answer(world, session, "a")
                    world.sessions.abandon(session)
            elif step == "late":
                world.turn(61.0)
            elif world.connection.channel.open:
                kind, odd = step
                world.send(Event(kind, {**SENT[kind], **odd}, b"1234" if kind == "audio-chunk" else b""))
            sessions += world.sessions.take_arrived()
        events = world.received()
        ended = events[-1:] == [None]
        errors = [event for event in events if isinstance(event, Error)]
        assert len(errors) <= ended
        assert not errors or events[-2] is errors[0]
        assert not complained.called
        world.client.close()
        world.turn()
        assert world.lost == [world.connection]
        assert world.speech.idle
        assert all(session.ended for session in sessions)
        assert world.budget.drawn == 0
    world.close()
