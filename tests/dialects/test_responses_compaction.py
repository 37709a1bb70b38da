"""OpenAI's ``POST /v1/responses/compact``: what the model is asked, what is left, and how it is read back."""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from openai.types.responses import ResponseItem
from openai.types.responses.compacted_response import CompactedResponse
from openai.types.responses.response_compaction_item import ResponseCompactionItem
from openai.types.responses.response_usage import ResponseUsage
from pydantic import TypeAdapter
from routes import facts

from tests.support.routes import MODEL_INFO
from umaserve.core.errors import Fault, RequestError
from umaserve.core.events import Finished, FinishReason, Placed, Started, Token, Usage
from umaserve.core.requests import Attachment, ChatTurn, Generate, Image
from umaserve.dialects.facts import Facts
from umaserve.dialects.parameters import RequestLimits
from umaserve.dialects.responses.body import ResponseBody
from umaserve.dialects.responses.compaction import MAX_KEPT_BYTES, MAX_TOKENS, CompactionBody
from umaserve.dialects.responses.items import sealed
from umaserve.dialects.responses.kept import AllKept

MESSAGES: TypeAdapter[Any] = TypeAdapter(list[ResponseItem])
PNG = "data:image/png;base64,QUJD"
CONVERSATION = [
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": "a"},
    {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "1", "output": "b"},
    {"role": "assistant", "content": "c"},
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "d"}]},
]


def known(max_prompt_bytes: int = 100_000, **more: Any) -> Facts:
    numbers = itertools.count(1)
    return replace(
        facts(),
        limits=RequestLimits(max_prompt_bytes, **more),
        model=lambda _name: MODEL_INFO,
        new_id=lambda prefix: f"{prefix}{next(numbers)}",
        now=lambda: 5,
        kept=AllKept(lambda: 0.0).of("ann"),
    )


def request(about: Facts, **wanted: Any) -> Generate:
    [asked] = CompactionBody(about).receive(json.dumps(wanted).encode())
    return asked


def turns(asked: Generate) -> Sequence[ChatTurn]:
    assert isinstance(asked.prompt, tuple)
    return asked.prompt


def compacted(
    *said: str, reason: FinishReason = FinishReason.STOP, about: Facts | None = None, **wanted: Any
) -> dict[str, Any]:
    """The reply to a body, once the model has said this."""
    one = CompactionBody(about or known())
    one.receive(json.dumps({"input": "hi", **wanted}).encode())
    tokens = [Token("", 5, thoughts="hm", answer=""), *(Token(text, 5) for text in said)]
    for output in (Started(), Placed(), *tokens, Finished(reason, Usage(9, len(tokens), 4, 1))):
        assert one.send(0, output) == []
    assert one.done
    whole: dict[str, Any] = json.loads(one.result())
    return whole


def next_turns(items: Sequence[Any], about: Facts | None = None) -> Sequence[ChatTurn]:
    """The conversation for the model in a request of ``/v1/responses`` with these items."""
    [asked] = ResponseBody(about or known()).receive(json.dumps({"input": items}).encode())
    return turns(asked)


def test_the_model_is_asked_for_a_summary_after_the_conversation():
    asked = request(known(), input=CONVERSATION, instructions="You help.", model="any")
    *before, last = turns(asked)
    assert [(turn.role, turn.content) for turn in before] == [
        ("system", "You help.\n\nBe brief."),
        ("user", "a"),
        ("assistant", ""),
        ("tool", "b"),
        ("assistant", "c"),
    ]
    assert last.role == "user"
    assert last.content.startswith("d\n\nSummarize our conversation")
    assert (asked.model, asked.max_tokens, asked.tools, asked.enable_thinking) == ("any", MAX_TOKENS, (), False)
    assert request(known(max_tokens=7), input="a").max_tokens == 7


def test_what_is_left_is_the_users_messages_and_a_summary():
    whole = compacted("They ", "asked.\n", input=CONVERSATION)
    assert {key: whole[key] for key in ("id", "object", "created_at", "model")} == {
        "id": "resp_1",
        "object": "response.compaction",
        "created_at": 5,
        "model": MODEL_INFO.name,
    }
    *messages, compaction = whole["output"]
    MESSAGES.validate_python(messages)
    assert [(item["role"], item["content"]) for item in messages] == [
        ("user", [{"type": "input_text", "text": "a"}]),
        ("user", [{"type": "input_text", "text": "d"}]),
    ]
    assert len({item["id"] for item in messages}) == 2
    ResponseCompactionItem.model_validate(compaction, strict=True)
    assert base64.b64decode(compaction["encrypted_content"]) == b"umaserve:They asked."
    ResponseUsage.model_validate(whole["usage"], strict=True)
    assert (whole["usage"]["input_tokens"], whole["usage"]["output_tokens"]) == (9, 3)
    assert whole.keys() >= {name for name, told in CompactedResponse.model_fields.items() if told.is_required()}


def test_the_next_request_goes_on_with_what_is_left():
    output = compacted("They asked.", input=CONVERSATION)["output"]
    summary = "Summary of our conversation so far, whose other messages are left out:\n\nThey asked."
    assert next_turns(output) == (ChatTurn("user", f"a\n\nd\n\n{summary}"),)
    parts = [{"type": "input_text", "text": "e"}, {"type": "input_image", "image_url": PNG}]
    image = {"role": "user", "content": parts}
    [turn] = next_turns([*output, image])
    assert turn.content == f"a\n\nd\n\n{summary}\n\ne"
    assert turn.attachments == (Attachment(len(turn.content), Image("QUJD", "input[3].content[1].image_url")),)
    said = {"role": "assistant", "content": "f"}
    assert [turn.role for turn in next_turns([*output, said, image])] == ["user", "assistant", "user"]


def test_what_is_left_is_compacted_again():
    output = compacted("They asked.", input=CONVERSATION)["output"]
    [turn] = turns(request(known(), input=output))
    assert "They asked.\n\nSummarize our conversation" in turn.content
    again = compacted("New.", input=[*output, {"role": "user", "content": "e"}])["output"]
    assert [item["type"] for item in again] == ["message", "message", "message", "compaction"]
    assert [item["id"] for item in again[:2]] == [item["id"] for item in output[:2]]


def test_messages_without_a_compaction_stay_turns_of_their_own():
    items = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    assert next_turns(items) == (ChatTurn("user", "a"), ChatTurn("user", "b"))


def test_only_the_latest_messages_are_kept():
    long = "x" * (MAX_KEPT_BYTES // 2)
    items = [{"role": "user", "content": text} for text in ("old", long, long, "y" * MAX_KEPT_BYTES, "new")]
    *messages, _compaction = compacted("s", input=items)["output"]
    assert [item["content"][0]["text"] for item in messages] == ["old", long, "new"]
    assert sum(len(json.dumps(item, separators=(",", ":"))) for item in messages) <= MAX_KEPT_BYTES


def test_a_stored_response_is_compacted():
    about = known()
    one = ResponseBody(about)
    one.receive(b'{"input": "a"}')
    for output in (Token("b", 5), Finished(FinishReason.STOP, Usage(9, 1))):
        one.send(0, output)
    user, said, _ask = turns(request(about, previous_response_id="resp_1"))
    assert (user, said) == (ChatTurn("user", "a"), ChatTurn("assistant", "b"))
    _user, _said, ask = turns(request(about, previous_response_id="resp_1", input="c"))
    assert ask.content.startswith("c\n\nSummarize")
    [message, _compaction] = compacted("s", about=about, input=None, previous_response_id="resp_1")["output"]
    assert message["content"] == [{"type": "input_text", "text": "a"}]


@pytest.mark.parametrize(
    ("reason", "said", "fault", "message"),
    [
        (FinishReason.STOP, " \n", Fault.DECODE_FAILED, "input: expected the model to write a summary, got none"),
        (FinishReason.LENGTH, "", Fault.CONTEXT_EXCEEDED, "input: expected the model to write a summary, got none"),
        (FinishReason.CONTENT_FILTER, "a", Fault.CONTENT_FILTERED, "input: the server's content filter stopped"),
        (FinishReason.CANCELLED, "a", Fault.ENDED, "request: expected to go on until the summary's end"),
    ],
)
def test_without_a_summary_nothing_is_compacted(reason: FinishReason, said: str, fault: Fault, message: str):
    with pytest.raises(RequestError) as raised:
        compacted(said, reason=reason)
    assert raised.value.fault is fault
    assert raised.value.message.startswith(message)


def test_a_summary_of_the_longest_length_is_one():
    assert compacted("abc", reason=FinishReason.LENGTH)["output"][-1]["encrypted_content"] == sealed("abc")


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({}, "input: expected a string or an array of items where previous_response_id is absent, got null"),
        ({"input": 5}, "input: expected a string or an array of items, got a whole number"),
        ({"input": [{"role": "user"}]}, "input[0].content: expected "),
        ({"input": "a", "instructions": 5}, "instructions: expected "),
        ({"input": "a", "previous_response_id": "resp_9"}, "previous_response_id: expected the id of a response"),
        ({"input": "a" * 101}, "input: expected at most 100 bytes, got 101"),
        ({"input": [{"type": "compaction"}]}, "input[0].encrypted_content: expected "),
        (
            {"input": [{"type": "compaction", "encrypted_content": "gAAAA"}]},
            "input[0].encrypted_content: expected what umaserve's /v1/responses/compact has returned, got",
        ),
    ],
)
def test_refusals(wanted: dict[str, Any], message: str):
    with pytest.raises(RequestError) as raised:
        request(known(max_prompt_bytes=100), **wanted)
    assert raised.value.message.startswith(message)


def test_a_compaction_that_only_another_service_can_read_is_refused():
    with pytest.raises(RequestError, match=r"^input\[0\]\.encrypted_content: expected what umaserve's "):
        next_turns([{"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAAA"}])
