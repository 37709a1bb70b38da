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
"""What a template may add to the text of the turns and tools."""


class ChatTemplate:
    """A jinja2 template out of the GGUF; a request never brings its own."""

    def __init__(self, source: str, bos: str, eos: str) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
        self._template = environment.from_string(source)
        # One that wants calls written otherwise would have the model write what nobody here reads.
        names = jinja2.meta.find_undeclared_variables(environment.parse(source))
        self._knows_tools = "tools" in names and TOOL_CALL_OPEN in source
        self._tokens = {"bos_token": bos, "eos_token": eos}

    def render(self, turns: Sequence[ChatTurn], tools: Sequence[Tool] = (), enable_thinking: bool | None = None) -> str:
        """The prompt for ``turns``, open for the assistant's answer; raises ``RequestError``.

        A template that knows no ``tools``, or another form of calls, has them, and the calls in ``turns``, told in
        words. ``enable_thinking`` is a variable that some know; ``None`` leaves it undefined.
        """
        limit = _size(turns, tools) * 2 + MAX_GROWTH_BYTES
        if not self._knows_tools:
            turns, tools = in_words(turns, tools), ()
        values = {
            "messages": [_message(turn) for turn in turns],
            "tools": signatures(tools) or None,
            "add_generation_prompt": True,
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
                    raise RequestError(Fault.BAD_REQUEST, "chat: the model's template made too much text of it")
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, ArithmeticError, RecursionError) as error:
            # A template raises of its own accord, and fails as Python does on turns that its author didn't think of.
            raise RequestError(Fault.BAD_REQUEST, f"chat: the model's template refused it: {error}") from None
        return "".join(parts)


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
    # jinja2's own filter escapes for HTML, which a model was not trained on.
    return json.dumps(value, ensure_ascii=False, indent=indent)
