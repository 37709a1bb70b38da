"""Parses the requests of OpenAI's Responses API."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

from umaserve.dialects.grammars import ANY_OBJECT, only_one, schema
from umaserve.dialects.openai.requests import DEFAULTS, MAX_TOP_LOGPROBS, REASONING_EFFORTS
from umaserve.dialects.parameters import (
    MAX_ID_BYTES,
    RequestLimits,
    json_body,
    lora,
    max_tokens,
    sampling,
    stops,
    template_kwargs,
    with_targets,
    with_thoughts,
)
from umaserve.dialects.responses.items import MAX_ITEMS, turns
from umaserve.dialects.responses.kept import MAX_BYTES, Kept, TenantsResponses
from umaserve.dialects.responses.tools import OfferedTool, chosen_tools, tools
from umaserve.errors import Fault, RequestError
from umaserve.messages import Generate, Grammar, Sampling, Syntax
from umaserve.wire.fields import Fields, array, bad_request, out_of_range, string
from umaserve.wire.long_texts import as_string

log = logging.getLogger(__name__)

MAX_METADATA, MAX_KEY_BYTES, MAX_VALUE_BYTES = 16, 64, 512
MAX_INCLUDES = 16
_SEALED, _LOGPROBS = "reasoning.encrypted_content", "message.output_text.logprobs"
_SUMMARIES = ("auto", "concise", "detailed")
_VERBOSITY = ("low", "medium", "high")
_TIERS = ("auto", "default", "flex", "priority", "scale")
_ANEW = "a relay gives each request a worker anew, which knows no others"
_NOT_KEPT = {
    "conversation": "this server keeps no conversations: use previous_response_id, or send all items",
    "prompt": "this server keeps no prompts: use instructions and input",
}


@dataclass(frozen=True, slots=True)
class ResponseRequest:
    """A parsed body."""

    request: Generate
    stream: bool
    tools: Mapping[str, OfferedTool]
    """Those that may be called, by their names for the model."""
    kept: Kept | None
    """What is to be kept for other requests; ``None``: nothing."""
    background: bool
    sealed: bool
    """Whether thoughts are wanted in ``encrypted_content`` as well."""
    shown: Mapping[str, Any]
    """What the response repeats of the request."""


def response_request(body: bytes, limits: RequestLimits, new_id: str, kept: TenantsResponses | None) -> ResponseRequest:
    """Parse a body of ``POST /v1/responses``; raises ``RequestError``. Fields that it doesn't know are ignored.
    ``kept``: the caller's responses, if any are kept."""
    fields = json_body(body)
    for key, why in _NOT_KEPT.items():
        if fields.values.get(key) is not None:
            raise RequestError(Fault.BAD_REQUEST, fields.name(key), f"expected to be absent: {why}")
    model = fields.string("model", max_bytes=MAX_ID_BYTES, empty=True)  # Any name means the one that is loaded.
    instructions = _instructions(fields)
    previous, earlier = _previous(fields, kept)
    items = input_items(fields)
    store, background = _keeping(fields, kept)
    offered, shown_tools = tools(fields, limits)
    choice = chosen_tools(fields, offered)
    text_format, shown_text = _text(fields)
    # The format is that of answers in words.
    chosen = _sampling(fields, None if choice.must_call else text_format)
    if choice.must_call and chosen.grammar is not None:
        problem = f"expected no required call where {chosen.grammar.field} is given, got both"
        raise RequestError(Fault.BAD_REQUEST, fields.name("tool_choice"), problem)
    kwargs, thinks, shown_reasoning = _reasoning(fields)
    include = fields.strings("include", max_items=MAX_INCLUDES, max_bytes=MAX_ID_BYTES)
    top = fields.integer("top_logprobs", 0, MAX_TOP_LOGPROBS)
    wanted = fields.integer("max_output_tokens", 1)
    request = Generate(
        new_id,
        turns(instructions, [*map(_earlier, earlier), *items], limits),
        max_tokens=max_tokens(fields, "max_output_tokens", limits),
        sampling=chosen,
        stop=stops(fields),
        logprobs=top or 0 if _LOGPROBS in include else None,
        tools=tuple(one.tool for one in choice.kept),
        must_call=choice.must_call,
        parallel_calls=choice.several,
        enable_thinking=thinks,
        chat_template_kwargs=kwargs,
        cache_prompt=fields.boolean("cache_prompt", True),
        lora=lora(fields),
    )
    request = with_targets(with_thoughts(request, fields, split=True), fields)
    # Never done without a word: a prompt that is too long is refused.
    fields.one_of("truncation", ("auto", "disabled"))
    fields.one_of("service_tier", _TIERS)
    own = _own(new_id, earlier, items, len(body)) if store else None
    if background and own is None:
        problem = f"expected at most {MAX_BYTES} bytes with all items before where background is true, got more"
        raise RequestError(Fault.PROMPT_TOO_LARGE, fields.name("input"), problem)
    shown = {
        "background": background,
        "previous_response_id": previous,
        "store": own is not None,
        "instructions": instructions or None,
        "max_output_tokens": wanted,
        "max_tool_calls": fields.integer("max_tool_calls", 1),
        "metadata": _metadata(fields),
        "model": model or "",
        "parallel_tool_calls": choice.several,
        "prompt_cache_key": fields.string("prompt_cache_key", max_bytes=MAX_VALUE_BYTES, empty=True),
        "reasoning": shown_reasoning,
        "safety_identifier": fields.string("safety_identifier", max_bytes=MAX_VALUE_BYTES, empty=True),
        "service_tier": "default",
        "temperature": chosen.temperature,
        "text": shown_text,
        "tool_choice": choice.shown,
        "tools": shown_tools,
        "top_logprobs": top or 0,
        "top_p": chosen.top_p,
        "truncation": "disabled",
        "user": fields.string("user", max_bytes=MAX_VALUE_BYTES, empty=True),
    }
    called = {one.tool.name: one for one in choice.kept}
    return ResponseRequest(request, fields.boolean("stream", False), called, own, background, _SEALED in include, shown)


def input_items(fields: Fields) -> Sequence[Fields]:
    """The items of ``input``; a text is one of the user."""
    value, path = fields.values.get("input"), fields.name("input")
    if isinstance(value, str | memoryview):
        return [Fields({"role": "user", "content": string(value, path, empty=True)}, f"{path}.")]
    if not isinstance(value, list):
        raise bad_request(path, "a string or an array of items", value)
    items = array(value, path, 1, MAX_ITEMS, "items")
    return [Fields.of(item, f"{path}[{i}]") for i, item in enumerate(items)]


def _previous(fields: Fields, kept: TenantsResponses | None) -> tuple[str | None, tuple[bytes, ...]]:
    """The id of the response that this one follows, and all items up to its end."""
    key = "previous_response_id"
    previous = fields.string(key, max_bytes=MAX_ID_BYTES)
    if previous is None:
        return None, ()
    if kept is None:
        raise RequestError(Fault.BAD_REQUEST, fields.name(key), f"expected to be absent: {_ANEW}; send all items")
    found = kept.get(previous, fields.name(key))
    if found.cancel is not None:
        problem = "expected a response that has ended, got one that goes on in the background"
        raise RequestError(Fault.BAD_REQUEST, fields.name(key), problem)
    return previous, (*found.input, *found.output)


def _keeping(fields: Fields, kept: TenantsResponses | None) -> tuple[bool, bool]:
    """Whether to keep the response, and whether it goes on without its client."""
    store, background = fields.boolean("store", True), fields.boolean("background", False)
    if background and kept is None:
        raise RequestError(Fault.BAD_REQUEST, fields.name("background"), f"expected false: {_ANEW}")
    if background and not store:
        raise RequestError(Fault.BAD_REQUEST, fields.name("store"), "expected true where background is, got false")
    if background and fields.boolean("stream", False):
        problem = "expected false where background is true, got true: fetch the response until it has ended"
        raise RequestError(Fault.BAD_REQUEST, fields.name("stream"), problem)
    return store and kept is not None, background


def _earlier(item: bytes) -> Fields:
    return Fields(orjson.loads(item), "previous_response_id.")


def _own(new_id: str, earlier: tuple[bytes, ...], items: Sequence[Fields], n_bytes: int) -> Kept | None:
    """What is kept of a body of ``n_bytes``; ``None``: it is too large for that."""
    if n_bytes + sum(map(len, earlier)) > MAX_BYTES:
        log.warning("response %s: not kept, since its input is larger than %d bytes", new_id, MAX_BYTES)
        return None
    unique = new_id.removeprefix("resp_")
    return Kept(new_id, (*earlier, *(_kept_item(item, f"{unique}i{i:02x}") for i, item in enumerate(items))))


def _kept_item(item: Fields, unique: str) -> bytes:
    """An item as JSON, with what clients need that list items: its type, its id, and parts for its text."""
    kind = item.values.get("type") or "message"
    values = {"id": f"item_{unique}", **item.values, "type": kind}
    if kind == "message":
        values = {"status": "completed", **values}
        if isinstance(text := values["content"], str | memoryview):
            part: dict[str, Any] = {"type": "input_text", "text": text}
            if values["role"] == "assistant":
                part = {"type": "output_text", "text": text, "annotations": []}
            values["content"] = [part]
    try:
        return orjson.dumps(values, default=as_string)
    except orjson.JSONEncodeError:
        # orjson reads deeper nesting than it writes.
        raise out_of_range(item.name("type"), "an item nested less than 200 deep", "a deeper one") from None


def _instructions(fields: Fields) -> str:
    value = fields.values.get("instructions")
    return "" if value is None else string(value, fields.name("instructions"), empty=True)


def _sampling(fields: Fields, text_format: Grammar | None) -> Sampling:
    chosen = sampling(fields, DEFAULTS)
    return replace(chosen, grammar=only_one(one for one in (chosen.grammar, text_format) if one is not None))


def _text(fields: Fields) -> tuple[Grammar | None, dict[str, Any]]:
    """The grammar that ``text.format`` asks for, and what a response repeats of ``text``."""
    text = fields.object("text") or Fields({}, "text.")
    verbosity = text.one_of("verbosity", _VERBOSITY)
    rest = {} if verbosity is None else {"verbosity": verbosity}
    wanted = text.object("format") or Fields({"type": "text"})
    kind = wanted.required_one_of("type", ("text", "json_object", "json_schema"))
    if kind == "text":
        return None, {"format": {"type": kind}, **rest}
    if kind == "json_object":
        return Grammar(Syntax.JSON_SCHEMA, ANY_OBJECT, text.name("format")), {"format": {"type": kind}, **rest}
    given = schema(wanted, "schema")
    if given is None:
        raise bad_request(wanted.name("schema"), "an object", None)
    name = wanted.string("name", max_bytes=MAX_KEY_BYTES) or "answer"
    strict = wanted.boolean("strict", True)  # Not used further: all answers follow their schema.
    shown = {"type": kind, "name": name, "schema": orjson.Fragment(given.text), "strict": strict}
    return given, {"format": shown, **rest}


def _reasoning(fields: Fields) -> tuple[dict[str, object], bool | None, dict[str, Any]]:
    """The chat template's variables, with ``reasoning_effort`` among them; whether the model is to think; and what a
    response repeats of ``reasoning``."""
    kwargs, thinks = template_kwargs(fields)
    reasoning = fields.object("reasoning") or Fields({}, "reasoning.")
    effort = reasoning.one_of("effort", REASONING_EFFORTS)
    for key in ("summary", "generate_summary"):
        reasoning.one_of(key, _SUMMARIES)  # There is none: the thoughts themselves are told.
    shown = {"effort": effort, "summary": None}
    if effort == "none":
        return kwargs, False, shown
    return kwargs | ({} if effort is None else {"reasoning_effort": effort}), thinks, shown


def _metadata(fields: Fields) -> dict[str, str]:
    given = fields.object("metadata")
    if given is None:
        return {}
    if len(given.values) > MAX_METADATA:
        raise out_of_range(fields.name("metadata"), f"at most {MAX_METADATA} pairs", len(given.values))
    for key, value in given.values.items():
        string(key, fields.name("metadata"), max_bytes=MAX_KEY_BYTES)
        string(value, given.name(key), max_bytes=MAX_VALUE_BYTES, empty=True)
    return dict(given.values)
