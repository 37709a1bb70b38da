"""Images, sounds and films on the real daemon with a tiny projector, whose weights are random."""

from __future__ import annotations

import asyncio
import base64
import json
import random
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import media_files
import numpy as np
import openai
import PIL.Image
import pytest
import standin_projectors as projectors
from chat_wire import Message, ask, chat_streaming, failure, open_chat, samples_of, with_voice
from daemon import Daemon
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_qwen3_voices import write_qwen3_voice
from tiny_voices import write_voice

GREEDY = {"max_new_tokens": 4, "temperature": 0}


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon that sees and hears, and keeps what is said."""
    folder = tmp_path_factory.mktemp("seeing")
    projector = projectors.both(folder / "mmproj.gguf")
    (folder / "voice.wav").write_bytes(media_files.wav(media_files.sine(seconds=1.5, rate=24_000), 24_000))
    flags = ("--http", "127.0.0.1:0", "--mmproj", str(projector), "--ref-audio", str(folder / "voice.wav"))
    # Answers are compared: llama.cpp rounds otherwise where it verifies guesses.
    flags += ("--no-speculation",)
    daemon = Daemon(folder, *flags, "--recordings", str(folder / "recordings"), env={"UMA_THREADS": "1"})
    yield daemon
    assert daemon.stop() == 0, daemon.logs
    assert "Traceback" not in daemon.logs, daemon.logs


@pytest.fixture(scope="module")
def talking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon that hears, and speaks with any voice that it has heard."""
    folder = tmp_path_factory.mktemp("talking")
    projector = projectors.audio(folder / "projector.gguf")
    model, mmproj = write_voice(folder)
    (folder / "voice.wav").write_bytes(media_files.wav(media_files.sine(seconds=1.5)))
    voice = ("--tts-model", model, "--tts-mmproj", mmproj, "--ref-audio", str(folder / "voice.wav"))
    daemon = Daemon(folder, "--http", "127.0.0.1:0", "--mmproj", str(projector), *voice, env={"UMA_THREADS": "1"})
    yield daemon
    assert daemon.stop() == 0, daemon.logs
    assert "Traceback" not in daemon.logs, daemon.logs


def text(words: str) -> Message:
    return {"type": "text", "text": words}


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def noise(seed: int = 0, size: int = 64) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (size, size, 3), np.uint8)
    return media_files.image("PNG", PIL.Image.fromarray(pixels))


def image(data: bytes | None = None) -> Message:
    return {"type": "image", "data": encoded(noise() if data is None else data)}


def audio(samples: np.ndarray | None = None, **fields: Any) -> Message:
    samples = media_files.sine() if samples is None else samples
    return {"type": "audio", "data": encoded(samples.astype("<f4").tobytes()), **fields}


def film(seconds: int = 2) -> Message:
    colours = [media_files.RED, media_files.BLUE] * seconds
    return {"type": "video", "data": encoded(media_files.film(colours, 2, sound=media_files.sine(seconds=seconds)))}


def said(daemon: Daemon, *content: Message, **body: Any) -> Message:
    """The last message of a conversation of one turn."""
    messages, code = ask(daemon, messages=[{"role": "user", "content": list(content)}], generation=GREEDY, **body)
    assert code == 1000, messages
    assert messages[0]["type"] == "prefill_done"
    return messages[-1]


def tokens(daemon: Daemon, *content: Message, **body: Any) -> int:
    return said(daemon, *content, **body)["input_tokens"]


def test_media_reach_the_model_as_the_projectors_tokens(seeing: Daemon) -> None:
    words = tokens(seeing, text("Look: "), text("What is it?"))
    with_image = tokens(seeing, text("Look: "), image(), text("What is it?"))
    with_sound = tokens(seeing, text("Look: "), audio(), text("What is it?"))
    with_both = tokens(seeing, text("Look: "), image(), audio(), text("What is it?"))
    sound = projectors.FRAMES // 2 // projectors.STACKED
    assert with_image > words
    assert abs(with_sound - words - sound) <= 3
    assert with_image < with_both < with_image + sound + 6


def test_the_numbers_of_several_images_are_tokens_too(seeing: Daemon) -> None:
    two = [image(noise(1)), image(noise(2)), text("Which is larger?")]
    without = {"image": {"use_image_id": False}}
    label = httpx.post(f"http://{seeing.http}/tokenize", json={"content": "Image 1: "}).json()["tokens"]
    assert tokens(seeing, *two) == tokens(seeing, *two, **without) + 2 * len(label)
    assert tokens(seeing, image(), text("?")) == tokens(seeing, image(), text("?"), **without)


def test_the_answer_depends_on_the_image_and_not_on_the_way_it_came(seeing: Daemon) -> None:
    # Once before, so that all that follow reuse it: llama.cpp rounds otherwise where it computes a prompt.
    _, one, again, other = (said(seeing, image(noise(seed, 200)), text("What is it?")) for seed in (1, 1, 1, 2))
    assert one["text"] == again["text"]
    whole = said(seeing, image(noise(1, 200)), text("What is it?"), streaming=False)
    assert whole["text"] == one["text"]
    assert other["input_tokens"] == one["input_tokens"]


def test_a_second_turn_with_the_same_image_encodes_nothing_and_computes_only_what_is_new(seeing: Daemon) -> None:
    first = {"role": "user", "content": [image(noise(3, 130)), text("What is it?")]}
    (_, *_, done), _ = ask(seeing, messages=[first], generation=GREEDY)
    before = seeing.metrics()
    turns = [first, {"role": "assistant", "content": done["text"]}, {"role": "user", "content": "And where?"}]
    (_, *_, second), _ = ask(seeing, messages=turns, generation=GREEDY)
    after = seeing.metrics()
    assert after["media_chunks_encoded_total"] == before["media_chunks_encoded_total"] > 0
    assert after["prefix_reused_tokens_total"] - before["prefix_reused_tokens_total"] >= done["input_tokens"] - 8
    assert second["input_tokens"] > done["input_tokens"]


def test_a_film_is_seen_and_heard(seeing: Daemon) -> None:
    plain = tokens(seeing, film(), text("What is it?"))
    omni = tokens(seeing, film(), text("What is it?"), omni_mode=True)
    stacked = tokens(seeing, {**film(), "stack_frames": 2}, text("What is it?"))
    # What the tiny projector hears in one go is longer than the film.
    assert omni == plain
    assert stacked > plain


def test_slices_are_bounded_by_the_request(seeing: Daemon) -> None:
    large = image(noise(4, 256))
    many, few = (tokens(seeing, large, text("What?"), image={"max_slice_nums": most}) for most in (None, 4))
    assert few < many


def test_the_openai_client_sends_images_and_sounds(seeing: Daemon) -> None:
    client = openai.OpenAI(base_url=f"http://{seeing.http}/v1", api_key="none")
    url = f"data:image/png;base64,{encoded(noise())}"
    wav = encoded(media_files.wav(media_files.sine()))

    def prompt_tokens(*content: Message) -> int:
        answer = client.chat.completions.create(
            model="default", messages=[{"role": "user", "content": list(content)}], max_tokens=3, temperature=0
        )
        return answer.usage.prompt_tokens

    words = prompt_tokens(text("What is it?"))
    seen = prompt_tokens(text("What is it?"), {"type": "image_url", "image_url": {"url": url}})
    heard = prompt_tokens(text("What is it?"), {"type": "input_audio", "input_audio": {"data": wav, "format": "wav"}})
    assert seen > words
    assert heard > words
    with pytest.raises(openai.BadRequestError, match=r"messages\[0\].content\[0\].image_url.url"):
        prompt_tokens({"type": "image_url", "image_url": {"url": url[:-40]}})


def test_the_openai_client_sends_the_pictures_that_a_tool_has_found(seeing: Daemon) -> None:
    client = openai.OpenAI(base_url=f"http://{seeing.http}/v1", api_key="none")

    def found(*parts: Message, content: object = None) -> Any:
        call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        return client.chat.completions.create(
            model="default",
            messages=[
                {"role": "user", "content": "Look at the door."},
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "c1", "content": content or list(parts)},
            ],
            max_tokens=8,
            temperature=0,
        )

    def shown(data: str) -> Message:
        return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}

    words = found(content="A door.")
    seen, other = (found(text("A door."), shown(encoded(noise(seed)))) for seed in (11, 12))
    assert seen.usage.prompt_tokens == other.usage.prompt_tokens > words.usage.prompt_tokens
    assert seen.choices[0].message.content
    path = r"messages\[2\].content\[1\]"
    with pytest.raises(openai.BadRequestError, match=rf"{path}.image_url.url: expected an intact image"):
        found(text("A door."), shown(encoded(noise(11)[:-2000])))
    with pytest.raises(openai.BadRequestError, match=rf"{path}.image_url.url: expected \"data:image/TYPE;base64,"):
        found(text("A door."), {"type": "image_url", "image_url": {"url": "https://example.com/door.png"}})
    with pytest.raises(openai.BadRequestError, match=rf"{path}.type: expected \"text\" or \"image_url\""):
        found(text("A door."), {"type": "file"})


def test_images_are_more_than_other_bodies_may_hold(seeing: Daemon) -> None:
    url = f"data:image/png;base64,{encoded(bytes(2**20))}"
    part = {"type": "image_url", "image_url": {"url": url}}
    body = {"messages": [{"role": "user", "content": [part]}], "max_tokens": 3}
    answer = httpx.post(f"http://{seeing.http}/v1/chat/completions", json=body, timeout=60)
    assert answer.status_code == 400
    assert "messages[0].content[0].image_url.url: expected an image" in answer.text
    assert httpx.post(f"http://{seeing.http}/v1/completions", json={"prompt": url}, timeout=60).status_code == 413


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (image(b"no image"), "messages[0].content[0].data: expected an image"),
        (image(noise()[:-2000]), "messages[0].content[0].data: expected an intact image"),
        ({"type": "image", "data": "%%%"}, "messages[0].content[0].data: expected base64"),
        (audio(np.array([0.5, np.nan])), "messages[0].content[0].data: expected finite samples, got nan at index 1"),
        ({"type": "audio", "data": "AAAA"}, "messages[0].content[0].data: expected float32 samples"),
        (
            {"type": "audio", "data": encoded(media_files.wav(media_files.sine()))},
            "messages[0].content[0].data: expected float32 samples, got a WAV file: decode it first",
        ),
        ({"type": "video", "data": encoded(b"no film")}, "messages[0].content[0].data: expected"),
    ],
)  # fmt: skip
def test_what_is_no_image_sound_or_film_is_refused_by_name(seeing: Daemon, item: Message, message: str) -> None:
    assert failure(seeing, messages=[{"role": "user", "content": [item, text("?")]}]).startswith(message)


def test_who_leaves_while_an_image_is_prepared_costs_nobody_anything(seeing: Daemon) -> None:
    for seed in range(4):
        with open_chat(seeing) as client:
            client.send(json.dumps({"messages": [{"role": "user", "content": [image(noise(90 + seed, 300))]}]}))
    assert said(seeing, image(), text("What is it?"))["generated_tokens"] > 0
    seeing.wait_until_quiet()


def test_a_stream_goes_on_while_images_are_encoded(seeing: Daemon) -> None:
    seen: list[Message] = []
    asking = threading.Thread(target=lambda: seen.append(said(seeing, image(noise(7, 300)), text("What is it?"))))
    asking.start()
    # Not the text: beside another stream llama.cpp rounds otherwise.
    assert len(seeing.ask(max_tokens=60, ignore_eos=True)) == 61
    asking.join()
    assert seen


def test_a_conversation_is_recorded_under_the_id_that_its_end_tells(seeing: Daemon) -> None:
    done = said(seeing, image(), text("Who are you?"), tts={"enabled": False})
    folder = Path(seeing.path).parent / "recordings" / done["recording_session_id"]
    for _ in range(1000):
        if folder.exists():
            break
        seeing.metrics()
    request = json.loads((folder / "request.json").read_bytes())
    assert request["messages"][0]["content"][0] == image()
    answer = json.loads((folder / "answer.json").read_bytes())
    assert answer["text"] == done["text"]
    assert answer["prompt_tokens"] == done["input_tokens"]


def test_the_default_reference_voice_is_there_for_pages(talking: Daemon) -> None:
    reply = httpx.get(f"http://{talking.http}/api/default_ref_audio").json()
    samples = np.frombuffer(base64.b64decode(reply["base64"]), "<f4")
    assert (reply["name"], reply["sample_rate"], reply["duration"]) == ("voice.wav", 16_000, 1.5)
    assert media_files.pitch(samples, 16_000) == pytest.approx(440, abs=2)


def test_what_no_voice_here_can_clone_is_given_to_nobody_and_the_operator_is_told(seeing: Daemon) -> None:
    reply = httpx.get(f"http://{seeing.http}/api/default_ref_audio")
    assert reply.status_code == 404
    assert reply.json()["error"]["message"].startswith("ref_audio: this daemon has no voice to clone")
    assert len(re.findall("WARNING.*--ref-audio has no effect", seeing.logs)) == 1


@with_voice
def test_a_voice_that_does_not_clone_speaks_and_says_that_it_is_its_own(seeing: Daemon) -> None:
    (prefill, done), code = ask(seeing, streaming=False, tts={"ref_audio_data": "AAAA"})
    assert (prefill["voice"], code) == ("default", 1000)
    (prefill, own), code = ask(seeing, streaming=False, tts={})
    assert ("voice" in prefill, code) == (False, 1000)
    assert (done["text"], done["audio_data"]) == (own["text"], own["audio_data"])


@pytest.mark.parametrize("voice", [pytest.param("seeing", marks=with_voice), "talking"])
def test_the_contracts_python_client_with_a_recording(voice: str, request: pytest.FixtureRequest) -> None:
    daemon: Daemon = request.getfixturevalue(voice)
    recording = encoded(media_files.sine(seconds=2).astype("<f4").tobytes())
    printed, audio = asyncio.run(chat_streaming(f"ws://{daemon.http}/ws/chat", recording))
    assert printed[0].startswith("Prefill done, ")
    assert printed[-2].removeprefix("Final: ") == printed[-3].removeprefix("Streaming: ") != ""
    pcm = np.frombuffer(b"".join(audio), dtype=np.float32)
    assert len(pcm) >= 1920
    assert np.isfinite(pcm).all()


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node")
def test_the_contracts_javascript_client_with_the_daemons_own_recording(talking: Daemon) -> None:
    script = Path(__file__).parent / "reference_clients" / "chat.js"
    done = subprocess.run(
        ["node", "--experimental-websocket", script, talking.http], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("Prefill done, ")
    assert any(line.startswith("Streaming: ") for line in lines)
    assert any(re.fullmatch(r"Tokens: \d+ in, \d+ out", line) for line in lines)
    assert "Connection closed" in lines
    (heard,) = (line for line in lines if line.startswith("Heard "))
    assert int(heard.split()[1]) >= 1920


def test_a_stream_goes_on_while_answers_are_spoken_by_llama_cpp(talking: Daemon) -> None:
    spoken: list[Message] = []
    asking = threading.Thread(
        target=lambda: spoken.append(said(talking, text("Hello."), tts={"mode": "voice_cloning"}))
    )
    asking.start()
    # Not the text: beside another stream llama.cpp rounds otherwise.
    assert len(talking.ask(max_tokens=60, ignore_eos=True)) == 61
    asking.join()
    assert spoken


def test_a_voice_of_several_languages_speaks_the_one_that_is_asked_for(own_daemon, tmp_path: Path) -> None:
    model, mmproj = write_qwen3_voice(tmp_path)
    daemon = own_daemon("--http", "127.0.0.1:0", "--no-speculation", "--tts-model", model, "--tts-mmproj", mmproj)

    def heard(tag: str) -> str:
        (_, done), code = ask(daemon, tts={"language": tag}, streaming=False)
        assert code == 1000
        return done["audio_data"]

    german = heard("de-AT")
    assert len(samples_of(german)) >= 1920
    assert heard("de") == german
    assert len({german, heard("zh"), heard("en")}) == 3
    assert heard("") == heard("en")
    assert failure(daemon, tts={"language": "fr"}) == (
        'tts.language: expected "en" or "zh" or "de" or "ru", which this daemon\'s voice speaks, got "fr"'
    )


_WHOLE = {
    "image": noise(8, 40),
    "audio": media_files.sine(seconds=0.1).astype("<f4").tobytes(),
    "video": media_files.film([media_files.RED] * 4, 4, sound=media_files.sine(seconds=1)),
}


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kind=st.sampled_from(sorted(_WHOLE)),
    cuts=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    seed=st.integers(0, 2**32 - 1),
    changes=st.integers(0, 12),
)
def test_damaged_media_end_in_an_answer_or_in_an_error_that_names_them(
    seeing: Daemon, kind: str, cuts: tuple[float, float], seed: int, changes: int
) -> None:
    data = bytearray(_WHOLE[kind])
    drawn = random.Random(seed)
    for _ in range(changes):
        data[drawn.randrange(len(data))] = drawn.randrange(256)
    first, last = sorted(int(cut * len(data)) for cut in cuts)
    item = {"type": kind, "data": encoded(bytes(data[first:last] if seed % 2 else data))}
    messages, code = ask(seeing, messages=[{"role": "user", "content": [item, text("?")]}], generation=GREEDY)
    if code == 1000:
        assert messages[-1]["type"] == "done"
    else:
        assert code == 1008, messages
        assert messages[-1]["error"].startswith("messages[0].content[0].data: ")
