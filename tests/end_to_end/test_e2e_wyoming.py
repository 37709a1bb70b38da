"""The Wyoming protocol with its own client, unchanged, as Home Assistant uses it: the real daemon and voice, and a
model that hears."""

from __future__ import annotations

import asyncio
import io
import re
import socket
import wave
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import httpx
import media_files
import pytest
import standin_projectors as projectors
from daemon import ANSWER_S, Daemon
from wyoming.asr import Transcribe, Transcript
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.client import AsyncClient
from wyoming.error import Error
from wyoming.event import Event
from wyoming.info import Describe, Info
from wyoming.tts import (
    Synthesize,
    SynthesizeChunk,
    SynthesizeStart,
    SynthesizeStop,
    SynthesizeStopped,
    SynthesizeVoice,
)

pytest.importorskip("hibari", reason="hibari-tts is not installed")
pytest.importorskip("soxr", reason="no media packages are installed (umaserve[media])")

T = TypeVar("T")

TEXT = "Dr. Smith's fox jumps over the lazy dog. It rains. The end"
LANGUAGE = "de"
"""With it, the model repeats the instruction and ends; without it, it may go on for ever."""


@pytest.fixture(scope="module")
def talking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon that hears and speaks over Wyoming, at a port and over HTTP."""
    folder = tmp_path_factory.mktemp("talking")
    projector = projectors.audio(folder / "mmproj.gguf")
    flags = ("--wyoming", "tcp:127.0.0.1:0", "--http", "127.0.0.1:0", "--mmproj", str(projector))
    # Transcripts are compared: llama.cpp rounds otherwise where it verifies guesses.
    daemon = Daemon(folder, *flags, "--n-ctx", "512", "--no-speculation", env={"UMA_THREADS": "1"})
    yield daemon
    assert daemon.stop() == 0, daemon.logs
    assert "Traceback" not in daemon.logs, daemon.logs


def uri(daemon: Daemon) -> str:
    return "tcp://" + re.findall(r"listening at=(\S+) protocol=wyoming", daemon.logs)[-1]


@asynccontextmanager
async def client_of(place: str) -> AsyncIterator[AsyncClient]:
    async with AsyncClient.from_uri(place, connect_timeout=ANSWER_S, read_timeout=ANSWER_S) as client:
        yield client


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(work, ANSWER_S))


async def next_event(client: AsyncClient) -> Event:
    event = await client.read_event()
    assert event is not None, "the connection was lost"
    return event


async def sound_of(client: AsyncClient, last: str = "audio-stop") -> bytes:
    """What is spoken until the event ``last``."""
    pcm = b""
    start = AudioStart.from_event(await next_event(client))
    assert (start.rate, start.width, start.channels) == (24_000, 2, 1)
    while (event := await next_event(client)).type == "audio-chunk":
        pcm += AudioChunk.from_event(event).audio
    assert AudioStop.is_type(event.type), event
    if last != "audio-stop":
        assert (await next_event(client)).type == last
    return pcm


async def spoken(place: str, text: str) -> bytes:
    async with client_of(place) as client:
        await client.write_event(Synthesize(text, voice=SynthesizeVoice(name="hibari-tts")).event())
        return await sound_of(client)


async def spoken_in_parts(place: str, *parts: str) -> bytes:
    async with client_of(place) as client:
        await client.write_event(SynthesizeStart(voice=SynthesizeVoice(language="en-US")).event())
        for part in parts:
            await client.write_event(SynthesizeChunk(part).event())
        await client.write_event(Synthesize("".join(parts)).event())
        await client.write_event(SynthesizeStop().event())
        return await sound_of(client, "synthesize-stopped")


def read_aloud(daemon: Daemon, text: str) -> bytes:
    """As OpenAI's API gives it."""
    asked = {"model": "m", "voice": "v", "input": text, "response_format": "pcm"}
    return httpx.post(f"http://{daemon.http}/v1/audio/speech", json=asked, timeout=ANSWER_S).content


def test_a_client_finds_the_voice_and_the_model(talking: Daemon) -> None:
    async def told() -> Info:
        async with client_of(uri(talking)) as client:
            await client.write_event(Describe().event())
            return Info.from_event(await next_event(client))

    info = run(told())
    ((tts,), (asr,)) = info.tts, info.asr
    assert tts.supports_synthesize_streaming
    assert [(voice.name, voice.languages, voice.installed) for voice in tts.voices] == [("hibari-tts", ["en"], True)]
    assert [(model.name, model.installed) for model in asr.models] == [("SmolLM2-135M-Instruct.Q4_1", True)]
    assert "en" in asr.models[0].languages


def test_a_text_is_spoken_whole_and_in_parts_as_over_http(talking: Daemon) -> None:
    expected = read_aloud(talking, TEXT)
    assert len(expected) > 3 * 24_000 * 2
    place = uri(talking)
    parts = [TEXT[start : start + 5] for start in range(0, len(TEXT), 5)]

    async def at_once() -> list[bytes]:
        return await asyncio.gather(spoken(place, TEXT), spoken_in_parts(place, *parts), spoken_in_parts(place, TEXT))

    for pcm in run(at_once()):
        assert pcm == expected


def test_sentences_are_heard_while_the_text_is_written(talking: Daemon) -> None:
    async def heard() -> tuple[bytes, bytes]:
        async with client_of(uri(talking)) as client:
            await client.write_event(SynthesizeStart().event())
            await client.write_event(SynthesizeChunk("It rains. And").event())
            assert AudioStart.is_type((await next_event(client)).type)
            first = AudioChunk.from_event(await next_event(client)).audio
            await client.write_event(SynthesizeChunk(" it pours.").event())
            await client.write_event(SynthesizeStop().event())
            pcm = first
            while not SynthesizeStopped.is_type((event := await next_event(client)).type):
                pcm += event.payload or b""
            await client.write_event(Synthesize("It rains.").event())
            return pcm, await sound_of(client)

    whole, again = run(heard())
    assert whole == read_aloud(talking, "It rains. And it pours.")
    assert whole.startswith(again)


def heard_by(place: str, pcm: bytes, **about: Any) -> str:
    async def ask() -> Transcript:
        async with client_of(place) as client:
            await client.write_event(Transcribe(**about).event())
            await client.write_event(AudioStart(16_000, 2, 1).event())
            for start in range(0, len(pcm), 2048):
                await client.write_event(AudioChunk(16_000, 2, 1, pcm[start : start + 2048]).event())
            await client.write_event(AudioStop().event())
            event = await next_event(client)
            assert Transcript.is_type(event.type), event
            return Transcript.from_event(event)

    return run(ask()).text


def test_what_is_said_becomes_the_transcript_that_http_gives(talking: Daemon) -> None:
    recording = media_files.wav(media_files.sine(seconds=2.5))
    with wave.open(io.BytesIO(recording)) as file:
        pcm = file.readframes(file.getnframes())
    transcript = heard_by(uri(talking), pcm, name="m", language=LANGUAGE)
    asked = {"files": {"file": recording}, "data": {"model": "m", "language": LANGUAGE}}
    reply = httpx.post(f"http://{talking.http}/v1/audio/transcriptions", timeout=ANSWER_S, **asked)
    assert transcript == reply.json()["text"] != ""
    metrics = httpx.get(f"http://{talking.http}/metrics").text
    assert re.search(r'umaserve_requests_total\{dialect="wyoming",end="\w+",model="[^"]+"\} [1-9]', metrics)


def test_who_leaves_is_read_no_more_and_others_go_on(talking: Daemon) -> None:
    place = uri(talking)

    async def leave() -> bytes:
        async with client_of(place) as client:
            await client.write_event(Synthesize(" ".join([TEXT] * 20)).event())
            assert AudioStart.is_type((await next_event(client)).type)
        return await spoken(place, "Yes.")

    assert run(leave()) == read_aloud(talking, "Yes.")
    talking.wait_for(lambda values: values["spoken_answers"] == 0)
    assert re.findall(r"text read aloud dialect=wyoming .* end=(\w+)", talking.logs)[-2:] in (
        ["abandoned", "done"],
        ["done", "abandoned"],
    )


def test_a_mistake_is_told_and_ends_the_connection(talking: Daemon) -> None:
    async def ask(event: Event) -> tuple[Error, Event | None]:
        async with client_of(uri(talking)) as client:
            await client.write_event(event)
            return Error.from_event(await next_event(client)), await client.read_event()

    error, end = run(ask(Synthesize("Hallo.", voice=SynthesizeVoice(language="de")).event()))
    assert (error.text, error.code, end) == ('voice.language: expected "en", got "de"', "bad_request", None)
    host, _, port = uri(talking).removeprefix("tcp://").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=ANSWER_S) as raw:
        raw.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert b"header: not valid JSON" in raw.makefile("rb").read()


def test_a_model_that_hears_nothing_says_what_to_load(own_daemon, tmp_path) -> None:
    place = tmp_path / "wyoming.sock"
    own_daemon("--wyoming", f"unix:{place}")

    async def ask() -> tuple[Info, Error]:
        async with client_of(f"unix://{place}") as client:
            await client.write_event(Describe().event())
            info = Info.from_event(await next_event(client))
            await client.write_event(Transcribe().event())
            return info, Error.from_event(await next_event(client))

    info, error = run(ask())
    assert (len(info.tts), info.asr) == (1, [])
    assert "can load one that hears, with its projector (--mmproj)" in error.text
