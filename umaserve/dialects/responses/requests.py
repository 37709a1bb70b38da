"""Parses the requests of OpenAI's Responses API."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import orjson

from umaserve.core.errors import Fault, RequestError
from umaserve.core.requests import Generate, Grammar, Sampling, Syntax
from umaserve.dialects.grammars import ANY_OBJECT, only_one, schema
from umaserve.dialects.openai.schemas import MAX_TOP_LOGPROBS, REASONING_EFFORTS
from umaserve.dialects.parameters import (
    MAX_ID_BYTES,
    RequestLimits,
    json_body,
    lora,
    max_tokens,
    model_name,
    sampling,
    stops,
    template_kwargs,
    with_targets,
    with_thoughts,
)
from umaserve.dialects.responses.items import turns
from umaserve.dialects.responses.keeping import keeping
from umaserve.dialects.responses.kept import Kept, TenantsResponses
from umaserve.dialects.responses.tools import OfferedTool, chosen_tools, tools
from umaserve.dialects.schemas import DEFAULTS
from umaserve.wire.fields import Fields, bad_request, out_of_range, string

log = logging.getLogger(__name__)

MAX_METADATA, MAX_KEY_BYTES, MAX_VALUE_BYTES = 16, 64, 512
MAX_INCLUDES = 16
_SEALED, _LOGPROBS = "reasoning.encrypted_content", "message.output_text.logprobs"
_SUMMARIES = ("auto", "concise", "detailed")
_VERBOSITY = ("low", "medium", "high")
_TIERS = ("auto", "default", "flex", "priority", "scale")
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
    """Tools that may be called, by their names for the model."""
    kept: Kept | None
    """The response to keep for other requests; ``None``: nothing."""
    background: bool
    sealed: bool
    """Whether thoughts are wanted in ``encrypted_content`` as well."""
    shown: Mapping[str, Any]
    """Fields of the request that the response repeats."""


def response_request(body: bytes, limits: RequestLimits, new_id: str, kept: TenantsResponses | None) -> ResponseRequest:
    """Parse a body of ``POST /v1/responses``; raises ``RequestError``. Fields that it doesn't know are ignored.
    ``kept``: the caller's responses, if any are kept."""
    fields = json_body(body)
    for key, why in _NOT_KEPT.items():
        if fields.values.get(key) is not None:
            raise RequestError(Fault.BAD_REQUEST, fields.name(key), f"expected to be absent: {why}")
    model = model_name(fields)
    instructions = _instructions(fields)
    asked = keeping(fields, kept)
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
        turns(instructions, asked.whole, limits),
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
        model=model,
    )
    request = with_targets(with_thoughts(request, fields, split=True), fields)
    # Never done without a word: a prompt that is too long is refused.
    fields.one_of("truncation", ("auto", "disabled"))
    fields.one_of("service_tier", _TIERS)
    own = asked.own(new_id, len(body))
    shown = {
        **asked.shown(own),
        "instructions": instructions or None,
        "max_output_tokens": wanted,
        "max_tool_calls": fields.integer("max_tool_calls", 1),
        "metadata": _metadata(fields),
        "model": model,
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
    stream, sealed = fields.boolean("stream", False), _SEALED in include
    return ResponseRequest(request, stream, called, own, asked.background, sealed, shown)


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
