"""Parses the requests of OpenAI's Responses API."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

from umaserve.core.errors import Fault, RequestError
from umaserve.core.requests import Generate, Grammar, Syntax
from umaserve.dialects.grammars import ANY_OBJECT, only_one
from umaserve.dialects.parameters import (
    RequestLimits,
    sampling,
    template_kwargs,
    with_targets,
    with_thoughts,
    within_cap,
)
from umaserve.dialects.responses import schemas
from umaserve.dialects.responses.approvals import McpState, check_approved, mcp_state
from umaserve.dialects.responses.items import turns
from umaserve.dialects.responses.keeping import Continued, keeping
from umaserve.dialects.responses.kept import StoredResponse, TenantsEntries, TenantsKept
from umaserve.dialects.responses.mcp_schemas import ResponseMcpApprovalRequest
from umaserve.dialects.responses.tools import OfferedTool, chosen_tools, tools
from umaserve.dialects.sampling_schemas import DEFAULTS
from umaserve.dialects.server_tools import ServerToolsOf

log = logging.getLogger(__name__)

_SEALED, _LOGPROBS = "reasoning.encrypted_content", "message.output_text.logprobs"


@dataclass(frozen=True, slots=True)
class ResponseRequest:
    """A parsed body."""

    request: Generate
    stream: bool
    tools: Mapping[str, OfferedTool]
    """Tools that may be called, by their names for the model."""
    listed: Mapping[str, list[dict[str, Any]]]
    """The tools of each MCP server whose tools the client wasn't told yet."""
    approved: Sequence[ResponseMcpApprovalRequest]
    """Calls to make before the answer begins."""
    max_calls: int | None
    """The most calls of MCP servers' tools; ``None``: any number."""
    kept: StoredResponse | None
    """The response to keep for other requests; ``None``: nothing."""
    place: TenantsEntries[StoredResponse] | None
    """Where it is kept."""
    continued: Continued | None
    """The conversation that it goes on with, if any."""
    background: bool
    timed: bool
    """Whether each part of the output is to have the timings so far."""
    sealed: bool
    """Whether thoughts are wanted in ``encrypted_content`` as well."""
    shown: Mapping[str, Any]
    """Fields of the request that the response repeats."""


def response_request(
    given: schemas.ResponseRequest,
    n_bytes: int,
    limits: RequestLimits,
    new_id: str,
    kept: TenantsKept | None,
    unstored: TenantsEntries[StoredResponse] | None = None,
    server_tools: ServerToolsOf | None = None,
) -> ResponseRequest:
    """Read a body of ``POST /v1/responses``, of ``n_bytes``; raises ``RequestError``. Fields that it doesn't know are
    ignored. ``kept``, ``unstored``: as in ``keeping``; ``server_tools``: as in ``tools``."""
    _ = given.prompt
    # Never done without a word: a prompt that is too long is refused.
    _ = given.truncation, given.service_tier
    model, instructions = given.model or "", given.instructions or ""
    asked = keeping(given, kept, unstored)
    offered, shown_tools = tools(given, limits, server_tools)
    choice = chosen_tools(given, offered)
    text_format, shown_text = _text(given)
    chosen = sampling(given, DEFAULTS)
    # The format is that of answers in words.
    bound = only_one((chosen.grammar, None if choice.must_call else text_format))
    if choice.must_call and bound is not None:
        problem = f"expected no required call where {bound.field} is given, got both"
        raise RequestError(Fault.BAD_REQUEST, given.name("tool_choice"), problem)
    kwargs, thinks, shown_reasoning = _reasoning(given)
    include, top = given.include or (), given.top_logprobs or 0
    items = asked.whole
    conversation = turns(instructions, items, limits)
    mcp = mcp_state(items)
    check_approved(mcp.approved, offered)
    request = Generate(
        new_id,
        conversation,
        max_tokens=within_cap(given.max_output_tokens, limits),
        sampling=replace(chosen, grammar=bound),
        stop=given.stop or (),
        logprobs=top if _LOGPROBS in include else None,
        tools=tuple(one.tool for one in choice.kept),
        must_call=choice.must_call,
        parallel_calls=choice.several,
        enable_thinking=thinks,
        chat_template_kwargs=kwargs,
        cache_prompt=given.cache_prompt,
        lora=given.lora,
        model=model,
        wants_progress=given.return_progress and given.stream,
    )
    request = with_targets(with_thoughts(request, given, split=True), given)
    own = asked.own(new_id, n_bytes)
    shown = {
        **asked.shown(own),
        "frequency_penalty": chosen.frequency_penalty,
        "instructions": instructions or None,
        "max_output_tokens": given.max_output_tokens,
        "max_tool_calls": given.max_tool_calls,
        "metadata": given.metadata or {},
        "model": model,
        "parallel_tool_calls": choice.several,
        "presence_penalty": chosen.presence_penalty,
        "prompt_cache_key": given.prompt_cache_key,
        "reasoning": shown_reasoning,
        "safety_identifier": given.safety_identifier,
        "service_tier": "default",
        "temperature": chosen.temperature,
        "text": shown_text,
        "tool_choice": choice.shown,
        "tools": shown_tools,
        "top_logprobs": top,
        "top_p": chosen.top_p,
        "truncation": "disabled",
        "user": given.user,
    }
    called = {one.tool.name: one for one in choice.kept}
    return ResponseRequest(
        request,
        given.stream,
        called,
        _listed(offered, mcp),
        mcp.approved,
        given.max_tool_calls,
        own,
        asked.place,
        asked.continued(new_id),
        asked.background,
        timed=given.timings_per_token,
        sealed=_SEALED in include,
        shown=shown,
    )


def _listed(offered: Iterable[OfferedTool], mcp: McpState) -> Mapping[str, list[dict[str, Any]]]:
    listed: dict[str, list[dict[str, Any]]] = {}
    for one in offered:
        if one.server is not None and one.server not in mcp.listed:
            about = {"name": one.name, "description": one.tool.description, "annotations": None}
            shown = {**about, "input_schema": orjson.Fragment(one.tool.parameters)}
            listed.setdefault(one.server, []).append(shown)
    return listed


def _text(given: schemas.ResponseOptions) -> tuple[Grammar | None, dict[str, Any]]:
    """The grammar that ``text.format`` asks for, and what a response repeats of ``text``."""
    text = given.text or schemas.ResponseTextOptions({}, "text.")
    rest = {} if text.verbosity is None else {"verbosity": text.verbosity}
    wanted = text.format
    if isinstance(wanted, schemas.ResponseSchemaFormat):
        bound, name = wanted.schema_, wanted.name_ or "answer"
        schema = orjson.Fragment(bound.text)
        return bound, {"format": {"type": wanted.type, "name": name, "schema": schema, "strict": wanted.strict}, **rest}
    kind = "text" if wanted is None else wanted.type
    any_object = Grammar(Syntax.JSON_SCHEMA, ANY_OBJECT, text.name("format")) if kind == "json_object" else None
    return any_object, {"format": {"type": kind}, **rest}


def _reasoning(given: schemas.ResponseOptions) -> tuple[dict[str, object], bool | None, dict[str, Any]]:
    """The chat template's variables, with ``reasoning_effort`` among them; whether the model is to think; and what a
    response repeats of ``reasoning``."""
    kwargs, thinks = template_kwargs(given)
    reasoning = given.reasoning or schemas.ResponseReasoningOptions({})
    effort = reasoning.effort
    _ = reasoning.summary, reasoning.generate_summary  # There is none: the thoughts themselves are told.
    shown = {"effort": effort, "summary": None}
    if effort == "none":
        return kwargs, False, shown
    return kwargs | ({} if effort is None else {"reasoning_effort": effort}), thinks, shown
