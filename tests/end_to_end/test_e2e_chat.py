"""The contract chat-mode on the real daemon: text and speech, whole and as a stream, errors, keys, and the queue."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import numpy as np
import pytest
from chat_wire import GREEDY, Message, ask, chat_streaming, failure, open_chat, rest, samples_of, with_voice
from daemon import ANSWER_S, Daemon, serving

from umaserve.access.keys import KeyFile

HELLO = [{"role": "user", "content": "Hello!"}]


def test_a_stream_of_text_is_the_same_text_as_the_one_in_one_piece(daemon: Daemon):
    (prefill, *chunks, done), code = ask(daemon)
    assert code == 1000
    assert prefill == {"type": "prefill_done", "input_tokens": done["input_tokens"]}
    assert chunks
    assert all(sorted(chunk) == ["audio_data", "text_delta", "type"] for chunk in chunks)
    assert "".join(chunk["text_delta"] for chunk in chunks) == done["text"]
    assert {chunk["audio_data"] for chunk in chunks} == {None}
    assert sorted(done) == [
        "audio_data", "generated_tokens", "input_tokens", "recording_session_id", "text", "type",
    ]  # fmt: skip
    assert (done["type"], done["generated_tokens"], done["audio_data"]) == ("done", 12, None)
    assert ask(daemon, streaming=False) == ([prefill, done], 1000)


def test_the_model_is_told_the_whole_conversation(daemon: Daemon):
    turns = [
        {"role": "system", "content": [{"type": "text", "text": "You are"}, {"type": "text", "text": "a parrot."}]},
        {"role": "user", "content": "Hello!"},
        {"role": "assistant", "content": "Hello!"},
        {"role": "user", "content": "Bye!"},
    ]
    (short, *_), _ = ask(daemon, messages=turns[1:2], streaming=False)
    (long, *_), _ = ask(daemon, messages=turns, streaming=False)
    assert long["input_tokens"] > short["input_tokens"]


def test_a_length_penalty_puts_off_the_end(daemon: Daemon):
    turns = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]
    lengths = [
        ask(daemon, messages=turns, generation={"max_new_tokens": 64, "temperature": 0, "length_penalty": penalty})[0][
            -1
        ]["generated_tokens"]
        for penalty in (0.1, 1.0, 10.0)
    ]
    assert lengths[0] < lengths[1] <= lengths[2] == 64


@with_voice
def test_the_contracts_own_client(daemon: Daemon):
    printed, audio = asyncio.run(chat_streaming(f"ws://{daemon.http}/ws/chat"))
    assert printed[0].startswith("Prefill done, ")
    assert printed[-2].removeprefix("Final: ") == printed[-3].removeprefix("Streaming: ") != ""
    assert printed[-1].startswith("Tokens: ")
    pcm = np.frombuffer(b"".join(audio), dtype=np.float32)
    assert 0.3 < len(pcm) / 24000 < 60
    assert 0.01 < float(np.abs(pcm).max()) <= 1


@with_voice
def test_speech_in_one_piece_is_that_of_the_stream(daemon: Daemon):
    before = daemon.wait_until_quiet()["speech_seconds_total"]
    (_, *chunks, done), _ = ask(daemon, tts={"language": "en-GB"})
    parts = [samples_of(chunk["audio_data"]) for chunk in chunks if chunk["audio_data"] is not None]
    assert parts
    assert all(chunk["text_delta"] == "" for chunk in chunks if chunk["audio_data"] is not None)
    assert done["audio_data"] is None
    (_, whole), _ = ask(daemon, tts={}, streaming=False)
    assert whole["text"] == done["text"]
    assert np.array_equal(samples_of(whole["audio_data"]), np.concatenate(parts))
    after = daemon.metrics()
    assert after["spoken_answers"] == 0
    heard_s = 2 * sum(map(len, parts)) / 24_000
    assert after["speech_seconds_total"] - before == pytest.approx(heard_s, abs=0.01)


@with_voice
@pytest.mark.parametrize(
    "tts", [{"mode": "voice_cloning"}, {"mode": "audio_roleplay", "ref_audio_data": "AA"}, {"language": "zh"}]
)
def test_speech_that_the_voice_cannot_give_is_refused_before_anything_is_computed(daemon: Daemon, tts: Message):
    before = daemon.wait_until_quiet()["prompt_tokens_total"]
    assert failure(daemon, tts=tts).startswith("tts.")
    assert daemon.metrics()["prompt_tokens_total"] == before


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"messages": []}, "messages: expected an array of 1 to 1024 messages, got 0"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "data": "AAAA"}]}]},
            "messages[0].content[0].data: the daemon's model takes no images: load its projector with --mmproj",
        ),
        (
            {"generation": {"max_new_tokens": 0}},
            "generation.max_new_tokens: expected a whole number from 1, got 0",
        ),
        (
            {"messages": [{"role": "user", "content": "x" * 300_000}]},
            "messages: expected at most 262144 bytes, got 300000",
        ),
    ],
)
def test_what_is_wrong_is_told_before_the_connection_ends(daemon: Daemon, body: Message, error: str):
    assert failure(daemon, **body) == error


def test_a_message_may_be_larger_than_a_frame_elsewhere(daemon: Daemon):
    messages, code = ask(daemon, padding="x" * (3 << 20))
    assert (messages[-1]["type"], code) == ("done", 1000)


def test_a_message_over_the_cap_is_refused_by_its_header(own_daemon):
    daemon = own_daemon("--http", "127.0.0.1:0", "--max-chat-bytes", "1000")
    (error,), code = ask(daemon, padding="x" * 1000)
    assert (error["error"].startswith("message: expected at most 1000 bytes, got 1"), code) == (True, 1009)


def test_a_client_that_leaves_ends_its_answer(daemon: Daemon):
    with open_chat(daemon) as client:
        client.send(json.dumps({"messages": HELLO, "generation": {"max_new_tokens": 512, "length_penalty": 10}}))
        assert json.loads(client.recv(ANSWER_S))["type"] == "prefill_done"
    daemon.wait_until_quiet()


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    yield from serving(tmp_path_factory, "--parallel", "1")


def test_who_waits_is_told_so_in_a_queue_of_one_place(narrow: Daemon):
    with open_chat(narrow) as first, open_chat(narrow) as second:
        long = {"max_new_tokens": 512, "length_penalty": 10, "temperature": 0}
        first.send(json.dumps({"messages": HELLO, "generation": long}))
        assert json.loads(first.recv(ANSWER_S))["type"] == "prefill_done"
        second.send(json.dumps({"messages": HELLO, "generation": GREEDY}))
        queued = json.loads(second.recv(ANSWER_S))
        assert (queued["type"], queued["position"], queued["queue_length"]) == ("queued", 1, 1)
        assert queued["ticket_id"].startswith("chat_")
        assert sorted(queued) == ["estimated_wait_s", "position", "queue_length", "ticket_id", "type"]
        first.close()
        messages, code = rest(second)
    types = [message["type"] for message in messages if message["type"] != "queue_update"]
    assert types[:2] == ["queue_done", "prefill_done"]
    assert set(types[2:-1]) == {"chunk"}
    assert (types[-1], code) == ("done", 1000)


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Daemon, str]]:
    path = tmp_path_factory.mktemp("keys") / "keys.json"
    key = KeyFile(str(path), missing_ok=True).add("alice")
    for daemon in serving(tmp_path_factory, "--api-keys", str(path)):
        yield daemon, key


@pytest.mark.parametrize("place", ["header", "subprotocol", "message"])
def test_a_key_comes_with_the_handshake_or_in_the_message(keyed: tuple[Daemon, str], place: str):
    daemon, key = keyed
    options: Message = {}
    if place == "header":
        options = {"additional_headers": {"Authorization": f"Bearer {key}"}}
    elif place == "subprotocol":
        options = {"subprotocols": ["umaserve", f"bearer.{key}"]}
    auth = {"auth": key} if place == "message" else {}
    with open_chat(daemon, **options) as client:
        client.send(json.dumps({"messages": HELLO, "generation": GREEDY, **auth}))
        messages, code = rest(client)
    assert (messages[-1]["type"], code) == ("done", 1000)


def test_who_has_no_key_is_sent_away_and_may_not_send_much(keyed: tuple[Daemon, str]):
    daemon, _key = keyed
    assert failure(daemon).startswith("auth: expected a valid key in the first message")
    (error,), code = ask(daemon, padding="x" * (2 << 20))
    assert (error["error"].startswith("message: expected at most 1048576 bytes, got 2"), code) == (True, 1009)


@with_voice
def test_a_daemon_that_ends_speaks_to_the_end(own_daemon):
    daemon = own_daemon("--http", "127.0.0.1:0", "--drain-timeout", "60")
    with open_chat(daemon) as client:
        story = [{"role": "user", "content": "Tell me a story of a fox and a crow."}]
        client.send(json.dumps({"messages": story, "generation": {"max_new_tokens": 60}, "tts": {}}))
        assert json.loads(client.recv(ANSWER_S))["type"] == "prefill_done"
        daemon.process.terminate()
        messages, code = rest(client)
    assert (messages[-1]["type"], code) == ("done", 1000)
    assert any(message.get("audio_data") for message in messages)
    assert daemon.process.wait(ANSWER_S) == 0
