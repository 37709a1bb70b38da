"""OpenAI's Realtime API by OpenAI's unmodified client, on the real daemon."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from daemon import ANSWER_S, CHAT_FAR_FROM_A_TIE, Daemon
from openai.resources.realtime.realtime import RealtimeConnection
from realtime_talk import TEXT, TOOL, said, say, until_done
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from umaserve.access.keys import KeyFile


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The file of keys, and one of them."""
    path = str(tmp_path_factory.mktemp("keys") / "keys.json")
    return path, KeyFile(path, missing_ok=True).add("mine")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, keys: tuple[str, str]) -> Iterator[Daemon]:
    flags = ("--http", "127.0.0.1:0", "--n-ctx", "2048", "--api-keys", keys[0], "--no-speculation")
    daemon = Daemon(tmp_path_factory.mktemp("daemon"), *flags, env={"UMA_THREADS": "1"})
    yield daemon
    assert daemon.stop() == 0, daemon.logs
    assert "Traceback" not in daemon.logs, daemon.logs


@pytest.fixture
def client(daemon: Daemon, keys: tuple[str, str]) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"http://{daemon.http}/v1", api_key=keys[1], max_retries=0) as client:
        yield client


@pytest.fixture
def talk(client: openai.OpenAI) -> Iterator[RealtimeConnection]:
    with client.realtime.connect(model="default") as talk:
        assert talk.recv().type == "session.created"
        talk.session.update(session=TEXT)  # type: ignore[arg-type]
        assert talk.recv().type == "session.updated"
        yield talk


def test_it_answers_as_the_chat_api_and_reuses_the_conversation(
    client: openai.OpenAI, talk: RealtimeConnection
) -> None:
    for message in CHAT_FAR_FROM_A_TIE:
        say(talk, message["content"], message["role"])
    talk.response.create(response={"max_output_tokens": 12})
    *events, done = until_done(talk)
    assert done.type == "response.done"
    chat = client.chat.completions.create(
        model="default",
        messages=CHAT_FAR_FROM_A_TIE,  # type: ignore[arg-type]
        temperature=0,
        max_tokens=12,
    )
    text = said(done.response)
    assert text == chat.choices[0].message.content
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == text
    assert (done.response.status, done.response.usage.output_tokens) == ("incomplete", 12)
    # The next turn computes only what is new: the template's words between, and the text.
    say(talk, "Go on.")
    talk.response.create(response={"max_output_tokens": 1})
    usage = until_done(talk)[-1].response.usage
    assert usage.input_token_details.cached_tokens >= done.response.usage.total_tokens - 2
    assert usage.input_tokens - usage.input_token_details.cached_tokens < 20


def test_it_calls_tools(talk: RealtimeConnection) -> None:
    say(talk, "What is the weather in Paris?")
    talk.response.create(response={"tools": [TOOL], "tool_choice": "required"})  # type: ignore[typeddict-item,list-item]
    *_, done = until_done(talk)
    (call,) = done.response.output
    assert (call.type, call.name) == ("function_call", "get_weather")
    assert json.loads(call.arguments)["city"] in ("Paris", "Rome")
    output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "Sunny, 20 degrees."}
    talk.conversation.item.create(item=output)
    assert [talk.recv().type, talk.recv().type] == ["conversation.item.added", "conversation.item.done"]
    talk.response.create(response={"max_output_tokens": 8})
    assert said(until_done(talk)[-1].response)


def test_a_cancelled_response_ends_at_once_and_others_go_on(talk: RealtimeConnection, daemon: Daemon) -> None:
    say(talk, "Count from 1 to 1000.")
    talk.response.create()
    beside: Any = {"conversation": "none", "max_output_tokens": 3, "metadata": {"beside": "yes"}}
    talk.response.create(response=beside)
    while talk.recv().type != "response.output_text.delta":
        pass
    talk.response.cancel()
    ended: list[Any] = []
    while len(ended) < 2:
        event = talk.recv()
        if event.type == "response.done":
            ended.append(event.response)
    assert {response.status for response in ended} == {"cancelled", "incomplete"}
    daemon.wait_until_quiet()


def test_a_client_that_leaves_ends_its_response(client: openai.OpenAI, daemon: Daemon) -> None:
    with client.realtime.connect(model="default") as talk:
        talk.session.update(session=TEXT)  # type: ignore[arg-type]
        item: Any = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Count to 1000."}]}
        talk.conversation.item.create(item=item)
        talk.response.create()
        while talk.recv().type != "response.output_text.delta":
            pass
    daemon.wait_until_quiet()


def test_keys_and_client_secrets(client: openai.OpenAI, daemon: Daemon, keys: tuple[str, str]) -> None:
    url = f"ws://{daemon.http}/v1/realtime"
    with pytest.raises(InvalidStatus, match="401"):
        connect(url)
    with pytest.raises(InvalidStatus, match="401"):
        connect(url, additional_headers={"Authorization": "Bearer ek_unknown"})
    made = client.realtime.client_secrets.create(session={"type": "realtime", "instructions": "Be brief."})
    assert made.session.type == "realtime"
    for key, instructions in ((keys[1], ""), (made.value, "Be brief.")):
        protocols: Any = ["realtime", f"openai-insecure-api-key.{key}"]
        with connect(url, subprotocols=protocols) as browser:
            assert browser.subprotocol == "realtime"
            created = json.loads(browser.recv(ANSWER_S))
            assert created["session"]["instructions"] == instructions
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key=made.value).models.list()


PIECES = (
    *("session.update", "conversation.item.create", "conversation.item.retrieve", "conversation.item.delete"),
    *("response.create", "response.cancel", "", "nothing", "session.created", "input_audio_buffer.append"),
    *(
        "input_audio_buffer.commit",
        "input_audio_buffer.clear",
        "output_audio_buffer.clear",
        "conversation.item.truncate",
    ),
)
FIELDS = ("session", "item", "item_id", "response", "response_id", "audio", "event_id", "previous_item_id", "type")
VALUES: tuple[Any, ...] = (
    *(None, True, -1, 2**70, 1e300, "", "x", "root", "𝄞" * 100, [], {}, [[]], {"type": "message", "role": "user"}),
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
    {"type": "message", "role": "user", "content": [{"type": "input_audio", "audio": "AAAA"}]},
    {"type": "function_call", "name": "f", "arguments": "{"},
    {"type": "function_call_output", "call_id": "c", "output": ""},
    {"max_output_tokens": 1, "conversation": "none", "input": []},
    {"max_output_tokens": 1, "instructions": "Hi", "output_modalities": ["text"]},
    {"audio": {"input": {"turn_detection": {"type": "server_vad", "threshold": 2}}}},
    {"tools": [TOOL], "tool_choice": {"type": "function", "name": "g"}},
)


@pytest.mark.parametrize("seed", range(4))
def test_whatever_comes_is_answered(daemon: Daemon, keys: tuple[str, str], seed: int) -> None:
    drawn = random.Random(seed)
    headers = {"Authorization": f"Bearer {keys[1]}"}
    with connect(f"ws://{daemon.http}/v1/realtime", additional_headers=headers, max_size=None) as talk:
        for _ in range(150):
            event: dict[str, Any] = {"type": drawn.choice(PIECES)}
            event |= {drawn.choice(FIELDS): drawn.choice(VALUES) for _ in range(drawn.randrange(4))}
            whole = json.dumps(event)
            if drawn.random() < 0.1:
                whole = whole[: drawn.randrange(len(whole))]
            talk.send(whole)
        talk.send(json.dumps({"type": "conversation.item.retrieve", "item_id": "none", "event_id": "last"}))
        event = {}
        while event.get("type") != "error" or event["error"]["event_id"] != "last":
            event = json.loads(talk.recv(ANSWER_S))
    daemon.wait_until_quiet()


def test_an_event_that_is_too_large_ends_the_session(daemon: Daemon, keys: tuple[str, str]) -> None:
    headers = {"Authorization": f"Bearer {keys[1]}"}
    with connect(f"ws://{daemon.http}/v1/realtime", additional_headers=headers) as talk:
        talk.recv(ANSWER_S)
        talk.send("a" * (4 * 2**20 + 1))
        assert json.loads(talk.recv(ANSWER_S))["error"]["code"] == "request_too_large"
        with pytest.raises(ConnectionClosed, match="1009"):
            talk.recv(ANSWER_S)
