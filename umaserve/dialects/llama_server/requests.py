"""Parses requests of llama-server's ``/completion`` and ``/infill``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from umaserve.core.errors import Fault, RequestError
from umaserve.core.requests import SAMPLERS, Generate, Infill, Sampling
from umaserve.dialects.openai.requests import MAX_CHOICES, MAX_GENERATIONS, MAX_PROMPTS, inputs, nth_choice
from umaserve.dialects.parameters import (
    RequestLimits,
    check_prompt_bytes,
    lora,
    model_name,
    sampling,
    stops,
    with_targets,
    within_cap,
)
from umaserve.dialects.schemas import MAX_ADAPTERS, MAX_BIASES, MAX_SCALE
from umaserve.wire.fields import Fields, array, bad_request, number, out_of_range, string

DEFAULTS = Sampling(temperature=0.8)
MAX_PROBS = 100
MAX_SAMPLERS = 32
MAX_OTHERS = 1024
MAX_RESPONSE_FIELDS, MAX_FIELD_BYTES = 64, 256
LENGTH_NAMES = ("n_predict", "max_completion_tokens", "max_tokens")
_RANDOM_SEEDS = (-1, 2**32 - 1)
BAN = 100.0
MAX_BIASED_BYTES = 256

_WITHOUT: Mapping[str, Mapping[str, float]] = {
    "penalties": {"repeat_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0},
    "top_k": {"top_k": 0},
    "top_p": {"top_p": 1.0},
    "min_p": {"min_p": 0.0},
    "temperature": {"temperature": 1.0},
}
"""Samplers of this server, each with the parameters that turn it off."""
_LETTERS = {"e": "penalties", "k": "top_k", "p": "top_p", "m": "min_p", "t": "temperature"}
_ALIASES = {"topk": "top_k", "topp": "top_p", "nucleus": "top_p", "minp": "min_p", "temp": "temperature"}


@dataclass(frozen=True, slots=True)
class NativeRequest:
    """A parsed body: its answers, and what their replies contain."""

    choices: tuple[Generate, ...]
    n_predict: int
    """Limit of the answer in tokens, as the client wants it; -1: up to the context's end."""
    samplers: tuple[str, ...] = SAMPLERS
    stream: bool = False
    return_tokens: bool = False
    timings_per_token: bool = False
    response_fields: tuple[str, ...] = ()
    """Paths with slashes; empty: all."""


def native_request(fields: Fields, limits: RequestLimits, new_id: str, adapters: Sequence[str] = ()) -> NativeRequest:
    """Parse a body of ``POST /completion``; raises ``RequestError``. ``adapters``: the names of the server's,
    which requests name by number."""
    fields = _in_our_words(fields, adapters)
    prompts = inputs(fields, "prompt", limits, MAX_PROMPTS, empty=True)
    one = _parameters(fields, limits, new_id)
    n = fields.integer("n_cmpl", 1, MAX_CHOICES) or fields.integer("n", 1, MAX_CHOICES) or 1
    if n * len(prompts) > MAX_GENERATIONS:
        raise out_of_range("n", f"at most {MAX_GENERATIONS // len(prompts)} for {len(prompts)} prompts", n)
    choices = tuple(nth_choice(replace(one, prompt=prompt), k) for prompt in prompts for k in range(n))
    if len(choices) > 1:
        choices = tuple(replace(choice, id=f"{choice.id}-{index}") for index, choice in enumerate(choices))
    return _described(fields, choices)


def infill_request(fields: Fields, limits: RequestLimits, new_id: str, adapters: Sequence[str] = ()) -> NativeRequest:
    """Parse a body of ``POST /infill``; raises ``RequestError``."""
    fields = _in_our_words(fields, adapters)
    prefix, suffix = (string(fields.values.get(key), key, empty=True) for key in ("input_prefix", "input_suffix"))
    beginning = string(fields.values.get("prompt") or "", "prompt", empty=True)
    gap = Infill(prefix, suffix, beginning, _others(fields.values.get("input_extra")))
    texts = (prefix, suffix, beginning, *(text for other in gap.others for text in other))
    check_prompt_bytes(sum(len(text.encode()) for text in texts), limits, "input_prefix")
    return _described(fields, (replace(_parameters(fields, limits, new_id), prompt=gap),))


def _others(value: object) -> tuple[tuple[str, str], ...]:
    """``input_extra``: the names and the texts of other files."""
    if value is None:
        return ()
    others = []
    for index, item in enumerate(array(value, "input_extra", 0, MAX_OTHERS, "objects")):
        fields = Fields.of(item, f"input_extra[{index}]")
        name = fields.string("filename", max_bytes=MAX_FIELD_BYTES, empty=True) or ""
        others.append((name, string(fields.values.get("text"), fields.name("text"), empty=True)))
    return tuple(others)


def _described(fields: Fields, choices: tuple[Generate, ...]) -> NativeRequest:
    """``choices`` with what ``fields`` say of their replies."""
    return NativeRequest(
        choices,
        n_predict=_n_predict(fields),
        samplers=_samplers(fields),
        stream=fields.boolean("stream", False),
        return_tokens=fields.boolean("return_tokens", False),
        timings_per_token=fields.boolean("timings_per_token", False),
        response_fields=fields.strings("response_fields", max_items=MAX_RESPONSE_FIELDS, max_bytes=MAX_FIELD_BYTES),
    )


def _parameters(fields: Fields, limits: RequestLimits, new_id: str) -> Generate:
    """Parse all of a request but its prompt."""
    n_predict = _n_predict(fields)
    probs = [fields.integer(key, 0, MAX_PROBS) for key in ("n_probs", "logprobs")]
    request = Generate(
        new_id,
        "",
        # llama-server makes one token where none are wanted.
        within_cap(None if n_predict < 0 else max(1, n_predict), limits),
        _sampling(fields),
        stops(fields),
        next((number for number in probs if number is not None), 0) or None,
        cache_prompt=fields.boolean("cache_prompt", True),
        lora=lora(fields),
        wants_progress=fields.boolean("return_progress", False) and fields.boolean("stream", False),
        model=model_name(fields),
    )
    return with_targets(request, fields)


def _n_predict(fields: Fields) -> int:
    wanted = [fields.integer(key, -1) for key in LENGTH_NAMES]
    return next((number for number in wanted if number is not None), -1)


def _sampling(fields: Fields) -> Sampling:
    chosen, used = sampling(Fields({**fields.values, "samplers": None}), DEFAULTS), _samplers(fields)
    off = {key: value for name, without in _WITHOUT.items() if name not in used for key, value in without.items()}
    chosen = replace(chosen, **off)  # type: ignore[arg-type]
    texts = tuple((text, number(bias, "logit_bias", -BAN, BAN)) for text, bias in fields.values["text_bias"])
    scores_after = fields.boolean("post_sampling_probs", False)
    in_order = tuple(name for name in SAMPLERS if name in used)
    order = SAMPLERS if used == in_order else used
    return replace(chosen, text_bias=texts, scores_after=scores_after, samplers=order)


def _samplers(fields: Fields) -> tuple[str, ...]:
    """The samplers to use, in the order in which to use them. Others are off in any case, or are refused by their
    parameters; "infill" has none, and is left out of what editors send."""
    names = fields.strings("samplers", max_items=MAX_SAMPLERS, max_bytes=MAX_SAMPLERS)
    if not names:
        return SAMPLERS
    if isinstance(fields.values["samplers"], str):
        names = tuple(_LETTERS.get(letter, "") for letter in names[0])
    names = tuple(name.lower().replace("-", "_") for name in names)
    used = tuple(name for one in names if (name := _ALIASES.get(one, one)) in SAMPLERS)
    if len(set(used)) < len(used):
        raise RequestError(Fault.BAD_REQUEST, "samplers", "expected each sampler once, got one repeated")
    return used


def _in_our_words(fields: Fields, adapters: Sequence[str]) -> Fields:
    """``fields`` with llama-server's own ways to say something replaced by those that all dialects share."""
    values = dict(fields.values)
    for key, nothing in (("seed", _RANDOM_SEEDS), ("grammar", ("",)), ("stop", ("",))):
        if values.get(key) in nothing:
            values[key] = None
    if values.get("json_schema") == {}:
        values["json_schema"] = {"type": "object"}
    if values.get("top_k") == -1:
        values["top_k"] = 0
    if isinstance(values.get("stop"), list):
        values["stop"] = [text for text in values["stop"] if text != ""]
    values["prompt"] = _without_media(values.get("prompt"))
    values["logit_bias"], values["text_bias"] = _biases(values.get("logit_bias"))
    if isinstance(values.get("lora"), list):
        values["lora"] = _adapters(values["lora"], adapters)
    return Fields(values)


def _without_media(prompt: object) -> object:
    """``prompt`` with the texts of objects, which in llama-server may have media, in their place."""
    if isinstance(prompt, list):
        return [_without_media(item) if isinstance(item, dict) and "prompt_string" in item else item for item in prompt]
    if not isinstance(prompt, dict):
        return prompt
    if prompt.get("multimodal_data"):
        problem = "expected to be absent: send images and sounds to /v1/chat/completions"
        raise RequestError(Fault.BAD_REQUEST, "prompt.multimodal_data", problem)
    return prompt.get("prompt_string")


def _biases(value: object) -> tuple[dict[str, Any], list[tuple[str, Any]]]:
    """``logit_bias`` as an object of token ids, and as pairs of texts; it may be an object or an array of pairs, and
    ``false`` bans a token."""
    if value is None:
        return {}, []
    if isinstance(value, dict):
        pairs: list[Any] = [[int(key) if re.fullmatch("[0-9]{1,9}", key) else key, value[key]] for key in value]
    elif isinstance(value, list):
        pairs = value
    else:
        raise bad_request("logit_bias", "an object or an array of pairs", value)
    array(pairs, "logit_bias", 0, MAX_BIASES, "pairs")
    if not all(isinstance(pair, list) and len(pair) == 2 and type(pair[0]) in (int, str) for pair in pairs):
        raise RequestError(Fault.BAD_REQUEST, "logit_bias", "expected pairs of a token id or a text and its bias")
    banned = [(key, -BAN if bias is False else bias) for key, bias in pairs]
    texts = [(key, bias) for key, bias in banned if type(key) is str]
    for text, _bias in texts:
        string(text, "logit_bias", max_bytes=MAX_BIASED_BYTES, empty=True)
    return {str(key): bias for key, bias in banned if type(key) is int}, texts


def _adapters(value: list[Any], names: Sequence[str]) -> dict[str, float]:
    """``lora`` as an object of names and scales; in llama-server adapters have numbers."""
    chosen: dict[str, float] = {}
    for index, item in enumerate(array(value, "lora", 0, MAX_ADAPTERS, "adapters")):
        fields = Fields.of(item, f"lora[{index}]")
        number = fields.integer("id", 0)
        if number is None or number >= len(names):
            known = f"a number below {len(names)}" if names else "no adapters, since the server has none"
            raise out_of_range(fields.name("id"), known, number)
        scale = fields.number("scale", -MAX_SCALE, MAX_SCALE)
        chosen[names[number]] = 1.0 if scale is None else scale
    return chosen
