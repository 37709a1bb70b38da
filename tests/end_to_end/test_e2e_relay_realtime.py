"""OpenAI's Realtime API through a real relay: OpenAI's unmodified client, and a real daemon as the worker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from daemon import ANSWER_S, CHAT_FAR_FROM_A_TIE, Daemon
from openai.resources.realtime.realtime import RealtimeConnection
from realtime_talk import TEXT, TOOL, said, say, until_done
from relays import Relay, box
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

ADMIN = {"Authorization": "Bearer a-token-of-the-tests"}


class Keyed(Relay):
    """A relay that asks its clients for keys."""

    def __init__(self, directory: Path) -> None:
        (directory / "token").write_text("a-token-of-the-tests")
        (directory / "token").chmod(0o600)
        keys = ("--client-keys", str(directory / "keys.json"), "--admin-token-file", str(directory / "token"))
        super().__init__(directory, *keys)

    def key(self, name: str, **terms: Any) -> str:
        made: str = httpx.post(f"{self.url}/admin/keys", json={"name": name, **terms}, headers=ADMIN).json()["key"]
        return made

    def used(self, name: str) -> dict[str, int]:
        keys = httpx.get(f"{self.url}/admin/keys", headers=ADMIN).json()["keys"]
        return next(key["used"] for key in keys if key["name"] == name)

    @contextmanager
    def session(self, key: str) -> Iterator[RealtimeConnection]:
        with (
            openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0) as client,
            client.realtime.connect(model="default") as talk,
        ):
            assert talk.recv().type == "session.created"
            talk.session.update(session=TEXT)  # type: ignore[arg-type]
            assert talk.recv().type == "session.updated"
            yield talk


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Keyed, Daemon]]:
    directory = tmp_path_factory.mktemp("relay")
    relay = Keyed(directory)
    flags = ("--http", "127.0.0.1:0", "--n-ctx", "2048", "--no-speculation")
    daemon = box(directory / "box", relay, flags=flags)
    relay.wait_for_workers(1)
    yield relay, daemon
    assert daemon.stop() == 0, daemon.logs
    assert relay.stop() == 0, relay.logs
    assert "Traceback" not in daemon.logs + relay.logs, daemon.logs + relay.logs


@pytest.fixture(scope="module")
def key(pair: tuple[Keyed, Daemon]) -> str:
    return pair[0].key("mine")


@pytest.fixture
def talk(pair: tuple[Keyed, Daemon], key: str) -> Iterator[RealtimeConnection]:
    with pair[0].session(key) as talk:
        yield talk


def test_a_conversation_is_the_daemons_and_is_reused(pair: tuple[Keyed, Daemon], talk: RealtimeConnection) -> None:
    relay, daemon = pair
    before = relay.used("mine")
    for message in CHAT_FAR_FROM_A_TIE:
        say(talk, message["content"], message["role"])
    talk.response.create(response={"max_output_tokens": 12})
    done = until_done(talk)[-1]
    direct = openai.OpenAI(base_url=f"http://{daemon.http}/v1", api_key="none").chat.completions.create(
        model="default",
        messages=CHAT_FAR_FROM_A_TIE,  # type: ignore[arg-type]
        temperature=0,
        max_tokens=12,
    )
    assert said(done.response) == direct.choices[0].message.content
    say(talk, "Go on.")
    talk.response.create(response={"max_output_tokens": 1})
    usage = until_done(talk)[-1].response.usage
    assert usage.input_token_details.cached_tokens >= done.response.usage.total_tokens - 2
    used = {name: count - before[name] for name, count in relay.used("mine").items()}
    prompt_tokens = done.response.usage.input_tokens + usage.input_tokens
    assert used == {
        "requests_total": 2,
        "refused_total": 0,
        "prompt_tokens_total": prompt_tokens,
        "generated_tokens_total": 13,
    }


def test_it_calls_tools(talk: RealtimeConnection) -> None:
    say(talk, "What is the weather in Paris?")
    talk.response.create(response={"tools": [TOOL], "tool_choice": "required"})  # type: ignore[typeddict-item,list-item]
    (call,) = until_done(talk)[-1].response.output
    assert (call.type, call.name) == ("function_call", "get_weather")
    output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "Sunny, 20 degrees."}
    talk.conversation.item.create(item=output)
    assert [talk.recv().type, talk.recv().type] == ["conversation.item.added", "conversation.item.done"]
    talk.response.create(response={"max_output_tokens": 8})
    assert said(until_done(talk)[-1].response)


def begin_to_count(talk: RealtimeConnection) -> None:
    say(talk, "Count from 1 to 1000.")
    talk.response.create()
    while talk.recv().type != "response.output_text.delta":
        pass


def test_a_cancelled_response_ends_and_the_session_goes_on(
    pair: tuple[Keyed, Daemon], talk: RealtimeConnection
) -> None:
    begin_to_count(talk)
    talk.response.cancel()
    assert until_done(talk)[-1].response.status == "cancelled"
    pair[1].wait_until_quiet()
    talk.response.create(response={"max_output_tokens": 2})
    assert until_done(talk)[-1].response.usage.output_tokens == 2


def test_a_client_that_leaves_ends_its_response(pair: tuple[Keyed, Daemon], key: str) -> None:
    with pair[0].session(key) as talk:
        begin_to_count(talk)
    pair[1].wait_until_quiet()


def test_clients_of_two_keys_talk_at_once(pair: tuple[Keyed, Daemon]) -> None:
    relay, daemon = pair
    keys = [relay.key("ann"), relay.key("bob", **{"class": "background", "models": [daemon.metrics()["model"]]})]
    with ExitStack() as stack:
        talks = [stack.enter_context(relay.session(key)) for key in keys]
        for talk, city in zip(talks, ("Paris", "Rome"), strict=True):
            say(talk, f"Say {city}.")
            talk.response.create(response={"max_output_tokens": 16})
        for talk, city in zip(talks, ("Paris", "Rome"), strict=True):
            assert city in said(until_done(talk)[-1].response)
    assert relay.used("ann")["requests_total"] == relay.used("bob")["requests_total"] == 2


def test_a_browser_offers_its_key_as_a_subprotocol(pair: tuple[Keyed, Daemon], key: str) -> None:
    url = f"ws://{pair[0].address}/v1/realtime"
    for offered in ("realtime", "openai-insecure-api-key.unknown"):
        with pytest.raises(InvalidStatus, match="401"):
            connect(url, subprotocols=[offered])  # type: ignore[list-item]
    protocols: Any = ["realtime", f"openai-insecure-api-key.{key}"]
    with connect(url, subprotocols=protocols) as browser:
        assert browser.subprotocol == "realtime"
        assert json.loads(browser.recv(ANSWER_S))["session"]["model"] == pair[1].metrics()["model"]


def test_a_worker_that_dies_ends_its_session(tmp_path: Path) -> None:
    relay = Keyed(tmp_path)
    boxes = [box(tmp_path / name, relay) for name in ("one", "two")]
    relay.wait_for_workers(2)
    key = relay.key("mine")
    with relay.session(key) as talk:
        begin_to_count(talk)
        boxes.sort(key=lambda one: one.metrics()["active_sessions"])
        boxes.pop().process.kill()
        error = until_done(talk)[-1].error
        assert error.message == "the worker disconnected after it had begun to answer"
        with pytest.raises(ConnectionClosed, match="1011"):
            talk.recv()
    # What was said lay there; a new session has the other one.
    with relay.session(key) as talk:
        talk.response.create(response={"instructions": "Say hello.", "max_output_tokens": 2})
        assert until_done(talk)[-1].response.usage.output_tokens == 2
        # A session that waits for its client keeps no worker from leaving.
        assert boxes[0].stop() == 0, boxes[0].logs
        assert until_done(talk)[-1].error.code == "shutting_down"
        with pytest.raises(ConnectionClosed, match="1000"):
            talk.recv()
    assert relay.stop() == 0, relay.logs
    assert "Traceback" not in relay.logs, relay.logs
