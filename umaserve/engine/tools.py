"""Tools in the form that chat templates take, and as plain text for templates without tools."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from umaserve.messages import TOOL_CALL_CLOSE, TOOL_CALL_OPEN, ChatTurn, Tool, ToolCall


def signatures(tools: Iterable[Tool]) -> list[dict[str, Any]]:
    """``tools`` in the form of OpenAI's API, which templates expect."""
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": json.loads(tool.parameters),
            },
        }
        for tool in tools
    ]


def arguments(call: ToolCall) -> dict[str, Any] | str:
    """The call's arguments, or their text where it isn't a JSON object."""
    try:
        value = json.loads(call.arguments)
    except (ValueError, RecursionError):
        return call.arguments
    return value if isinstance(value, dict) else call.arguments


def in_words(turns: Sequence[ChatTurn], tools: Sequence[Tool]) -> list[ChatTurn]:
    """``turns`` for a template without tools: ``tools`` are described in the system message, earlier calls are text in
    the assistant's turns, and consecutive tool results are text in one user's turn."""
    told: list[ChatTurn] = []
    before = ""
    for turn in turns:
        if turn.role == "tool":
            response = f"<tool_response>\n{turn.content}\n</tool_response>"
            if before == "tool":
                response = f"{told.pop().content}\n{response}"
            told.append(ChatTurn("user", response))
        else:
            content = "\n".join(filter(None, [turn.content, *map(_call, turn.tool_calls)]))
            told.append(ChatTurn(turn.role, content, thoughts=turn.thoughts))
        before = turn.role
    if not tools:
        return told
    if told and told[0].role == "system":
        return [ChatTurn("system", f"{told[0].content}\n\n{_instructions(tools)}"), *told[1:]]
    return [ChatTurn("system", _instructions(tools)), *told]


def _call(call: ToolCall) -> str:
    value = json.dumps({"name": call.name, "arguments": arguments(call)}, ensure_ascii=False)
    return f"{TOOL_CALL_OPEN}\n{value}\n{TOOL_CALL_CLOSE}"


def _instructions(tools: Sequence[Tool]) -> str:
    known = "\n".join(json.dumps(signature, ensure_ascii=False) for signature in signatures(tools))
    return (
        "You can call the functions whose signatures are listed here, one JSON object a line:\n"
        f"<tools>\n{known}\n</tools>\n\n"
        "To call one, write a JSON object with its name and its arguments between these tags:\n"
        f'{TOOL_CALL_OPEN}\n{{"name": "the function", "arguments": {{"argument": "value"}}}}\n{TOOL_CALL_CLOSE}\n'
        "Its result comes back as <tool_response>. Where no function helps, answer in words."
    )
