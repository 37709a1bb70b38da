"""The order of the events of Anthropic's streams and of the lines of Ollama's, whatever the session puts out: a state
machine for each follows them, and what they say is what the whole answer says."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from routes import facts

from tests.support.routes import MODEL_INFO
from umaserve.core.errors import ContextExceeded, Fault, RequestError
from umaserve.core.events import (
    Finished,
    FinishReason,
    Loading,
    Output,
    Placed,
    Prefilled,
    Started,
    Timing,
    Token,
    Usage,
    Waiting,
)
from umaserve.dialects.anthropic.messages import MessageBody
from umaserve.dialects.ollama.answers import ChatBody, GenerateBody
from umaserve.dialects.parameters import RequestLimits
from umaserve.wire.cut_json import whole_members

LIMITS = RequestLimits(max_prompt_bytes=2000)
USER = [{"role": "user", "content": "hi"}]
CALL = '<tool_call>\n{"name": "f", "arguments": {"x": {"y": [1]}}}\n</tool_call>'
TEXTS = st.sampled_from(
    ["Hello", " ", "\n", "<", "{", CALL, CALL + CALL, CALL[:20], CALL[:40], CALL[40:], CALL.replace('"f"', '"g"'), "🦙"]
)
ERRORS = st.sampled_from([RequestError(Fault.DECODE_FAILED, "model", "x"), ContextExceeded(9, 8)])


@dataclass(frozen=True)
class Session:
    """What one session puts out, in the order that sessions have, and the error that ends it, if one does. It breaks
    off without either where the client has left."""

    outputs: list[Output]
    error: RequestError | None
    text: str
    thoughts: str

    @property
    def whole(self) -> bool:
        return bool(self.outputs) and isinstance(self.outputs[-1], Finished)


@st.composite
def sessions(draw: st.DrawFn) -> Session:
    tokens: list[Token] = []
    for thinks, text in draw(st.lists(st.tuples(st.booleans(), TEXTS), max_size=6)):
        cuts = sorted(draw(st.sets(st.integers(0, len(text)), max_size=4)))
        for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
            tokens.append(
                Token(text[start:end], 5, elapsed_s=len(tokens) / 8, answer="" if thinks else text[start:end])
            )
            if thinks:
                tokens[-1] = tokens[-1]._replace(thoughts=text[start:end])
    timing = Timing(0.0, 0.0, len(tokens) / 8)
    end = Finished(draw(st.sampled_from(FinishReason)), Usage(9, len(tokens), 4), timing)
    before: list[Output] = [Loading(0.5, None), Waiting(1, 1, None)]
    complete: list[Output] = [*before, Started(), Placed(), Prefilled(9, 4), *tokens, end]
    if draw(st.booleans()):
        outputs = complete
    else:
        outputs = complete[: draw(st.integers(0, len(complete) - 1))]
        if draw(st.booleans()):  # Cancelled.
            outputs.append(replace(end, reason=FinishReason.CANCELLED))
    whole = bool(outputs) and isinstance(outputs[-1], Finished)
    error = None if whole else draw(st.none() | ERRORS)
    came = [output for output in outputs if isinstance(output, Token)]
    return Session(outputs, error, "".join(t.said for t in came), "".join(t.thoughts for t in came))


def run(body: Any, asked: dict[str, Any], session: Session) -> list[bytes]:
    """All data that ``body`` sends."""
    body.receive(json.dumps({"model": "any", "messages": USER, "prompt": "hi", **asked}).encode())
    data = [each for output in session.outputs for each in body.send(0, output)]
    return data + ([] if session.error is None else body.fail(0, session.error))


# Anthropic's.

DELTAS = {"text": {"text_delta"}, "thinking": {"thinking_delta", "signature_delta"}, "tool_use": {"input_json_delta"}}


@dataclass
class MessageStream:
    """``message_start``, blocks one after another, each ended before the next begins, ``message_delta``,
    ``message_stop``; ``ping`` anywhere, and an ``error`` instead of the rest."""

    state: str = "new"
    blocks: list[dict[str, Any]] = field(default_factory=list)
    stop_reason: str | None = None

    def take(self, event: dict[str, Any]) -> None:
        kind = event["type"]
        assert self.state != "ended", kind
        match self.state, kind:
            case _, "ping":
                pass
            case _, "error":
                self.state = "ended"
            case "new", "message_start":
                assert event["message"]["content"] == []
                self.state = "between"
            case "between", "content_block_start":
                assert event["index"] == len(self.blocks)
                self.blocks.append({**event["content_block"], "said": "", "signed": False})
                self.state = "within"
            case "within", "content_block_delta":
                self.delta(event)
            case "within", "content_block_stop":
                assert event["index"] == len(self.blocks) - 1
                block = self.blocks[-1]
                assert block["signed"] == (block["type"] == "thinking")
                self.state = "between"
            case "between", "message_delta":
                self.stop_reason = event["delta"]["stop_reason"]
                self.state = "stopping"
            case "stopping", "message_stop":
                self.state = "ended"
            case wrong:
                raise AssertionError(wrong)

    def delta(self, event: dict[str, Any]) -> None:
        block, kind = self.blocks[-1], event["delta"]["type"]
        assert event["index"] == len(self.blocks) - 1
        assert kind in DELTAS[block["type"]]
        assert not block["signed"]
        [said] = [value for key, value in event["delta"].items() if key != "type"]
        assert said
        if kind == "signature_delta":
            block["signed"] = True
        else:
            block["said"] += said


def message_events(framed: Sequence[bytes], frame: Callable[[bytes], bytes]) -> list[dict[str, Any]]:
    events = []
    for data in framed:
        name, text, *rest = frame(data).decode().split("\n")
        assert rest == ["", ""]
        events.append(json.loads(text.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


@given(sessions(), st.booleans(), st.booleans(), st.data())
def test_the_events_of_every_message(session: Session, tools: bool, thinks: bool, data: Any) -> None:
    asked: dict[str, Any] = {"max_tokens": 2000}
    asked |= {"tools": [{"name": "f", "input_schema": {"type": "object"}}]} if tools else {}
    asked |= {"thinking": {"type": "enabled", "budget_tokens": 1024}} if thinks else {}
    body = MessageBody(LIMITS, lambda _name: MODEL_INFO, "7")
    events = message_events(run(body, {**asked, "stream": True}, session), body.frame)
    stream = MessageStream()
    for ping in sorted(data.draw(st.sets(st.integers(0, max(0, len(events) - 1)))), reverse=True):
        events[ping:ping] = message_events([body.ping()], body.frame)
    for event in events:
        stream.take(event)
    assert body.done == (stream.state == "ended") == (session.whole or session.error is not None)
    assert ("thinking" in {block["type"] for block in stream.blocks}) <= thinks
    if not session.whole:
        return
    one = MessageBody(LIMITS, lambda _name: MODEL_INFO, "7")
    assert run(one, asked, session) == []
    answer = json.loads(one.result())
    assert stream.stop_reason == answer["stop_reason"]

    def texts(kind: str, key: str, blocks: list[dict[str, Any]]) -> str:
        return "".join(block[key] for block in blocks if block["type"] == kind)

    for kind, key in (("text", "text"), ("thinking", "thinking")):
        assert texts(kind, "said", stream.blocks) == texts(kind, key, answer["content"])
    if thinks:
        assert texts("thinking", "said", stream.blocks) == session.thoughts
    if not tools:
        assert texts("text", "said", stream.blocks) == session.text
    begun = {block["id"]: block["said"] for block in stream.blocks if block["type"] == "tool_use"}
    calls = {block["id"]: block["input"] for block in answer["content"] if block["type"] == "tool_use"}
    # Of a call that the end cuts off, the input is what is whole.
    assert {key: whole_members(begun[key]) for key in calls} == calls
    assert (answer["stop_reason"] == "tool_use") <= bool(calls)


# Ollama's.

FACTS = replace(facts(), model=lambda _name: MODEL_INFO, limits=LIMITS, now=lambda: 1_700_000_000)


@dataclass
class Lines:
    """Each line says something more; then the line that is ``done`` says nothing more, or an error."""

    ended: bool = False
    text: str = ""
    thoughts: str = ""
    calls: list[Any] = field(default_factory=list)
    at: str = ""

    def take(self, line: dict[str, Any]) -> None:
        assert not self.ended
        if "error" in line:
            assert line.keys() == {"error"}
            self.ended = True
            return
        assert line["model"] == "small-1:latest"
        assert line["created_at"] >= self.at
        self.at = line["created_at"]
        said = line["message"] if "message" in line else {"content": line["response"], **line}
        new = (said["content"], said.get("thinking", ""), said.get("tool_calls", []))
        assert any(new) != line["done"]
        assert ("done_reason" in line) == ("eval_count" in line) == line["done"]
        self.text, self.thoughts, self.calls = self.text + new[0], self.thoughts + new[1], self.calls + new[2]
        self.ended = line["done"]


@given(sessions(), st.sampled_from([ChatBody, GenerateBody]), st.booleans())
def test_the_lines_of_every_answer(session: Session, kind: type[ChatBody | GenerateBody], tools: bool) -> None:
    asked: dict[str, Any] = {"tools": [{"type": "function", "function": {"name": "f"}}]} if tools else {}
    body = kind(FACTS, "c1")
    data = run(body, {**asked, "stream": True}, session)
    lines = Lines()
    for each in data:
        assert body.frame(each).count(b"\n") == 1
        lines.take(json.loads(body.frame(each)))
    assert body.done == lines.ended == (session.whole or session.error is not None)
    assert session.whole <= (lines.thoughts == session.thoughts)
    if session.whole and not (tools and kind is ChatBody):
        assert lines.text == session.text
    if session.whole:
        one = kind(FACTS, "c1")
        assert run(one, {**asked, "stream": False}, session) == []
        told = json.loads(one.result())
        said = told.get("message") or {"content": told["response"], **told}
        assert (said["content"], said.get("thinking", "")) == (lines.text, lines.thoughts)
        assert said.get("tool_calls", []) == lines.calls
