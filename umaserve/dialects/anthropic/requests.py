"""Parses the requests of Anthropic's Messages API."""

from __future__ import annotations

from dataclasses import dataclass, replace

from umaserve.core.errors import Fault, RequestError
from umaserve.core.queries import CountPrompt
from umaserve.core.requests import Generate, Grammar, Sampling
from umaserve.dialects import grammars
from umaserve.dialects.anthropic.tools import chosen_tools, tools
from umaserve.dialects.anthropic.turns import turns
from umaserve.dialects.parameters import (
    MAX_TOKEN_ID,
    RequestLimits,
    json_body,
    lora,
    max_tokens,
    model_name,
    sampling,
    stops,
    with_targets,
)
from umaserve.dialects.schemas import MAX_STOP_BYTES, MAX_STOPS
from umaserve.wire.fields import Fields, bad_request

DEFAULTS = Sampling(temperature=1.0, top_p=1.0)
"""Anthropic documents these two; the other defaults are this server's own."""

MAX_USER_ID_BYTES = 4096
EFFORTS = ("low", "medium", "high", "xhigh", "max")


@dataclass(frozen=True, slots=True)
class MessageRequest:
    """A parsed body."""

    request: Generate
    stream: bool


def message_request(body: bytes, limits: RequestLimits, new_id: str) -> MessageRequest:
    """Parse a body of ``POST /v1/messages``; raises ``RequestError``. Fields that it doesn't know are ignored."""
    fields = json_body(body)
    asked = conversation(fields, limits, new_id)
    asked = replace(
        asked,
        max_tokens=max_tokens(fields, "max_tokens", limits),
        sampling=_sampling(fields, must_call=asked.must_call),
        stop=(*fields.strings("stop_sequences", max_items=MAX_STOPS, max_bytes=MAX_STOP_BYTES), *stops(fields)),
        cache_prompt=fields.boolean("cache_prompt", True),
        lora=lora(fields),
    )
    if asked.must_call and asked.sampling.grammar is not None:
        problem = f'expected "auto" or "none" where {asked.sampling.grammar.field} is given, got a required call'
        raise RequestError(Fault.BAD_REQUEST, "tool_choice.type", problem)
    _check_unused(fields)
    return MessageRequest(with_targets(asked, fields), fields.boolean("stream", False))


def count_request(body: bytes, limits: RequestLimits) -> CountPrompt:
    """Parse a body of ``POST /v1/messages/count_tokens``; raises ``RequestError``."""
    # What is counted is not asked for: nothing of it is kept for later.
    return CountPrompt(replace(conversation(json_body(body), limits, ""), cache_prompt=False))


def conversation(fields: Fields, limits: RequestLimits, new_id: str) -> Generate:
    """The part of a request that makes its prompt."""
    thinks, budget = _thinking(fields)
    offered, must_call, several = chosen_tools(fields, tools(fields, limits))
    return Generate(
        new_id,
        turns(fields, limits),
        tools=offered,
        must_call=must_call,
        parallel_calls=several,
        enable_thinking=thinks,
        splits_thoughts=True,
        thought_budget=budget,
        chat_template_kwargs=_template_kwargs(fields),
        model=model_name(fields),
    )


def _thinking(fields: Fields) -> tuple[bool, int | None]:
    """Whether the model is to think, which it isn't unless it is asked to, as in Anthropic's API; and its budget."""
    thinking = fields.object("thinking")
    if thinking is None:
        return False, None
    thinks = thinking.required_choice("type", {"enabled": True, "adaptive": True, "disabled": False})
    budget = thinking.integer("budget_tokens", 1, MAX_TOKEN_ID)
    return thinks, budget if thinks else None


def _template_kwargs(fields: Fields) -> dict[str, object]:
    config = fields.object("output_config")
    effort = None if config is None else config.one_of("effort", EFFORTS)
    return {} if effort is None else {"reasoning_effort": effort}


def _sampling(fields: Fields, *, must_call: bool) -> Sampling:
    """Sampling with the grammar of answers in words: ``output_config.format``, or by its earlier name
    ``output_format``."""
    chosen = sampling(fields, DEFAULTS)
    config = fields.object("output_config") or Fields({})
    formats = (config.object("format"), fields.object("output_format"))
    schemas = [_schema(wanted) for wanted in formats if wanted is not None]
    if must_call:
        return chosen
    given = schemas if chosen.grammar is None else [chosen.grammar, *schemas]
    return replace(chosen, grammar=grammars.only_one(given))


def _schema(wanted: Fields) -> Grammar:
    wanted.required_one_of("type", ("json_schema",))
    schema = grammars.schema(wanted, "schema")
    if schema is None:
        raise bad_request(wanted.name("schema"), "an object", None)
    return schema


def _check_unused(fields: Fields) -> None:
    """Check fields that make no difference here.

    ``metadata.user_id`` doesn't part tenants: agents put each conversation's id into it, and conversations of one key
    share the long prompts that all begin with.
    """
    metadata = fields.object("metadata")
    if metadata is not None:
        metadata.string("user_id", max_bytes=MAX_USER_ID_BYTES, empty=True)
    fields.one_of("service_tier", ("auto", "standard_only"))
