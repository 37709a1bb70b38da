"""The request fields that all dialects share, and their caps: prompts, sampling, adapters, latency targets."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from umaserve.core.errors import Fault, RequestError
from umaserve.core.model_names import DEFAULT
from umaserve.core.requests import ChatTurn, Generate, Priority, Sampling
from umaserve.dialects import sampling_schemas, schemas
from umaserve.dialects.grammars import grammar
from umaserve.dialects.schemas import MAX_ID_BYTES, MAX_SLO_MS, PRIORITIES, ROLES, Targets
from umaserve.wire.fields import MAX_VALUES, Fields, bad_request, out_of_range, parse_json, string

MAX_TOKEN_ID = 2**31 - 1
PRIORITY_HEADER, TTFT_HEADER, TBT_HEADER = "x-umaserve-priority", "x-umaserve-slo-ttft-ms", "x-umaserve-slo-tbt-ms"
PRIORITY_HEADERS = (PRIORITY_HEADER, TTFT_HEADER, TBT_HEADER)


NOT_DONE: dict[str, tuple[tuple[object, ...], str]] = {
    "guided_whitespace_pattern": ((), "a schema's text may have a line break or a space between its parts"),
    "structural_tag": ((), "use tools, json_schema, or response_format"),
    "tfs_z": ((1,), "llama.cpp has this sampler no more; use min_p"),
    "allowed_token_ids": ((), "use logit_bias, or grammar"),
    "use_beam_search": ((False,), "answers are sampled one token after another; use temperature 0 for the likeliest"),
    "length_penalty": ((1,), "it is for beam search, which this server does not do"),
    "truncate_prompt_tokens": ((), "a prompt is never truncated; send only the part that the model is to read"),
    "include_stop_str_in_output": ((False,), "a stop string is never part of the answer"),
    "skip_special_tokens": ((True,), "control tokens are no part of the answer"),
    "return_token_ids": ((False,), "use /completion with return_tokens, or /tokenize"),
}
"""Fields of other servers that change the generated text and aren't supported here, each with its neutral values, which
are accepted, and with what to use instead."""

_SAMPLING = {parameter.name for parameter in dataclasses.fields(Sampling)} & vars(sampling_schemas.Sampling).keys() - {
    "grammar"
}
"""The parameters that are called in a request as they are in ``core/requests``; a grammar has many names."""


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """The caps of the server that dialects enforce."""

    max_prompt_bytes: int
    max_tokens: int | None = None
    """The operator's cap on the tokens of an answer; ``None``: only the context limits it."""
    max_message_bytes: int = 128 << 20
    """Bytes of a message or body that may have media."""


def max_tokens(fields: Fields, key: str, limits: RequestLimits, default: int | None = None) -> int | None:
    """The answer's limit in tokens, at most the operator's cap; ``None``: as many as the context holds.

    Asking for more is not an error: programs send what other servers allow, and ``finish_reason`` tells them.
    """
    wanted = fields.integer(key, 1)
    return within_cap(default if wanted is None else wanted, limits)


def within_cap(tokens: int | None, limits: RequestLimits) -> int | None:
    """The smaller of ``tokens`` and the operator's cap; ``None`` means unlimited."""
    return min((limit for limit in (tokens, limits.max_tokens) if limit is not None), default=None)


def json_body(body: bytes) -> Fields:
    """The JSON object in an HTTP request's body; raises ``RequestError``."""
    values = parse_json(body, MAX_VALUES)
    if not isinstance(values, dict):
        raise bad_request("body", "an object", values)
    return Fields(values)


def model_name(fields: Fields) -> str:
    """The client's name for the model; empty where it names none."""
    return fields.string("model", max_bytes=MAX_ID_BYTES, empty=True) or ""


def with_model(fields: Fields, asked: str) -> Fields:
    """``fields`` of a message, which mean the model ``asked`` where they name none, or the default one."""
    unnamed = fields.values.get("model") in (None, "", DEFAULT)
    return Fields({**fields.values, "model": asked}) if asked and unnamed else fields


def refuse_unknown_constraints(fields: Fields) -> None:
    """Refuse fields of other servers that promise a constraint, unless they ask for none: an answer without it would
    be wrong without a word."""
    for key, (neutral, instead) in NOT_DONE.items():
        value = fields.values.get(key)
        if value is not None and value not in neutral:
            raise RequestError(Fault.BAD_REQUEST, fields.name(key), f"expected to be absent: {instead}")


def sampling(fields: Fields, base: Sampling) -> Sampling:
    """The sampling parameters in ``fields``; those that are absent come from ``base``. Raises ``RequestError``."""
    refuse_unknown_constraints(fields)
    given = sampling_schemas.Sampling.view(fields)
    chosen: dict[str, Any] = {name: value for name in _SAMPLING if (value := getattr(given, name)) is not None}
    return replace(base, grammar=grammar(given) or base.grammar, **chosen)


def stops(fields: Fields) -> tuple[str, ...]:
    return sampling_schemas.Sampling.view(fields).stop or ()


def lora(fields: Fields) -> tuple[tuple[str, float], ...] | None:
    """Adapters by name, each with its scale; ``None`` if the request leaves them to the server."""
    return schemas.Computation.view(fields).lora


def with_thoughts(request: Generate, fields: Fields, *, split: bool) -> Generate:
    """``request`` with what ``fields`` want of thoughts: their budget, and whether stop strings apply to them.
    ``split``: whether they are to be told apart from the answer."""
    given = schemas.Thoughts.view(fields)
    budget = given.reasoning_budget
    return replace(
        request,
        splits_thoughts=split,
        thought_budget=given.thinking_budget_tokens if budget is None else budget,
        stops_in_thoughts=given.stop_in_reasoning,
    )


def with_template_kwargs(request: Generate, fields: Fields) -> Generate:
    """``request`` with the chat template's variables in ``fields``."""
    kwargs, thinks = template_kwargs(fields)
    return replace(request, enable_thinking=thinks, chat_template_kwargs=kwargs)


def template_kwargs(fields: Fields) -> tuple[dict[str, object], bool | None]:
    """``chat_template_kwargs``: the chat template's variables; and the one named ``enable_thinking``, by itself. That
    may also stand beside them."""
    given = schemas.TemplateKwargs.view(fields)
    thinks, kwargs = given.enable_thinking, given.chat_template_kwargs
    if kwargs is None:
        return {}, thinks
    others = {name: value for name, value in kwargs.values.items() if name != "enable_thinking"}
    return others, thinks if kwargs.enable_thinking is None else kwargs.enable_thinking


def with_targets(request: Generate, fields: Fields) -> Generate:
    """``request`` with the priority and the latency targets in ``fields``."""
    given = Targets.view(fields)
    ttft_ms, tbt_ms = (None, None) if given.slo is None else (given.slo.target_ttft_ms, given.slo.target_tbt_ms)
    return replace(
        request,
        priority=Priority.INTERACTIVE if given.priority is None else given.priority,
        target_ttft_s=None if ttft_ms is None else ttft_ms / 1000,
        target_tbt_s=None if tbt_ms is None else tbt_ms / 1000,
    )


def with_headers(request: Generate, headers: Mapping[str, str]) -> Generate:
    """``request`` with the priority and the latency targets in an HTTP request's headers (names in lower case), since
    not all bodies have a place for them. A target in the body comes first; one that says background makes it so."""
    given = {name: headers[name] for name in PRIORITY_HEADERS if name in headers}
    if not given:
        return request
    fields = Fields({name: _number(text) if name.endswith("-ms") else text for name, text in given.items()})
    priority = fields.choice(PRIORITY_HEADER, PRIORITIES, Priority.INTERACTIVE)
    ttft, tbt = _target_s(fields, TTFT_HEADER), _target_s(fields, TBT_HEADER)
    return replace(
        request,
        priority=max(request.priority, priority),
        target_ttft_s=ttft if request.target_ttft_s is None else request.target_ttft_s,
        target_tbt_s=tbt if request.target_tbt_s is None else request.target_tbt_s,
    )


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _target_s(slo: Fields, key: str) -> float | None:
    """A latency target in seconds, given in milliseconds in a header."""
    ms = slo.number(key, 0.0, MAX_SLO_MS, above_low=True)
    return None if ms is None else ms / 1000


def prompt(value: object, limits: RequestLimits) -> str:
    text = string(value, "prompt")
    check_prompt_bytes(len(text.encode()), limits)
    return text


def check_prompt_bytes(n_bytes: int, limits: RequestLimits, field: str = "prompt") -> None:
    if n_bytes > limits.max_prompt_bytes:
        raise RequestError(
            Fault.PROMPT_TOO_LARGE, field, f"expected at most {limits.max_prompt_bytes} bytes, got {n_bytes}"
        )


def token_ids(value: object, path: str, limits: RequestLimits) -> tuple[int, ...]:
    """An array of token ids, at most as many as a prompt may have bytes."""
    if not isinstance(value, list):
        raise bad_request(path, "an array of token ids", value)
    # A token is at least one byte, so the cap on bytes applies to tokens as well.
    if len(value) > limits.max_prompt_bytes:
        raise RequestError(
            Fault.PROMPT_TOO_LARGE, path, f"expected at most {limits.max_prompt_bytes} tokens, got {len(value)}"
        )
    if set(map(type, value)) == {int} and min(value) >= 0 and max(value) <= MAX_TOKEN_ID:
        return tuple(value)
    expected = f"a whole number from 0 to {MAX_TOKEN_ID}"
    for i, item in enumerate(value):
        if type(item) is not int:
            raise bad_request(f"{path}[{i}]", expected, item)
        if not 0 <= item <= MAX_TOKEN_ID:
            raise out_of_range(f"{path}[{i}]", expected, item)
    return tuple(value)


def turn(value: object, path: str) -> ChatTurn:
    """One message with ``role`` and ``content``, which is a string."""
    fields = Fields.of(value, path)
    return ChatTurn(role(fields), string(fields.values.get("content"), fields.name("content"), empty=True))


def role(fields: Fields) -> str:
    return fields.required_one_of("role", ROLES)


def check_key(presented: object, is_good: Callable[[str], bool], example: str) -> None:
    """Refuse a first message whose ``auth`` is not a valid key; ``example`` shows a message with a key."""
    if not isinstance(presented, str) or not is_good(presented):
        # The error never contains the key, so that no log does.
        raise RequestError(Fault.UNAUTHORIZED, "auth", f"expected a valid key in the first message, as in {example}")
