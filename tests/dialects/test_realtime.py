"""Sessions of OpenAI's Realtime API without a connection: events in, events out, in the order that clients rely on."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.realtime import RealtimeServerEvent
from pydantic import TypeAdapter
from routes import MODEL_INFO, facts

from umaserve.core.errors import Fault, RequestError
from umaserve.core.events import Finished, FinishReason, Usage, VoiceInfo
from umaserve.core.requests import Generate, Image, Sound
from umaserve.dialects.facts import Facts
from umaserve.dialects.realtime import conversation
from umaserve.dialects.realtime.ahead import Drop, WarmUp
from umaserve.dialects.realtime.answer import Answer
from umaserve.dialects.realtime.schemas import RealtimeFormat
from umaserve.dialects.realtime.session import MAX_ANSWERS, RealtimeSession, Start, Step, Stop
from umaserve.dialects.realtime.sound_formats import SpeechEncoder, format_of

THEIRS: TypeAdapter[Any] = TypeAdapter(RealtimeServerEvent)
"""OpenAI's own declarations of all events."""
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}}
CALL = '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>'
USAGE = Usage(9, 4, 3)
TEXT = {"output_modalities": ["text"]}


def own_facts(*, speaks: bool = False) -> Facts:
    voice = VoiceInfo(("en",), clones=False, name="own") if speaks else None
    return replace(facts(max_prompt_bytes=2000), model=lambda _name: MODEL_INFO, voice=voice)


class Talk:
    """A session, and what came of the events that it got."""

    def __init__(self, *, speaks: bool = False, **settings: Any) -> None:
        self.session = RealtimeSession(own_facts(speaks=speaks), "", settings)
        self.starts: list[Start] = []
        self.warmed: dict[str, Generate] = {}
        """The warm-ups that go on, by their ids."""
        self.drops: list[Drop] = []
        self.events: list[dict[str, Any]] = []
        self.tell([self.session.opened()])

    def tell(self, steps: list[Step] | Iterator[Step]) -> list[dict[str, Any]]:
        """Do the steps; returns the events among them."""
        told = []
        for step in steps:
            match step:
                case Start():
                    self.starts.append(step)
                case WarmUp():
                    self.warmed[step.id] = step.request
                case Drop():
                    self.drops.append(step)
                    del self.warmed[step.id]
                case Stop():
                    told += self.tell(self.session.cancelled(step, USAGE))
                case event:
                    told.append(self.session.named(event))
                    told[-1] = orjson.loads(orjson.dumps(told[-1]))
                    THEIRS.validate_python(told[-1])
                    self.events.append(told[-1])
        return told

    def send(self, kind: str, **fields: Any) -> list[dict[str, Any]]:
        return self.tell(self.session.receive(json.dumps({"type": kind, **fields}).encode()))

    def say(self, text: str, role: str = "user", **fields: Any) -> list[dict[str, Any]]:
        kind = "output_text" if role == "assistant" else "input_text"
        item = {"type": "message", "role": role, "content": [{"type": kind, "text": text}], **fields}
        return self.send("conversation.item.create", item=item)

    def ask(self, **response: Any) -> tuple[Answer, Generate]:
        self.send("response.create", response=response)
        return self.starts[-1].answer, self.starts[-1].request

    def answer(self, *texts: str, reason: FinishReason = FinishReason.STOP, **response: Any) -> list[dict[str, Any]]:
        """The events of a response of these texts, without those that open it."""
        answer, _ = self.ask(**response)
        told = [event for text in texts for event in self.tell(answer.push(text))]
        told += self.tell(answer.finish_text(whole=reason is FinishReason.STOP))
        return told + self.tell(self.session.ended(answer, answer.finish(Finished(reason, USAGE))))

    def error(self, kind: str, **fields: Any) -> dict[str, Any]:
        (event,) = self.send(kind, **fields)
        assert event["type"] == "error", event
        told: dict[str, Any] = event["error"]
        return told


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in events]


def test_a_session_begins_with_its_settings() -> None:
    talk = Talk(instructions="Be brief.")
    session = talk.events[0]["session"]
    assert kinds(talk.events) == ["session.created"]
    assert (session["model"], session["instructions"], session["output_modalities"]) == (
        "small-1",
        "Be brief.",
        ["text"],
    )
    assert session["audio"]["input"]["turn_detection"]["type"] == "server_vad"


def test_an_update_changes_what_it_names() -> None:
    talk = Talk()
    talk.send("session.update", session={"type": "realtime", "instructions": "A", "tools": [TOOL], "model": "other"})
    detection = {"type": "server_vad", "silence_duration_ms": 200}
    (event,) = talk.send(
        "session.update",
        session={
            "max_output_tokens": 7,
            "audio": {"input": {"turn_detection": detection}, "output": {"format": {"type": "audio/pcmu"}}},
        },
    )
    session = event["session"]
    assert event["type"] == "session.updated"
    assert (session["instructions"], session["max_output_tokens"], session["model"]) == ("A", 7, "small-1")
    assert session["tools"][0]["name"] == "f"
    assert session["audio"]["input"]["turn_detection"]["silence_duration_ms"] == 200
    (event,) = talk.send("session.update", session={"audio": {"input": {"turn_detection": None}}})
    assert event["session"]["audio"]["input"]["turn_detection"] is None
    assert event["session"]["audio"]["output"]["format"] == {"type": "audio/pcmu"}


def test_items_are_kept_in_their_order() -> None:
    talk = Talk()
    told = talk.say("one", id="a")
    assert kinds(told) == ["conversation.item.added", "conversation.item.done"]
    assert told[0]["previous_item_id"] is None
    assert talk.say("three", id="c")[0]["previous_item_id"] == "a"
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "two"}]}
    told = talk.send("conversation.item.create", previous_item_id="a", item={**item, "id": "b"})
    assert told[0]["previous_item_id"] == "a"
    told = talk.send("conversation.item.create", previous_item_id="root", item={**item, "id": "0"})
    assert told[0]["previous_item_id"] is None
    _, request = talk.ask()
    assert isinstance(request.prompt, tuple)
    assert request.prompt[0].content == "two\n\none\n\ntwo\n\nthree"
    (event,) = talk.send("conversation.item.retrieve", item_id="b")
    assert event["item"]["content"] == [{"type": "input_text", "text": "two"}]
    assert kinds(talk.send("conversation.item.delete", item_id="b")) == ["conversation.item.deleted"]
    assert talk.error("conversation.item.retrieve", item_id="b")["code"] == "not_found"


def test_a_response_in_text() -> None:
    talk = Talk()
    talk.say("Hello!")
    talk.send("response.create")
    assert kinds(talk.events[-2:]) == ["response.created", "rate_limits.updated"]
    answer = talk.starts[-1].answer
    told = talk.tell(answer.push("Good ")) + talk.tell(answer.push("day."))
    told += talk.tell(answer.finish_text(whole=True))
    told += talk.tell(talk.session.ended(answer, answer.finish(Finished(FinishReason.STOP, USAGE))))
    assert kinds(told) == [
        "response.output_item.added",
        "conversation.item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "conversation.item.done",
        "response.done",
    ]
    response = told[-1]["response"]
    assert (response["status"], response["status_details"]) == ("completed", None)
    assert response["output"][0]["content"] == [{"type": "output_text", "text": "Good day."}]
    assert response["usage"]["total_tokens"] == 13
    assert response["usage"]["input_token_details"]["cached_tokens"] == 3
    # The next prompt begins as the model has seen it, so that it is computed once.
    talk.say("Bye!")
    _, request = talk.ask()
    assert isinstance(request.prompt, tuple)
    assert [(turn.role, turn.content) for turn in request.prompt] == [
        ("user", "Hello!"),
        ("assistant", "Good day."),
        ("user", "Bye!"),
    ]


def test_a_call_and_its_result() -> None:
    talk = Talk(tools=[TOOL])
    talk.say("Call f.")
    told = talk.answer("Well.", CALL)
    assert [kind for kind in kinds(told) if "arguments" in kind or kind.startswith("conversation")] == [
        "conversation.item.added",
        "conversation.item.done",
        "conversation.item.added",
        *["response.function_call_arguments.delta"] * (kinds(told).count("response.function_call_arguments.delta")),
        "response.function_call_arguments.done",
        "conversation.item.done",
    ]
    call = told[-1]["response"]["output"][1]
    assert (call["name"], json.loads(call["arguments"])) == ("f", {"x": 1})
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "42"}
    talk.send("conversation.item.create", item=output)
    _, request = talk.ask()
    assert isinstance(request.prompt, tuple)
    _user, said, result = request.prompt
    assert (said.content, said.tool_calls[0].name) == ("Well.", "f")
    assert (result.role, result.content, result.tool_call_id) == ("tool", "42", said.tool_calls[0].id)


def test_a_response_beside_the_conversation() -> None:
    talk = Talk(instructions="Be brief.")
    talk.say("Hello!", id="hello")
    reference = {"type": "item_reference", "id": "hello"}
    other = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Which language?"}]}
    given = {
        "conversation": "none",
        "input": [reference, other],
        "instructions": "Say one word.",
        "metadata": {"a": "b"},
    }
    told = talk.answer("English", **given)
    assert not any(kind.startswith("conversation") for kind in kinds(told))
    assert told[-1]["response"]["conversation_id"] is None
    assert told[-1]["response"]["metadata"] == {"a": "b"}
    request = talk.starts[-1].request
    assert isinstance(request.prompt, tuple)
    assert [turn.content for turn in request.prompt] == ["Say one word.", "Hello!\n\nWhich language?"]
    _, request = talk.ask()
    assert isinstance(request.prompt, tuple)
    assert [turn.content for turn in request.prompt] == ["Be brief.", "Hello!"]


@pytest.mark.parametrize(
    ("reason", "status", "details"),
    [
        (FinishReason.LENGTH, "incomplete", {"type": "incomplete", "reason": "max_output_tokens"}),
        (FinishReason.CONTENT_FILTER, "incomplete", {"type": "incomplete", "reason": "content_filter"}),
    ],
)
def test_a_response_that_lacks_its_end(reason: FinishReason, status: str, details: dict[str, Any]) -> None:
    talk = Talk()
    talk.say("Hello!")
    response = talk.answer("Go", reason=reason)[-1]["response"]
    assert (response["status"], response["status_details"]) == (status, details)
    assert response["output"][0]["status"] == "incomplete"


def test_a_cancelled_response_keeps_its_text() -> None:
    talk = Talk()
    talk.say("Hello!")
    answer, _ = talk.ask()
    talk.tell(answer.push("Good "))
    told = talk.send("response.cancel")
    assert told[-1]["response"]["status"] == "cancelled"
    assert told[-1]["response"]["usage"]["output_tokens"] == 4
    assert told[-1]["response"]["output"][0]["content"][0]["text"] == "Good "
    assert talk.error("response.cancel")["code"] == "not_found"
    assert not talk.session.busy


def test_a_failed_response() -> None:
    talk = Talk()
    talk.say("Hello!")
    answer, _ = talk.ask()
    error = RequestError(Fault.QUEUE_FULL, "request", "1 waits")
    response = talk.tell(talk.session.ended(answer, answer.fail(error)))[-1]["response"]
    assert response["status"] == "failed"
    assert response["status_details"]["error"]["code"] == "queue_full"
    assert talk.ask()


def test_one_response_of_the_conversation_at_a_time() -> None:
    talk = Talk()
    talk.say("Hello!")
    talk.ask()
    assert talk.error("response.create")["code"] == "busy"
    for _ in range(MAX_ANSWERS - 1):
        talk.ask(conversation="none")
    assert talk.error("response.create", response={"conversation": "none"})["code"] == "busy"


WRONG = [
    ({"type": "session.updat"}, "type", '"session.updat"'),
    ({"type": 5}, "type", "a whole number"),
    ({}, "type", "null"),
    ({"type": "session.update"}, "session", "null"),
    ({"type": "session.update", "session": {"output_modalities": ["text", "audio"]}}, "session.output_modalities", "2"),
    ({"type": "session.update", "session": {"output_modalities": ["audio"]}}, "session.output_modalities", "no voice"),
    ({"type": "session.update", "session": {"max_output_tokens": 0}}, "session.max_output_tokens", "0"),
    ({"type": "session.update", "session": {"tools": [{"type": "function"}]}}, "session.tools[0].name", "null"),
    (
        {"type": "session.update", "session": {"audio": {"input": {"turn_detection": {"type": "sonic_vad"}}}}},
        "session.audio.input.turn_detection.type",
        '"sonic_vad"',
    ),
    ({"type": "session.update", "session": {"audio": {"input": {"format": {"type": "mp3"}}}}}, "session.audio", "mp3"),
    ({"type": "conversation.item.create", "item": {"type": "message", "role": "robot"}}, "item.role", '"robot"'),
    ({"type": "conversation.item.create", "item": {"type": "mcp_call"}}, "item.type", '"mcp_call"'),
    ({"type": "conversation.item.delete", "item_id": "x"}, "item_id", '"x"'),
    ({"type": "response.create"}, "response", "neither"),
    ({"type": "response.create", "response": {"tool_choice": "required"}}, "response.tool_choice", "required"),
]


@pytest.mark.parametrize(("event", "field", "found"), WRONG)
def test_errors_name_the_field_and_the_event(event: dict[str, Any], field: str, found: str) -> None:
    talk = Talk()
    (told,) = talk.tell(talk.session.receive(json.dumps({**event, "event_id": "mine"}).encode()))
    assert told["type"] == "error"
    assert told["error"]["event_id"] == "mine"
    assert told["error"]["message"].startswith(field), told
    assert found in told["error"]["message"], told
    assert talk.send("session.update", session={})[0]["type"] == "session.updated"


def test_what_is_no_json_is_an_error() -> None:
    talk = Talk()
    for payload in (b"", b"{", b"[]", b"\xff", b'"a"'):
        (told,) = talk.tell(talk.session.receive(payload))
        assert (told["type"], told["error"]["event_id"]) == ("error", None)


def test_a_conversation_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation, "MAX_ITEMS", 2)
    monkeypatch.setattr(conversation, "MAX_BYTES", 3000)
    talk = Talk()
    assert "3000 bytes" in talk.say("a" * 3000)[0]["error"]["message"]
    talk.say("one", id="a")
    assert "no item has" in talk.say("two", id="a")[0]["error"]["message"]
    talk.say("two", id="b")
    assert "2 items" in talk.say("three")[0]["error"]["message"]
    talk.send("conversation.item.delete", item_id="a")
    assert talk.say("three")[0]["type"] == "conversation.item.added"


def test_a_prompt_that_is_too_long_is_refused() -> None:
    talk = Talk()
    talk.say("a" * 2001)
    assert talk.error("response.create")["code"] == "prompt_too_large"


def test_sounds_and_images_are_the_users() -> None:
    talk = Talk(audio={"input": {"format": {"type": "audio/pcma"}}})
    image = {"type": "input_image", "image_url": "data:image/png;base64,AA=="}
    sound = {"type": "input_audio", "audio": base64.b64encode(bytes(range(100))).decode()}
    item = {"type": "message", "role": "user", "content": [image, sound], "id": "a"}
    assert talk.send("conversation.item.create", item=item)[0]["item"]["content"][1] == {
        "type": "input_audio",
        "transcript": None,
    }
    (event,) = talk.send("conversation.item.retrieve", item_id="a")
    assert event["item"]["content"][1]["audio"] == sound["audio"]
    _, request = talk.ask()
    assert isinstance(request.prompt, tuple)
    seen, heard = (one.media for one in request.prompt[0].attachments)
    assert isinstance(seen, Image)
    assert isinstance(heard, Sound)
    assert (heard.sample_rate, len(heard.data)) == (8000, 400)
    assert (
        "base64"
        in talk.error("conversation.item.create", item={**item, "id": "b", "content": [{**sound, "audio": "§"}]})[
            "message"
        ]
    )


def test_a_spoken_response_ends_with_its_sound() -> None:
    talk = Talk(speaks=True)
    talk.say("Hello!")
    answer, _ = talk.ask()
    told = talk.tell(answer.push("Good day.")) + talk.tell(answer.finish_text(whole=True))
    assert answer.take_text() == "Good day."
    told += talk.tell([answer.hear(b"ab")])
    told += talk.tell(talk.session.ended(answer, answer.finish(Finished(FinishReason.STOP, USAGE))))
    assert kinds(told)[3:] == [
        "response.output_audio_transcript.delta",
        "response.output_audio.delta",
        "response.output_audio.done",
        "response.output_audio_transcript.done",
        "response.content_part.done",
        "response.output_item.done",
        "conversation.item.done",
        "response.done",
    ]
    assert told[4]["delta"] == base64.b64encode(b"ab").decode()
    assert told[-1]["response"]["output"][0]["content"] == [{"type": "output_audio", "transcript": "Good day."}]


# The order of events, whatever comes.


class Order:
    """Follows the events of one response: each item is added, then its part, then deltas, and each ends once."""

    def __init__(self, begun: dict[str, Any]) -> None:
        assert begun["status"] == "in_progress"
        self.id = begun["id"]
        self.open: dict[int, dict[str, Any]] = {}
        self.ended: dict[int, dict[str, Any]] = {}
        self.done = False

    def take(self, event: dict[str, Any]) -> None:
        assert not self.done, event
        kind = event["type"]
        if kind == "response.done":
            assert not self.open
            assert event["response"]["output"] == [item for _, item in sorted(self.ended.items())]
            assert event["response"]["status"] != "in_progress"
            self.done = True
            return
        index = event["output_index"]
        if kind == "response.output_item.added":
            assert index == len(self.open) + len(self.ended)
            self.open[index] = {**event["item"], "said": "", "text_done": False, "part": None}
            return
        item = self.open[index]
        if kind == "response.output_item.done":
            assert item["text_done"]
            assert item["part"] in (None, "done")
            assert event["item"]["status"] in ("completed", "incomplete")
            self.ended[index] = event["item"]
            del self.open[index]
            return
        assert event["item_id"] == item["id"]
        match kind.rpartition(".")[2]:
            case "added":
                assert item["part"] is None
                item["part"] = "open"
            case "delta":
                assert not item["text_done"]
                assert (item["part"] == "open") == (item["type"] == "message")
                item["said"] += event["delta"] if "output_audio.delta" not in kind else ""
            case "done" if "content_part" in kind:
                assert item["text_done"]
                item["part"] = "done"
            case "done" if kind != "response.output_audio.done":
                said = event.get("text", event.get("arguments", event.get("transcript")))
                assert said == item["said"]
                item["text_done"] = True


PIECES = st.sampled_from(["Hello", " ", "\n", "<", "{", CALL, CALL[:20], CALL[20:], "🦙", "one. Two."])


@given(
    pieces=st.lists(PIECES, max_size=6),
    speaks=st.booleans(),
    sounds=st.integers(0, 2),
    end=st.sampled_from(["cancel", "cancel late", "fail", *FinishReason]),
    beside=st.booleans(),
)
def test_events_come_in_order(
    pieces: list[str], speaks: bool, sounds: int, end: str | FinishReason, beside: bool
) -> None:
    talk = Talk(speaks=speaks, tools=[TOOL])
    talk.say("Hello!")
    begun = len(talk.events)
    answer, _ = talk.ask(**({"conversation": "none"} if beside else {}))
    for piece in pieces:
        talk.tell(answer.push(piece))
    if end != "cancel":
        talk.tell(answer.finish_text(whole=end is FinishReason.STOP))
        if answer.take_text():
            talk.tell([answer.hear(b"ab") for _ in range(sounds)])
    match end:
        case FinishReason():
            talk.tell(talk.session.ended(answer, answer.finish(Finished(end, USAGE))))
        case "fail":
            talk.tell(talk.session.ended(answer, answer.fail(RequestError(Fault.DECODE_FAILED, "request", "x"))))
        case _:
            talk.send("response.cancel", response_id=answer.id)
    created, _limits, *told = talk.events[begun:]
    order = Order(created["response"])
    for event in told:
        if event["type"].startswith("response."):
            assert event.get("response_id", order.id) == order.id
            order.take(event)
    assert order.done
    added = [event["item"]["id"] for event in told if event["type"] == "conversation.item.added"]
    assert sorted(added) == ([] if beside else sorted(item["id"] for item in order.ended.values()))
    assert len({event["event_id"] for event in talk.events}) == len(talk.events)


def test_the_sound_of_g711_is_that_of_the_voice() -> None:
    at = np.arange(24_000) / 24_000
    voice = (0.5 * np.sin(2 * np.pi * 440 * at)).astype("<f4")
    for name in ("audio/pcmu", "audio/pcma"):
        of = format_of(RealtimeFormat({"type": name}))
        encoder = SpeechEncoder(of)
        sound = b"".join(encoder.encode(part.tobytes()) for part in np.split(voice, 4))
        heard = of.samples(sound)
        assert len(heard) == 8000
        strength = np.abs(np.fft.rfft(heard))
        assert int(strength.argmax()) == 440
        assert 0.45 < float(np.abs(heard[100:]).max()) < 0.55
