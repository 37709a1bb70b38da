"""Parses the requests of Anthropic's Messages API."""

from __future__ import annotations

from dataclasses import dataclass, replace

from umaserve.core.errors import Fault, RequestError
from umaserve.core.queries import CountPrompt
from umaserve.core.requests import Generate, Sampling
from umaserve.dialects import grammars
from umaserve.dialects.anthropic import schemas
from umaserve.dialects.anthropic.tools import chosen_tools, tools
from umaserve.dialects.anthropic.turns import turns
from umaserve.dialects.parameters import RequestLimits, json_body, sampling, with_targets, within_cap
from umaserve.dialects.sampling_schemas import DEFAULTS


@dataclass(frozen=True, slots=True)
class MessageRequest:
    """A parsed body."""

    request: Generate
    stream: bool


def message_request(body: bytes, limits: RequestLimits, new_id: str) -> MessageRequest:
    """Parse a body of ``POST /v1/messages``; raises ``RequestError``. Fields that it doesn't know are ignored."""
    given = schemas.MessageRequest.view(json_body(body))
    asked = conversation(given, limits, new_id)
    asked = replace(
        asked,
        max_tokens=within_cap(given.max_tokens, limits),
        sampling=_sampling(given, must_call=asked.must_call),
        stop=(*(given.stop_sequences or ()), *(given.stop or ())),
        cache_prompt=given.cache_prompt,
        lora=given.lora,
    )
    if asked.must_call and asked.sampling.grammar is not None:
        problem = f'expected "auto" or "none" where {asked.sampling.grammar.field} is given, got a required call'
        raise RequestError(Fault.BAD_REQUEST, "tool_choice.type", problem)
    _check_unused(given)
    return MessageRequest(with_targets(asked, given), given.stream)


def count_request(body: bytes, limits: RequestLimits) -> CountPrompt:
    """Parse a body of ``POST /v1/messages/count_tokens``; raises ``RequestError``."""
    given = schemas.AnthropicConversation.view(json_body(body))
    # What is counted is not asked for: nothing of it is kept for later.
    return CountPrompt(replace(conversation(given, limits, ""), cache_prompt=False))


def conversation(given: schemas.AnthropicConversation, limits: RequestLimits, new_id: str) -> Generate:
    """The part of a request that makes its prompt."""
    thinks, budget = _thinking(given)
    offered, must_call, several = chosen_tools(given, tools(given, limits))
    effort = given.output_config and given.output_config.effort
    return Generate(
        new_id,
        turns(given, limits),
        tools=offered,
        must_call=must_call,
        parallel_calls=several,
        enable_thinking=thinks,
        splits_thoughts=True,
        thought_budget=budget,
        chat_template_kwargs={} if effort is None else {"reasoning_effort": effort},
        model=given.model or "",
    )


def _thinking(given: schemas.AnthropicConversation) -> tuple[bool, int | None]:
    """Whether the model is to think, which it isn't unless it is asked to, as in Anthropic's API; and its budget."""
    thinking = given.thinking
    if thinking is None:
        return False, None
    thinks, budget = thinking.type != "disabled", thinking.budget_tokens
    return thinks, budget if thinks else None


def _sampling(given: schemas.MessageRequest, *, must_call: bool) -> Sampling:
    """Sampling with the grammar of answers in words: ``output_config.format``, or by its earlier name
    ``output_format``."""
    chosen, config = sampling(given, DEFAULTS), given.output_config
    formats = (None if config is None else config.format, given.output_format)
    wanted = [one.schema_ for one in formats if one is not None]
    return chosen if must_call else replace(chosen, grammar=grammars.only_one((chosen.grammar, *wanted)))


def _check_unused(given: schemas.MessageRequest) -> None:
    """Check fields that make no difference here.

    ``metadata.user_id`` doesn't part tenants: agents put each conversation's id into it, and conversations of one key
    share the long prompts that all begin with.
    """
    _ = given.metadata and given.metadata.user_id, given.service_tier
