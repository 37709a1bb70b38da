"""Tools in the form that chat templates take, and as plain text for templates without tools."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from umaserve.chat_format.written_calls import written
from umaserve.core.requests import ChatTurn, Tool, ToolCall
from umaserve.core.tool_call_format import ToolForm


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


def with_calls_as_text(turns: Sequence[ChatTurn], form: ToolForm, *, results: bool) -> list[ChatTurn]:
    """``turns`` with the calls as text in ``form``, for a template without a place for them. ``results``: those of
    consecutive calls are text too, in one user's turn."""
    told: list[ChatTurn] = []
    before = ""
    for turn in turns:
        if turn.role == "tool" and results:
            response = f"<tool_response>\n{turn.content}\n</tool_response>"
            if before == "tool":
                response = f"{told.pop().content}\n{response}"
            told.append(ChatTurn("user", response))
        elif turn.tool_calls:
            content = "\n".join(filter(None, [turn.content, written(form, turn.tool_calls)]))
            told.append(replace(turn, content=content, tool_calls=()))
        else:
            told.append(turn)
        before = turn.role
    return told


def with_instructions(turns: Sequence[ChatTurn], tools: Sequence[Tool], form: ToolForm) -> list[ChatTurn]:
    """``turns`` with ``tools`` described in the system message, for a template without a place for them."""
    if turns and turns[0].role == "system":
        return [replace(turns[0], content=f"{turns[0].content}\n\n{_instructions(tools, form)}"), *turns[1:]]
    return [ChatTurn("system", _instructions(tools, form)), *turns]


def _instructions(tools: Sequence[Tool], form: ToolForm) -> str:
    offered = "\n".join(json.dumps(signature, ensure_ascii=False) for signature in signatures(tools))
    example = written(form, [ToolCall("", "the function", '{"argument": "value"}')])
    return (
        "You can call the functions whose signatures are listed here, one JSON object a line:\n"
        f"<tools>\n{offered}\n</tools>\n\n"
        f"To call one, write its name and its arguments in this form:\n{example}\n"
        "Its result comes back as <tool_response>. Where no function helps, answer in words."
    )
