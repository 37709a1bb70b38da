"""Voice in by OpenAI's unmodified client, on the real daemon with a tiny projector, whose weights are random."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator

import httpx
import media_files
import openai
import pytest
import standin_projectors as projectors
from daemon import Daemon
from program import Program

from umaserve.core.requests import Sound
from umaserve.dialects.parameters import RequestLimits
from umaserve.dialects.transcription import transcription

RECORDING = media_files.wav(media_files.sine(seconds=2.5))
LONG = media_files.wav(media_files.sine(seconds=14))
"""Speech of this length could fill the context."""
CONTEXT = 512
SECRET = ("--worker-secret", "a-secret-of-the-tests")
LANGUAGE = "de"
"""With it, the model repeats the instruction and ends."""
COUNTING = "1, 2, 3, 4, 5, 6, 7, 8,"
"""Text before the recording that the model goes on with for ever, whatever it has heard, and however it rounds."""


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A relay's address."""
    program = Program(tmp_path_factory.mktemp("relay"), "relay", "--listen", "127.0.0.1:0", *SECRET)
    yield program.wait_for_line(r"listening at=(\S+)")
    assert program.stop() == 0, program.logs
    assert "Traceback" not in program.logs, program.logs


@pytest.fixture(scope="module")
def hearing(relay: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon that hears, and works for the relay."""
    folder = tmp_path_factory.mktemp("hearing")
    projector = projectors.audio(folder / "mmproj.gguf")
    # Answers are compared: llama.cpp rounds otherwise where it verifies guesses.
    flags = ("--http", "127.0.0.1:0", "--mmproj", str(projector), "--no-speculation", "--n-ctx", str(CONTEXT))
    flags += ("--relay", f"http://{relay}", *SECRET)
    daemon = Daemon(folder, *flags, env={"UMA_THREADS": "1"})
    yield daemon
    assert daemon.stop() == 0, daemon.logs
    assert "Traceback" not in daemon.logs, daemon.logs


@pytest.fixture
def client(hearing: Daemon) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"http://{hearing.http}/v1", api_key="none", max_retries=0) as client:
        yield client


def in_a_chat(client: openai.OpenAI) -> str:
    """What the model answers to the same question in a chat."""
    request = transcription(Sound(memoryview(RECORDING), "file"), "t", RequestLimits(10**6), None, language=LANGUAGE)
    assert isinstance(request.prompt, tuple)
    heard = {"data": base64.b64encode(RECORDING).decode(), "format": "wav"}
    parts = [{"type": "input_audio", "input_audio": heard}, {"type": "text", "text": request.prompt[0].content}]
    answer = client.chat.completions.create(
        model="any",
        messages=[{"role": "user", "content": parts}],  # type: ignore[list-item,misc]
        temperature=0,
        top_p=1,
    )
    return (answer.choices[0].message.content or "").strip()


def test_a_transcript_is_what_a_chat_about_the_recording_says(client: openai.OpenAI) -> None:
    audio = client.audio
    expected = in_a_chat(client)
    assert expected
    file = ("speech.wav", io.BytesIO(RECORDING), "audio/wav")
    plain = audio.transcriptions.create(model="any", file=file, language=LANGUAGE)
    assert plain.text == expected
    assert plain.usage is not None
    assert plain.usage.type == "tokens"
    assert plain.usage.input_tokens > projectors.FRAMES // 2 // projectors.STACKED
    verbose = audio.transcriptions.create(
        model="any",
        file=file,
        language=LANGUAGE,
        response_format="verbose_json",
        timestamp_granularities=["segment"],
    )
    assert (verbose.text, verbose.duration, verbose.language) == (expected, 2.5, LANGUAGE)
    assert verbose.segments is not None
    assert [(one.start, one.end, one.text) for one in verbose.segments] == [(0, 2.5, expected)]
    as_text = audio.transcriptions.create(model="any", file=file, language=LANGUAGE, response_format="text")
    assert as_text == f"{expected}\n"
    subtitles = audio.transcriptions.create(model="any", file=file, language=LANGUAGE, response_format="srt")
    assert subtitles == f"1\n00:00:00,000 --> 00:00:02,500\n{expected}\n\n"


def test_a_stream_says_the_same_in_deltas(client: openai.OpenAI) -> None:
    file = ("speech.wav", RECORDING)
    expected = client.audio.transcriptions.create(model="any", file=file, language=LANGUAGE).text
    events = list(
        client.audio.transcriptions.create(
            model="any", file=file, language=LANGUAGE, stream=True, include=["logprobs"], chunking_strategy="auto"
        )
    )
    *deltas, done = events
    assert {event.type for event in deltas} == {"transcript.text.delta"}
    assert "".join(event.delta for event in deltas if event.type == "transcript.text.delta") == expected
    assert done.type == "transcript.text.done"
    assert done.text == expected
    assert done.usage is not None
    assert done.logprobs
    assert done.usage.output_tokens == len(done.logprobs)


def test_a_relay_carries_the_recording(relay: str, client: openai.OpenAI) -> None:
    file = ("speech.wav", RECORDING)
    direct = client.audio.transcriptions.create(model="any", file=file, language=LANGUAGE)
    with openai.OpenAI(base_url=f"http://{relay}/v1", api_key="none") as relayed:
        whole = relayed.audio.transcriptions.create(model="default", file=file, language=LANGUAGE)
        assert whole.text == direct.text
        *_, done = relayed.audio.transcriptions.create(model="default", file=file, language=LANGUAGE, stream=True)
        assert done.type == "transcript.text.done"
        assert done.text == direct.text


def test_a_transcript_that_finds_no_end_stops_where_no_speech_could_go_on(hearing: Daemon) -> None:
    before = hearing.metrics()
    path = f"http://{hearing.http}/v1/audio/transcriptions"
    reply = httpx.post(path, files={"file": RECORDING}, data={"prompt": COUNTING}, timeout=60).json()
    assert reply["text"]
    assert reply["usage"]["output_tokens"] == 64 + 2.5 * 32
    after = hearing.wait_until_quiet()
    assert after["tokens_generated_total"] - before["tokens_generated_total"] == 64 + 2.5 * 32


def test_a_transcript_that_the_context_cuts_is_an_error(client: openai.OpenAI) -> None:
    with pytest.raises(
        openai.BadRequestError, match="its transcript reached the limit of an answer and is truncated"
    ) as cut:
        client.audio.transcriptions.create(model="any", file=("speech.wav", LONG), prompt=COUNTING)
    assert cut.value.code == "context_length_exceeded"


def test_recordings_that_can_not_be_used_are_refused(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="file: expected a sound, got 4 bytes") as broken:
        client.audio.transcriptions.create(model="any", file=("speech.wav", b"RIFF"))
    assert broken.value.param == "file"


def test_a_client_that_leaves_ends_its_transcript(hearing: Daemon) -> None:
    before = hearing.wait_until_quiet()
    with httpx.stream(
        "POST",
        f"http://{hearing.http}/v1/audio/translations",
        files={"file": LONG},
        data={"stream": "true"},
        timeout=60,
    ) as response:
        assert response.headers["content-type"] == "text/event-stream"
        next(response.iter_lines())
    after = hearing.wait_until_quiet()
    assert after["tokens_generated_total"] - before["tokens_generated_total"] < 400
