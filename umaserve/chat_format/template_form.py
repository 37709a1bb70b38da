"""The form in which one chat template takes messages, learned by rendering short conversations with it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from umaserve.wire.cut_json import whole_members

Message = dict[str, Any]
"""One message or one tool, in the form of OpenAI's API."""
Render = Callable[[Sequence[Message], Sequence[Message]], str]
"""Makes the prompt for messages and tools; empty where the template refuses them."""

_MARK = "Zq4Zq4"
_ID = "call00001"
"""Id of nine letters and digits: the only form of ids that Mistral's templates take."""
_SHORT_ID = re.compile("[A-Za-z0-9]{9}")
_RESULT = "Zr5Zr5"
_BRIEF: Message = {"role": "system", "content": "Be brief."}
_USER: Message = {"role": "user", "content": "Hi"}
_DONE: Message = {"role": "assistant", "content": "Done"}
_KEY = {"type": "object", "properties": {"key": {"type": "string", "description": "A key"}}, "required": ["key"]}
TOOL: Message = {"type": "function", "function": {"name": "tool1", "description": "A tool", "parameters": _KEY}}


@dataclass(frozen=True, slots=True)
class Form:
    """How a template takes messages, where templates differ."""

    system: bool
    """Whether the template writes system messages."""
    later_systems: bool
    """Whether the template writes system messages in the middle of a conversation where they stand. Others refuse them,
    leave them out, or move them to the beginning, so that no cached prefix fits any longer."""
    parts: bool
    """Whether content is an array of parts, never a string."""
    objects: bool
    """Whether a call's arguments are an object, not JSON text."""
    tools: bool
    """Whether the template writes the tools that may be called."""
    results: Literal["messages", "responses"]
    """Form of the results of calls: messages of the role tool, or ``tool_responses`` of the message with the calls."""
    thoughts: Literal["reasoning_content", "reasoning", "thinking", "part"]
    """Key of an assistant's thoughts; "part": they are the first part of the content."""
    shows_thoughts: bool
    """Whether the template writes the thoughts of earlier turns."""
    short_ids: bool
    """Whether the template refuses ids of calls that aren't nine letters and digits."""

    def shaped(self, messages: Sequence[Message]) -> list[Message]:
        """``messages`` as the template takes them; given are content as a string, arguments as JSON text, and thoughts
        as ``reasoning_content``."""
        if not self.later_systems:
            messages = _with_later_systems_in_turns(messages)
        shaped = [self._shaped(message) for message in messages]
        if not self.system and shaped and shaped[0]["role"] == "system":
            told = shaped.pop(0)["content"]
            if shaped:
                shaped[0]["content"] = f"{told}\n{shaped[0]['content']}"
        if self.results == "responses":
            shaped = _with_responses(shaped)
        if self.parts:
            shaped = [_in_parts(message) for message in shaped]
        if self.thoughts == "part":
            for message in shaped:
                _part_of_thoughts(message)
        return shaped

    def _shaped(self, message: Message) -> Message:
        shaped = dict(message)
        if "reasoning_content" in shaped and self.thoughts != "part":
            shaped[self.thoughts] = shaped["reasoning_content"]
        if self.objects and "tool_calls" in shaped:
            shaped["tool_calls"] = [_with_object(call) for call in shaped["tool_calls"]]
        return _with_short_ids(shaped) if self.short_ids else shaped


def learned(render: Render) -> Form:
    """The form that a template takes, which ``render`` applies."""
    user = {"role": "user", "content": _MARK}
    parts = _MARK not in render([user], ()) and _MARK in render([_in_parts(user)], ())
    if parts:
        render = _of_parts(render)
    shows = _shows(render)
    objects, written = True, render(_calling({"key": _MARK}), [TOOL])
    if _MARK not in written or f"{{'key': '{_MARK}'}}" in written:
        objects = not shows(*_calling(f'{{"key": "{_MARK}"}}'), tools=[TOOL])
    arguments: object = {"key": "value"} if objects else '{"key": "value"}'
    thoughts = _thoughts(render, arguments)
    return Form(
        system=shows({"role": "system", "content": _MARK}, _USER),
        later_systems=_keeps_place_of_systems(render, arguments),
        parts=parts,
        objects=objects,
        tools=TOOL["function"]["name"] in render([_USER], [TOOL]),
        results=_results(render, arguments),
        thoughts=thoughts or "reasoning_content",
        shows_thoughts=thoughts is not None,
        short_ids=_refuses_long_ids(render, arguments),
    )


def _of_parts(render: Render) -> Render:
    def of_parts(messages: Sequence[Message], tools: Sequence[Message]) -> str:
        return render([_in_parts(message) for message in messages], tools)

    return of_parts


def _shows(render: Render) -> Callable[..., bool]:
    def shows(*messages: Message, tools: Sequence[Message] = ()) -> bool:
        return _MARK in render(messages, tools)

    return shows


def _in_parts(message: Message) -> Message:
    content = message["content"]
    return {**message, "content": [{"type": "text", "text": content}] if isinstance(content, str) else content}


def _keeps_place_of_systems(render: Render, arguments: object) -> bool:
    system = {"role": "system", "content": _MARK}
    question = {"role": "user", "content": "What?"}
    called, result = _called(arguments), {"role": "tool", "content": _RESULT, "tool_call_id": _ID}
    spoken = [[_BRIEF, _USER, _DONE, system, question], [_BRIEF, _USER, _DONE, question, system]]
    answered = [_BRIEF, _USER, called, result]
    if _RESULT not in render(answered, [TOOL]):
        return all(_in_order(render(one, ()), one) for one in spoken)
    spoken += [[*answered, system], [*answered, system, question]]
    return all(_in_order(render(one, [TOOL] if result in one else ()), one) for one in spoken)


def _in_order(prompt: str, messages: Sequence[Message]) -> bool:
    """Whether ``prompt`` has the contents of ``messages`` in their order."""
    at = 0
    for message in messages:
        at = prompt.find(message["content"], at)
        if at < 0:
            return False
        at += len(message["content"])
    return True


def _results(render: Render, arguments: object) -> Literal["messages", "responses"]:
    called, result = _called(arguments), {"role": "tool", "content": _MARK, "tool_call_id": _ID}
    inside = render([_USER, *_with_responses([called, result])], [TOOL])
    if _MARK not in inside or "tool_responses" in inside:  # A template that writes messages as JSON shows their keys.
        return "messages"
    return "messages" if inside == render([_USER, called, result], [TOOL]) else "responses"


def _thoughts(
    render: Render, arguments: object
) -> Literal["reasoning_content", "reasoning", "thinking", "part"] | None:
    shows = _shows(render)
    result = {"role": "tool", "content": "1", "tool_call_id": _ID}
    keys: tuple[Literal["reasoning_content", "reasoning", "thinking"], ...] = (
        "reasoning_content",
        "reasoning",
        "thinking",
    )
    for key in keys:
        said = {**_DONE, key: _MARK}
        called = {**_called(arguments), key: _MARK}
        if shows(_USER, said) or shows(_USER, said, _USER) or shows(_USER, called, result, tools=[TOOL]):
            return key
    part = _part_of_thoughts({**_DONE, "reasoning_content": _MARK})
    shown = [render([_USER, part], ()), render([_USER, part, _USER], ())]
    # A template that knows no parts writes them as they are.
    return "part" if any(_MARK in text and '"thinking' not in text.replace("'", '"') for text in shown) else None


def _refuses_long_ids(render: Render, arguments: object) -> bool:
    called, result = _called(arguments), {"role": "tool", "content": "1", "tool_call_id": _ID}
    if not render([_USER, called, result], [TOOL]):
        return False
    long = f"call_{_ID}"
    called["tool_calls"][0]["id"] = result["tool_call_id"] = long
    return not render([_USER, called, result], [TOOL])


def _calling(arguments: object) -> list[Message]:
    result = {"role": "tool", "content": "1", "tool_call_id": _ID}
    return [_USER, _called(arguments), result, _DONE, _USER]


def _called(arguments: object) -> Message:
    function = {"name": "tool1", "arguments": arguments}
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": function, "id": _ID}],
    }


def _with_later_systems_in_turns(messages: Sequence[Message]) -> list[Message]:
    """``messages`` with each system message but the first one's text at the end of the message before it; after an
    assistant's message, it begins the user's turn. So a conversation that goes on keeps its beginning."""
    changed: list[Message] = []
    begun = False
    for message in messages:
        before = changed[-1]["role"] if changed else ""
        if message["role"] == "system" and before == "assistant":
            changed.append({"role": "user", "content": message["content"]})
            begun = True
        elif (message["role"] == "system" and before) or (message["role"] == "user" and begun):
            told = changed.pop()
            changed.append({**told, "content": "\n\n".join(filter(None, (told["content"], message["content"])))})
            begun = begun and message["role"] == "system"
        else:
            changed.append(message)
            begun = False
    return changed


def _with_object(call: Message) -> Message:
    """The call with its arguments as an object, where their text is one or begins one."""
    function = call["function"]
    if not function["arguments"].lstrip().startswith("{"):
        return call
    return {**call, "function": {**function, "arguments": whole_members(function["arguments"])}}


def _with_short_ids(message: Message) -> Message:
    if "tool_calls" in message:
        calls = [{**call, "id": _short_id(call["id"])} for call in message["tool_calls"]]
        return {**message, "tool_calls": calls}
    return {**message, "tool_call_id": _short_id(message["tool_call_id"])} if "tool_call_id" in message else message


def _short_id(text: str) -> str:
    """Nine letters and digits for an id: itself where it has that form, else always the same ones."""
    return text if _SHORT_ID.fullmatch(text) else hashlib.blake2s(text.encode()).hexdigest()[:9]


def _part_of_thoughts(message: Message) -> Message:
    """Change ``message`` so that its thoughts are the first part of its content."""
    thoughts = message.pop("reasoning_content", None)
    if thoughts is not None:
        message["content"] = [{"type": "thinking", "thinking": thoughts}, *_in_parts(message)["content"]]
    return message


def _with_responses(messages: Sequence[Message]) -> list[Message]:
    """``messages`` with the results of calls, and the answer after them, in the message that has the calls."""
    together: list[Message] = []
    calling: Message | None = None
    for message in messages:
        if calling is not None and message["role"] == "tool":
            calls, responses = calling["tool_calls"], calling.setdefault("tool_responses", [])
            called = calls[len(responses)]["function"]["name"] if len(responses) < len(calls) else ""
            name = called or message.get("tool_call_id", "")
            responses.append({"name": name, "response": _value(message["content"])})
            continue
        if (
            calling is not None
            and message["role"] == "assistant"
            and message["content"]
            and "tool_calls" not in message
        ):
            calling["content"] = message["content"]
            calling = None
            continue
        calling = None
        if message.get("tool_calls"):
            calling = message = dict(message)
            # What is said before the calls would stand after their results.
            calling["content"] = ""
        together.append(message)
    return together


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
