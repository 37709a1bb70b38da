"""The model's own chat template, rendered in a sandbox."""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from typing import Any, NoReturn

import jinja2
import jinja2.meta
from jinja2.sandbox import ImmutableSandboxedEnvironment

from umaserve.engine.tools import arguments, in_words, signatures
from umaserve.errors import Fault, RequestError
from umaserve.messages import TOOL_CALL_OPEN, ChatTurn, Tool

MAX_GROWTH_BYTES = 256 * 1024
"""How much longer than twice the text of turns and tools a rendered prompt may be."""


class ChatTemplate:
    """The jinja2 template from the GGUF file; requests can't supply one."""

    def __init__(self, source: str, bos: str, eos: str) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
        self._template = environment.from_string(source)
        # A template with another format of tool calls would make the model write calls that we don't parse.
        names = jinja2.meta.find_undeclared_variables(environment.parse(source))
        self._knows_tools = "tools" in names and TOOL_CALL_OPEN in source
        self._tokens = {"bos_token": bos, "eos_token": eos}

    def render(
        self,
        turns: Sequence[ChatTurn],
        tools: Sequence[Tool] = (),
        enable_thinking: bool | None = None,
        *,
        continue_final_message: bool | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """The prompt for ``turns``; raises ``RequestError``.

        Where the template knows no ``tools``, or another format of tool calls, the tools and the calls in ``turns``
        are written as plain text. ``enable_thinking`` is a variable that some templates use; ``None`` leaves it
        undefined. The last two arguments are as in ``messages.Generate``.
        """
        if _is_continued(turns, continue_final_message):
            return self._render(turns[:-1], tools, enable_thinking, open_answer=True) + turns[-1].content
        return self._render(turns, tools, enable_thinking, open_answer=add_generation_prompt)

    def _render(
        self, turns: Sequence[ChatTurn], tools: Sequence[Tool], enable_thinking: bool | None, *, open_answer: bool
    ) -> str:
        limit = _size(turns, tools) * 2 + MAX_GROWTH_BYTES
        if not self._knows_tools:
            turns, tools = in_words(turns, tools), ()
        values = {
            "messages": [_message(turn) for turn in turns],
            "tools": signatures(tools) or None,
            "add_generation_prompt": open_answer,
            **self._tokens,
        }
        if enable_thinking is not None:
            values["enable_thinking"] = enable_thinking
        parts, length = [], 0
        try:
            for part in self._template.generate(values):
                parts.append(part)
                length += len(part)
                if length > limit:
                    raise RequestError(Fault.BAD_REQUEST, "chat", "the model's chat template made too much text")
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, ArithmeticError, RecursionError) as error:
            # Templates raise on purpose, and raise Python's errors on turns that their author didn't expect.
            raise RequestError(Fault.BAD_REQUEST, "chat", f"the model's chat template rejected it: {error}") from None
        return "".join(parts)


def _is_continued(turns: Sequence[ChatTurn], wanted: bool | None) -> bool:
    """Whether the answer continues the last turn; raises ``RequestError`` where that is wanted but impossible."""
    by_assistant = [turn.role == "assistant" for turn in turns[-2:]]
    if not by_assistant[-1]:
        if wanted:
            problem = f"expected the last message to have the role assistant, got {turns[-1].role}"
            raise RequestError(Fault.BAD_REQUEST, "continue_final_message", f"{problem}")
        return False
    if wanted is False or (turns[-1].tool_calls and wanted is None):
        return False
    if by_assistant == [True, True]:
        raise RequestError(Fault.BAD_REQUEST, "messages", "expected at most one assistant message at the end, got two")
    if turns[-1].tool_calls:
        problem = "expected a last message without tool calls, got some"
        raise RequestError(Fault.BAD_REQUEST, "continue_final_message", f"{problem}")
    return True


def _size(turns: Sequence[ChatTurn], tools: Sequence[Tool]) -> int:
    size = sum(len(tool.name) + len(tool.description) + len(tool.parameters) for tool in tools)
    for turn in turns:
        size += len(turn.content) + sum(len(call.name) + len(call.arguments) for call in turn.tool_calls)
    return size


def _message(turn: ChatTurn) -> dict[str, Any]:
    message: dict[str, Any] = {"role": turn.role, "content": turn.content}
    if turn.tool_calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments(call)}}
            for call in turn.tool_calls
        ]
    if turn.tool_call_id is not None:
        message["tool_call_id"] = turn.tool_call_id
    return message


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _to_json(value: Any, indent: int | None = None) -> str:
    # jinja2's own filter escapes HTML characters, which models were not trained on.
    return json.dumps(value, ensure_ascii=False, indent=indent)
