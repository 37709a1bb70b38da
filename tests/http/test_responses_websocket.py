"""OpenAI's WebSocket mode of the Responses API: responses one after another, and what each may follow."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from http_world import CONFIG, HttpWorld, last_words, post, upgraded
from openai.types.responses import ResponsesServerEvent
from openapi_document import DOCUMENT, check_answer, check_request
from pydantic import TypeAdapter
from routes import facts

from umaserve.core.errors import ContextExceeded, Fault, RequestError
from umaserve.core.events import FinishReason, Output, Prefilling, Started, Token
from umaserve.core.requests import ChatTurn
from umaserve.dialects.responses import websocket
from umaserve.dialects.responses.websocket import KEEPALIVE_S, ResponsesDialect
from umaserve.sessions.session import Session
from umaserve.wire.websocket import CloseCode

PATH = "/v1/responses"
THEIRS: TypeAdapter[Any] = TypeAdapter(ResponsesServerEvent)
DESCRIBED = DOCUMENT["paths"][PATH]["get"]["responses"]["101"]
ORDER = [
    *("response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"),
    *("response.output_text.delta", "response.output_text.done", "response.content_part.done"),
    *("response.output_item.done", "response.completed"),
]

Message = dict[str, Any]


class SocketWorld(HttpWorld):
    """One client with its WebSocket."""

    def __init__(self) -> None:
        super().__init__()
        self.codec = upgraded(self, PATH)

    def write(self, payload: bytes) -> None:
        self.send(self.codec.send(payload))

    def create(self, text: str | None = "hi", **wanted: Any) -> None:
        given = {"type": "response.create", "input": text, **wanted}
        self.write(json.dumps({key: value for key, value in given.items() if value is not None}).encode())

    def messages(self) -> list[Message]:
        """What came, each as OpenAI's own client and our document have it."""
        *told, code = last_words(self, self.codec)
        assert code is None
        for one in told:
            THEIRS.validate_python(one)
            check_answer(one, DESCRIBED["x-server-message"])
        return told

    @property
    def session(self) -> Session:
        (session,) = self.sessions.running()
        return session

    def put(self, *outputs: Output) -> None:
        for output in outputs:
            self.sessions.put(self.session, output)
        self.deliver()

    def answer(self, *texts: str) -> list[Message]:
        self.put(Started(), *(Token(text, 1) for text in texts))
        self.sessions.finish(self.session, FinishReason.STOP)
        self.deliver()
        return self.messages()

    def fail(self, error: RequestError) -> list[Message]:
        self.sessions.fail(self.session, error)
        self.deliver()
        return self.messages()

    def prompt(self) -> list[tuple[str, str]]:
        """Role and text of each turn."""
        turns = self.session.request.prompt
        assert isinstance(turns, tuple)
        return [(turn.role, turn.content) for turn in turns if isinstance(turn, ChatTurn)]


@pytest.fixture
def world(caplog: pytest.LogCaptureFixture) -> Iterator[SocketWorld]:
    world = SocketWorld()
    yield world
    world.close()
    assert "Traceback" not in caplog.text


def id_of(told: list[Message]) -> str:
    response_id: str = told[-1]["response"]["id"]
    return response_id


def code(told: list[Message]) -> str:
    """The code of the error that is all that came."""
    (error,) = told
    assert error["type"] == "error"
    assert error["status"] in (400, 413)
    code: str = error["error"]["code"]
    return code


def test_a_response_comes_as_the_events_of_a_stream_one_message_each(world: SocketWorld) -> None:
    world.create(instructions="Be brief.")
    told = world.answer("Hello")
    assert [one["type"] for one in told] == ORDER
    assert [one["sequence_number"] for one in told] == [*range(9)]
    assert told[-1]["response"]["output"][0]["content"][0]["text"] == "Hello"
    world.connection.channel.abort()

    world.client, world.connection = world.join()
    world.send(post(PATH, {"input": "hi", "instructions": "Be brief.", "stream": True}))
    world.put(Started(), Token("Hello", 1))
    world.sessions.finish(world.session, FinishReason.STOP)
    world.deliver()
    events = [json.loads(line[6:]) for line in world.received().decode().splitlines() if line.startswith("data: ")]
    assert [event["type"] for event in events] == ORDER
    assert [event.keys() for event in events] == [one.keys() for one in told]


def test_responses_follow_one_another_in_the_order_of_their_messages(world: SocketWorld) -> None:
    for text in ("a", "b", "c"):
        world.create(text)
    for text in ("a", "b", "c"):
        assert world.prompt() == [("user", text)]
        assert world.answer(text.upper())[-1]["response"]["output"][0]["content"][0]["text"] == text.upper()
    assert not [*world.sessions.running()]


def test_a_response_that_is_not_stored_is_followed_on_its_connection(world: SocketWorld) -> None:
    world.create("a", store=False)
    first = world.answer("A")
    assert first[-1]["response"]["store"] is False
    world.create("b", store=False, previous_response_id=id_of(first))
    assert world.prompt() == [("user", "a"), ("assistant", "A"), ("user", "b")]
    second = world.answer("B")
    world.create("c", previous_response_id=id_of(second))
    assert world.prompt()[-2:] == [("assistant", "B"), ("user", "c")]
    stored = world.answer("C")
    world.connection.channel.abort()

    world.client, world.connection = world.join()
    world.codec = upgraded(world, PATH)
    world.create("d", previous_response_id=id_of(second))
    assert code(world.messages()) == "previous_response_not_found"
    world.create("d", previous_response_id=id_of(stored))
    assert world.prompt()[-2:] == [("assistant", "C"), ("user", "d")]


def test_what_a_failed_message_wanted_to_follow_is_forgotten(world: SocketWorld) -> None:
    for failing in ("refused", "failed"):
        world.create("a", store=False)
        previous = id_of(world.answer("A"))
        if failing == "refused":
            output = {"type": "function_call_output", "call_id": "none", "output": "x"}
            world.create(None, input=[output], previous_response_id=previous)
            assert code(world.messages()) == "invalid_request_error"
        else:
            world.create("b", previous_response_id=previous)
            assert code(world.fail(ContextExceeded(9, 8))) == "context_length_exceeded"
        world.create("c", previous_response_id=previous)
        assert code(world.messages()) == "previous_response_not_found"
    world.create("d")
    assert [one["type"] for one in world.answer("D")] == ORDER


def test_a_response_that_fails_late_ends_with_an_event_and_the_next_one_begins(world: SocketWorld) -> None:
    world.create("a")
    world.create("b")
    world.put(Started(), Token("A", 1))
    told = world.fail(RequestError(Fault.DECODE_FAILED, "request", "broken"))
    assert (told[-1]["type"], told[-1]["response"]["error"]["code"]) == ("response.failed", "server_error")
    assert world.prompt() == [("user", "b")]


def test_each_event_has_the_name_that_the_client_gave_the_stream(world: SocketWorld) -> None:
    world.create("a", stream_id="agent-1.b_C")
    assert {one["stream_id"] for one in world.answer("A")} == {"agent-1.b_C"}
    world.create("b", stream_id="main", temperature="hot")
    (error,) = world.messages()
    assert (error["stream_id"], error["error"]["param"]) == ("main", "temperature")
    world.create("c")
    assert all("stream_id" not in one for one in world.answer("C"))


def test_a_prompt_is_computed_beforehand(world: SocketWorld) -> None:
    world.create("a", generate=False, store=False)
    assert world.session.request.max_tokens == 1
    (*_, done) = told = world.answer("x")
    assert [one["type"] for one in told] == [ORDER[0], ORDER[1], ORDER[-1]]
    assert (done["response"]["output"], done["response"]["usage"]["output_tokens"]) == ([], 0)
    world.create("b", previous_response_id=id_of(told))
    assert world.prompt() == [("user", "a"), ("user", "b")]
    world.answer("B")
    for wanted in ({"input": []}, {}):
        world.create(None, generate=False, instructions="Be brief.", **wanted)
        assert world.prompt() == [("system", "Be brief.")]
        world.answer("x")
        world.create(None, generate=False, **wanted)
        (error,) = world.messages()
        assert error["error"]["message"].startswith("input: expected instructions or an item where generate is false")


def test_a_long_prompt_is_no_silence() -> None:
    now = [0.0]
    dialect = ResponsesDialect(replace(facts(), clock=lambda: now[0]))
    assert dialect.receive(b'{"type":"response.create","input":"a"}').wants_progress
    told = []
    for at in (0, KEEPALIVE_S - 1, KEEPALIVE_S, KEEPALIVE_S + 1, 2 * KEEPALIVE_S):
        now[0] = at
        reply = dialect.send(Prefilling(9, 0, 3, 1.0))
        told.append([] if reply is None else [json.loads(each)["type"] for each in (*reply.before, reply.payload)])
    assert told == [[], [], [*ORDER[:2], "response.in_progress"], [], ["response.in_progress"]]


def test_pings_and_the_clients_goodbye_dont_wait_for_the_answer(world: SocketWorld) -> None:
    world.create("a")
    world.create("b")
    world.send(world.codec.ping(b"here?"))
    assert world.received() == b"\x8a\x05here?"
    session = world.session
    world.send(world.codec.close(CloseCode.NORMAL_CLOSURE))
    assert session.ended
    assert not [*world.sessions.running()]
    assert world.received().endswith(b"<closed>")


def test_a_flood_behind_an_answer_is_not_read(world: SocketWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("umaserve.daemon.http.websocket.READ_PER_TURN", 100)
    monkeypatch.setattr("umaserve.daemon.connection.READ_PER_TURN", 100)
    for number in range(30):
        world.create(f"message {number}")
    for number in range(30):
        assert world.prompt() == [("user", f"message {number}")]
        assert not world.connection.channel.handler.wants_data() or number > 25
        world.answer("x")


def test_what_is_too_large_for_the_connections_memory_is_not_followed(
    world: SocketWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket, "UNSTORED_BYTES", 6000)
    world.connection.channel.abort()
    world.client, world.connection = world.join()
    world.codec = upgraded(world, PATH)
    ids = []
    for _ in range(2):
        world.create("a" * 900, store=False)
        ids.append(id_of(world.answer("A")))
    for response_id, found in zip(ids, (False, True), strict=True):
        world.create("b", previous_response_id=response_id)
        if found:
            world.answer("B")
        else:
            assert code(world.messages()) == "previous_response_not_found"


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (b"[]", "payload: expected an object"),
        (b"{", "payload: not valid JSON"),
        (b"{}", 'type: expected "response.create"'),
        (b'{"type":"response.cancel"}', 'type: expected "response.create"'),
        (b'{"type":"response.create"}', "input: expected"),
        (b'{"type":"response.create","input":"a","background":true}', "background: expected false on a WebSocket"),
        (b'{"type":"response.create","input":"a","stream_id":""}', "stream_id: expected 1 to 256 letters"),
        (b'{"type":"response.create","input":"a","stream_id":5}', "stream_id: expected 1 to 256 letters"),
        (b'{"type":"response.create","input":"a","generate":1}', "generate: expected"),
        (b'{"type":"response.create","input":"a","previous_response_id":7}', "previous_response_id: expected"),
    ],
)
def test_messages_that_are_refused_end_nothing(world: SocketWorld, payload: bytes, message: str) -> None:
    world.write(payload)
    (error,) = world.messages()
    assert message in error["error"]["message"]
    world.create("b")
    assert [one["type"] for one in world.answer("B")] == ORDER


def test_messages_are_as_described(world: SocketWorld) -> None:
    for wanted in ({"stream_id": "a", "generate": False, "store": False}, {"previous_response_id": None}):
        check_request({"type": "response.create", "input": "hi", **wanted}, DESCRIBED["x-client-message"])
        world.create(**wanted)
        world.answer("A")


def test_the_handshakes_model_is_that_of_messages_without_one(world: SocketWorld) -> None:
    world.connection.channel.abort()
    world.client, world.connection = world.join()
    world.codec = upgraded(world, f"{PATH}?model=b")
    for named, model in (({}, "b"), ({"model": "default"}, "b"), ({"model": "a"}, "a")):
        world.create(**named)
        assert world.session.request.model == model
        world.answer("A")


def test_a_message_that_is_too_large_is_explained_and_ends_the_connection(world: SocketWorld) -> None:
    world.create("a" * (CONFIG.max_chat_bytes + 1))
    error, closed = last_words(world, world.codec)
    assert (error["status"], error["error"]["code"], closed) == (413, "request_too_large", CloseCode.MESSAGE_TOO_BIG)
