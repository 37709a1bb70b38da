"""Tool calls as text in the form in which a model writes them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Literal

from umaserve.core.requests import ToolCall
from umaserve.core.tool_call_format import CDATA_CLOSE, CDATA_OPEN, ParameterForm, Slot, ToolForm
from umaserve.wire.cut_json import whole_members

JSON_TYPES: dict[type, str] = {
    str: "string",
    bool: "boolean",
    int: "number",
    float: "number",
    dict: "object",
    list: "array",
}


def written(form: ToolForm, calls: Sequence[ToolCall]) -> str:
    """``calls`` as the model writes them."""
    each = [_written_call(form, call, index) for index, call in enumerate(calls)]
    between = "\n" if form.between is None else form.between
    return form.opens + between.join(each) + form.closes


def _written_call(form: ToolForm, call: ToolCall, index: int) -> str:
    arguments = whole_members(call.arguments) if call.arguments.lstrip().startswith("{") else call.arguments
    if form.parameters is None or isinstance(arguments, str):
        written_arguments = json.dumps(arguments, ensure_ascii=False)
    else:
        written_arguments = written_parameters(form.parameters, arguments)
    texts = {
        Slot.NAME: call.name,
        Slot.ID: call.id,
        Slot.INDEX: str(form.first_index + index),
        Slot.ARGUMENTS: written_arguments,
    }
    return "".join(texts[part] if isinstance(part, Slot) else part for part in form.call)


def written_parameters(form: ParameterForm, arguments: dict[str, Any]) -> str:
    """A call's arguments, apart from what is around all of them. Elements can't be null, which is left out."""
    before = dict(form.before)
    return form.between.join(
        f"{form.opens}{key}{before[JSON_TYPES.get(type(value), 'object')]}"
        f"{_written_value(form, value)}{form.closing(key)}"
        for key, value in arguments.items()
        if value is not None or form.values != "elements"
    )


def _written_value(form: ParameterForm, value: Any) -> str:
    if isinstance(value, str):
        if form.cdata and "\n" in value:
            value = CDATA_OPEN + value + CDATA_CLOSE
        return f"{form.quote}{value}{form.quote}"
    if form.values != "elements":
        return VALUES[form.values](value, form.quote)
    if isinstance(value, list):
        return "".join(written_parameters(form, {"item": item}) for item in value)
    return written_parameters(form, value) if isinstance(value, dict) else json.dumps(value)


def _bare(value: Any, quote: str) -> str:
    match value:
        case str():
            return f"{quote}{value}{quote}"
        case dict():
            return "{" + ",".join(f"{key}:{_bare(item, quote)}" for key, item in value.items()) + "}"
        case list():
            return "[" + ",".join(_bare(item, quote) for item in value) + "]"
        case _:
            return json.dumps(value)


VALUES: dict[Literal["json", "python", "bare"], Callable[[Any, str], str]] = {
    "json": lambda value, _quote: json.dumps(value, ensure_ascii=False),
    "python": lambda value, _quote: repr(value),
    "bare": _bare,
}
