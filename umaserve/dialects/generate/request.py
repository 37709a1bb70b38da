"""Parses requests of ``/generate``: the fields of a ``config`` message and of ``POST /v1/generate``."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from umaserve.core.errors import Fault, RequestError
from umaserve.core.events import ListedModel
from umaserve.core.model_names import DEFAULT
from umaserve.core.requests import ChatTurn, Generate
from umaserve.dialects import grammars
from umaserve.dialects.content import ImageSettings, check_media, in_order_of_calls, turn_bytes, turn_with_media
from umaserve.dialects.generate import schemas
from umaserve.dialects.generate.schemas import MAX_LOGPROBS, GenerateMessage, GenerateRequest, Parameters
from umaserve.dialects.listing import find_model
from umaserve.dialects.openai.turns import call, tools
from umaserve.dialects.parameters import (
    RequestLimits,
    check_prompt_bytes,
    model_name,
    role,
    sampling,
    with_targets,
    with_template_kwargs,
    with_thoughts,
    within_cap,
)
from umaserve.dialects.parameters import prompt as read_prompt
from umaserve.dialects.schemas import MAX_TURNS
from umaserve.wire.fields import Fields, bad_request, out_of_range

DEFAULT_LOGPROBS = 5
FIXED_PARAMETERS = (*grammars.FIELDS, "lora", "cache_prompt")
"""Parameters that can't be modified while a generation runs."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a generation's messages: what they contain."""

    stream: bool
    echo_prompt: bool
    include_token_ids: bool
    include_timing: bool
    include_generated_text: bool
    reasoning: str
    """Form of the thoughts, one of ``REASONING``."""


def read_config(
    fields: Fields, limits: RequestLimits, models: Sequence[ListedModel], request_id: str
) -> tuple[Generate, Options]:
    """The request in a ``config`` message; raises ``RequestError``, also where it names none of ``models``."""
    request, options = _read(fields, limits, models, request_id, stream=True)
    return with_parameters(request, fields.object("parameters") or Fields({}), limits), options


def read_body(
    fields: Fields, limits: RequestLimits, models: Sequence[ListedModel], request_id: str
) -> tuple[Generate, Options]:
    """Read a request from a REST body, as ``read_config``. Parameters are at the top level; ``parameters`` and
    ``options`` take precedence over them."""
    request, options = _read(fields, limits, models, request_id, stream=GenerateRequest.view(fields).stream)
    request = with_parameters(request, fields, limits)
    return with_parameters(request, fields.object("parameters") or Fields({}), limits), options


def with_parameters(request: Generate, fields: Fields, limits: RequestLimits) -> Generate:
    """``request`` with its parameters replaced by those in ``fields``; raises ``RequestError``."""
    given, base = Parameters.view(fields), request.sampling
    if given.repetition_penalty is not None:
        if fields.values.get("repeat_penalty") is not None:
            problem = "expected to be absent where repetition_penalty is given, got both"
            raise RequestError(Fault.BAD_REQUEST, fields.name("repeat_penalty"), problem)
        base = dataclasses.replace(base, repeat_penalty=given.repetition_penalty)
    return dataclasses.replace(
        request,
        max_tokens=within_cap(request.max_tokens if given.max_tokens is None else given.max_tokens, limits),
        sampling=sampling(fields, base),
        stop=request.stop if given.stop is None else given.stop,
        cache_prompt=request.cache_prompt if fields.values.get("cache_prompt") is None else given.cache_prompt,
        lora=request.lora if given.lora is None else given.lora,
    )


def modified(request: Generate, parameters: Parameters | None, limits: RequestLimits) -> Generate:
    """``request`` with other ``parameters`` while it runs; raises ``RequestError``."""
    if parameters is None or not Parameters.field_names() & parameters.values.keys():
        known = ", ".join(sorted(Parameters.field_names()))
        raise RequestError(Fault.BAD_REQUEST, "parameters", f"expected at least one of {known}, got none")
    for key in FIXED_PARAMETERS:
        if parameters.values.get(key) is not None:
            problem = "expected to be absent, since it can't change while text is generated"
            raise RequestError(Fault.BAD_REQUEST, parameters.name(key), problem)
    return with_parameters(request, parameters, limits)


def _read(
    fields: Fields, limits: RequestLimits, models: Sequence[ListedModel], request_id: str, *, stream: bool
) -> tuple[Generate, Options]:
    model = _model(fields, models)
    prompt = _prompt(fields.values.get("prompt"), limits)
    given = GenerateRequest.view(fields)
    wanted = given.options or schemas.Options({})
    options = Options(
        stream=stream if wanted.stream is None else wanted.stream,
        echo_prompt=wanted.echo_prompt,
        include_token_ids=wanted.include_token_ids,
        include_timing=wanted.include_timing,
        include_generated_text=wanted.include_generated_text,
        reasoning=wanted.reasoning or "inline",
    )
    if options.echo_prompt and not isinstance(prompt, str):
        problem = "expected false where prompt is an array of messages, got true"
        raise RequestError(Fault.BAD_REQUEST, wanted.name("echo_prompt"), problem)
    offered = tools(given.tools or (), given.name("tools"))
    if offered and isinstance(prompt, str):
        raise bad_request("prompt", "an array of messages where tools are given", prompt)
    request = Generate(
        request_id, prompt, within_cap(None, limits), logprobs=_logprobs(wanted), tools=offered, model=model
    )
    request = with_thoughts(with_template_kwargs(request, wanted), wanted, split=options.reasoning != "inline")
    return with_targets(request, fields), options


def _model(fields: Fields, models: Sequence[ListedModel]) -> str:
    name = model_name(fields)
    if name and find_model(models, name) is None:
        known = " or ".join(f'"{known}"' for known in (*(model.name for model in models), DEFAULT))
        raise out_of_range(fields.name("model"), known, f'"{name}"')
    return name


def _prompt(value: object, limits: RequestLimits) -> str | tuple[ChatTurn, ...]:
    if isinstance(value, str):
        return read_prompt(value, limits)
    if not isinstance(value, list):
        raise bad_request("prompt", "a non-empty string or an array of messages", value)
    if not 1 <= len(value) <= MAX_TURNS:
        raise out_of_range("prompt", f"1 to {MAX_TURNS} messages", len(value))
    turns = tuple(in_order_of_calls(_turn(GenerateMessage.of(item, f"prompt[{i}]")) for i, item in enumerate(value)))
    check_prompt_bytes(sum(map(turn_bytes, turns)), limits)
    check_media(turns, "prompt")
    return turns


def _turn(given: GenerateMessage) -> ChatTurn:
    turn = turn_with_media(given, role(given), ImageSettings(), None)
    if turn.role == "assistant":
        return dataclasses.replace(turn, tool_calls=tuple(map(call, given.tool_calls or ())))
    return dataclasses.replace(turn, tool_call_id=given.tool_call_id) if turn.role == "tool" else turn


def _logprobs(options: Fields) -> int | None:
    value = options.values.get("include_logprobs")
    if isinstance(value, bool):
        return DEFAULT_LOGPROBS if value else None
    if value is not None and not isinstance(value, int | float):
        expected = f"true, false or a whole number from 0 to {MAX_LOGPROBS}"
        raise bad_request(options.name("include_logprobs"), expected, value)
    return options.integer("include_logprobs", 0, MAX_LOGPROBS)
