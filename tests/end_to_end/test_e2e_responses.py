"""OpenAI's Responses API on the real daemon, by OpenAI's own Python client, which is given nothing but the address."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import openai
import pydantic
import pytest
from daemon import ANSWER_S, Daemon
from openai.resources.responses.responses import ResponsesConnection
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from umaserve.access.keys import KeyFile

COLOURS = "Name three colours."
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER: Any = {"type": "function", "name": "get_weather", "description": "The weather.", "parameters": CITY}
WORD: Any = {
    "type": "custom",
    "name": "say",
    "description": "Says a word.",
    "format": {"type": "grammar", "syntax": "regex", "definition": "(yes|no)!"},
}
LINES: Any = {
    "type": "custom",
    "name": "write",
    "description": "Writes lines.",
    "format": {
        "type": "grammar",
        "syntax": "lark",
        "definition": r"""start: first LF ("> " word "\\o/" LF)~1..2 "end"
first: "\"" word "\"" | "'" word "'"
word: "yes" | "no"
%import common.LF
""",
    },
}


@pytest.fixture(scope="module")
def client(daemon: Daemon):
    url = f"http://{daemon.http}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=ANSWER_S) as client:
        yield client


def create(client: openai.OpenAI, **wanted: Any):
    fields: dict[str, Any] = {"model": "any", "input": COLOURS, "max_output_tokens": 12, "temperature": 0}
    return client.responses.create(**fields | wanted)


def test_a_response(client: openai.OpenAI):
    response = create(client, instructions="Be brief.", metadata={"a": "b"})
    assert response.output_text
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert (response.usage.output_tokens, response.metadata) == (12, {"a": "b"})
    assert response.usage.input_tokens > 5


def test_a_prompts_tokens_are_counted_beforehand(client: openai.OpenAI):
    counted = client.responses.input_tokens.count(model="any", input=COLOURS, instructions="Be brief.")
    assert counted.input_tokens == create(client, instructions="Be brief.").usage.input_tokens


def test_a_stream_says_what_the_response_says(client: openai.OpenAI):
    fields: Any = {"model": "any", "input": "Say a word.", "temperature": 0, "extra_body": {"regex": "yes|no"}}
    whole = client.responses.create(**fields)
    with client.responses.stream(**fields) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [events[0].type, events[-1].type] == ["response.created", "response.completed"]
    assert final.output_text == whole.output_text
    assert final.output_text in ("yes", "no")


def test_an_answer_of_a_type(client: openai.OpenAI):
    class Answer(pydantic.BaseModel):
        sure: bool

    response = client.responses.parse(model="any", input="Is the sky blue?", temperature=0, text_format=Answer)
    assert response.status == "completed"
    assert isinstance(response.output_parsed, Answer)


def test_a_tool_is_called_and_answered(client: openai.OpenAI):
    items: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
    fields: Any = {"tools": [WEATHER], "max_output_tokens": 60}
    with client.responses.stream(
        model="any", input=items, temperature=0, tool_choice="required", tools=[WEATHER]
    ) as stream:
        deltas = "".join(event.delta for event in stream if event.type == "response.function_call_arguments.delta")
        [call] = stream.get_final_response().output
    assert call.type == "function_call"
    assert (call.name, call.arguments) == ("get_weather", deltas)
    assert json.loads(call.arguments).keys() == {"city"}
    items += [call.to_dict(), {"type": "function_call_output", "call_id": call.call_id, "output": "Mild."}]
    assert create(client, input=items, **fields, tool_choice="none").output_text


def test_a_custom_tool_gets_a_text_that_its_expression_binds(client: openai.OpenAI):
    [call] = create(client, input="Say yes.", tools=[WORD], tool_choice="required", max_output_tokens=60).output
    assert (call.type, call.name) == ("custom_tool_call", "say")
    assert call.input in ("yes!", "no!")


def test_a_custom_tool_gets_a_text_of_its_grammar(client: openai.OpenAI):
    fields: Any = {"tools": [LINES], "tool_choice": "required", "max_output_tokens": 200}
    events = list(create(client, input="Write yes.", **fields, stream=True))
    deltas = [event.delta for event in events if event.type == "response.custom_tool_call_input.delta"]
    [call] = events[-1].response.output
    assert (call.type, call.name, call.input) == ("custom_tool_call", "write", "".join(deltas))
    assert re.fullmatch(r"""("(yes|no)"|'(yes|no)')\n(> (yes|no)\\o/\n){1,2}end""", call.input)


def test_a_grammar_that_cant_be_taken_is_refused(client: openai.OpenAI):
    wrong = {**LINES, "format": {**LINES["format"], "definition": 'start: "a" | %json {}'}}
    with pytest.raises(
        openai.BadRequestError, match=r"tools\[0\].format.definition: expected Lark .* line 1 goes wrong"
    ):
        create(client, tools=[wrong])


def test_a_response_follows_another_and_is_fetched_listed_and_deleted(client: openai.OpenAI):
    first = create(client, max_output_tokens=4)
    second = create(client, input="And a fourth?", previous_response_id=first.id, max_output_tokens=4)
    assert second.usage.input_tokens > first.usage.input_tokens + 4
    assert client.responses.retrieve(second.id).output_text == second.output_text
    items = list(client.responses.input_items.list(second.id, limit=2, order="asc"))
    assert [item.content[0].text for item in items] == [COLOURS, first.output_text, "And a fourth?"]
    client.responses.delete(second.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(second.id)


def test_a_response_in_the_background_goes_on_without_its_client(client: openai.OpenAI):
    asked = create(client, background=True)
    assert asked.status == "queued"
    deadline = time.monotonic() + ANSWER_S
    while (found := client.responses.retrieve(asked.id)).status in ("queued", "in_progress"):
        assert time.monotonic() < deadline
    assert (found.status, found.usage.output_tokens) == ("incomplete", 12)
    assert found.output_text == create(client).output_text


def test_a_response_in_the_background_is_cancelled(client: openai.OpenAI):
    asked = create(client, background=True, max_output_tokens=2000, extra_body={"ignore_eos": True})
    assert client.responses.cancel(asked.id).status == "cancelled"
    assert client.responses.retrieve(asked.id).status == "cancelled"


def test_another_keys_response_is_not_there(own_daemon, tmp_path):
    keys = KeyFile(str(tmp_path / "keys.json"), missing_ok=True)
    anns, bobs = keys.add("ann"), keys.add("bob")
    daemon = own_daemon("--http", "127.0.0.1:0", "--api-keys", str(tmp_path / "keys.json"))
    url = f"http://{daemon.http}/v1"
    with openai.OpenAI(base_url=url, api_key=anns) as ann, openai.OpenAI(base_url=url, api_key=bobs) as bob:
        response = create(ann, max_output_tokens=1)
        assert ann.responses.retrieve(response.id).id == response.id
        with pytest.raises(openai.NotFoundError):
            bob.responses.retrieve(response.id)
        with pytest.raises(openai.BadRequestError) as missing:
            create(bob, previous_response_id=response.id)
        assert missing.value.code == "previous_response_not_found"
        with bob.responses.connect() as socket:
            socket.response.create(input=COLOURS, previous_response_id=response.id)
            assert socket.recv().error.code == "previous_response_not_found"
    with pytest.raises(InvalidStatus, match="401"), connect(f"ws://{daemon.http}/v1/responses"):
        pass


def until_the_end(socket: ResponsesConnection) -> list[Any]:
    """The events up to the last one of a response."""
    events: list[Any] = []
    for event in socket:
        events.append(event)
        if event.type in ("response.completed", "response.incomplete", "response.failed", "error"):
            break
    return events


def test_a_websocket_answers_as_streams_do_and_remembers(client: openai.OpenAI):
    wanted: Any = {"model": "any", "max_output_tokens": 8, "temperature": 0, "store": False}
    with client.responses.connect() as socket:
        socket.response.create(input=COLOURS, **wanted)
        socket.response.create(input="Name a fruit.", stream_id="fruit", **wanted)
        first, fruit = until_the_end(socket), until_the_end(socket)
        streamed = [*create(client, stream=True, max_output_tokens=8)]
        assert [event.type for event in first] == [event.type for event in streamed]
        assert first[-1].response.output_text == streamed[-1].response.output_text
        assert {event.stream_id for event in fruit} == {"fruit"}
        socket.response.create(input="And two more?", previous_response_id=first[-1].response.id, **wanted)
        *_, followed = until_the_end(socket)
    whole = [*(item.model_dump() for item in first[-1].response.output), {"role": "user", "content": "And two more?"}]
    alone = create(client, input=[{"role": "user", "content": COLOURS}, *whole], max_output_tokens=8)
    assert followed.response.output_text == alone.output_text
    assert followed.response.usage.input_tokens == alone.usage.input_tokens


def test_a_prompt_is_computed_beforehand(client: openai.OpenAI):
    long = "Say what you know of the sea. " * 20
    with client.responses.connect() as socket:
        socket.response.create(input=[], instructions=long, generate=False, store=False)
        *_, warm = until_the_end(socket)
        assert (warm.response.status, warm.response.output) == ("completed", [])
        socket.response.create(
            input=COLOURS, instructions=long, previous_response_id=warm.response.id, max_output_tokens=2
        )
        *_, end = until_the_end(socket)
    assert end.response.usage.input_tokens_details.cached_tokens > 100


def test_who_leaves_its_websocket_ends_its_response(client: openai.OpenAI, daemon: Daemon):
    with client.responses.connect() as socket:
        asked = {"type": "response.create", "input": "Tell a story.", "max_output_tokens": 4000, "ignore_eos": True}
        socket.send_raw(json.dumps(asked))
        assert socket.recv().type == "response.created"
    daemon.wait_until_quiet()


def test_errors_are_openais(client: openai.OpenAI):
    with pytest.raises(openai.BadRequestError) as wrong:
        create(client, input=[{"role": "user", "content": 5}])
    assert wrong.value.param == "input[0].content"
    with pytest.raises(openai.BadRequestError) as long:
        create(client, input="word " * 20_000)
    assert long.value.code == "context_length_exceeded"


def test_the_models_are_listed_as_codex_wants_them(client: openai.OpenAI):
    assert client.models.list().model_extra["models"] == []
