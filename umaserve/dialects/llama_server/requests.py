"""Parses requests of llama-server's ``/completion`` and ``/infill``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from umaserve.core.errors import Fault, RequestError
from umaserve.core.requests import Generate, Infill, Sampling
from umaserve.dialects.llama_server import schemas
from umaserve.dialects.llama_server.schemas import ADAPTERS, DEFAULTS, NativeOptions
from umaserve.dialects.openai.requests import MAX_GENERATIONS, MAX_PROMPTS, inputs, nth_choice
from umaserve.dialects.parameters import RequestLimits, check_prompt_bytes, sampling, with_targets, within_cap
from umaserve.wire.fields import Fields, out_of_range


@dataclass(frozen=True, slots=True)
class NativeRequest:
    """A parsed body: its answers, and what their replies contain."""

    choices: tuple[Generate, ...]
    n_predict: int
    """Limit of the answer in tokens, as the client wants it; -1: up to the context's end."""
    stream: bool = False
    return_tokens: bool = False
    timings_per_token: bool = False
    response_fields: tuple[str, ...] = ()
    """Paths with slashes; empty: all."""


def native_request(fields: Fields, limits: RequestLimits, new_id: str, adapters: Sequence[str] = ()) -> NativeRequest:
    """Parse a body of ``POST /completion``; raises ``RequestError``. ``adapters``: the names of the server's,
    which requests name by number."""
    given = schemas.NativeRequest(_in_our_words(fields, adapters))
    texts = Fields({"prompt": _without_media(given.values.get("prompt"))})
    prompts = inputs(texts, "prompt", limits, MAX_PROMPTS)
    one = _parameters(given, limits, new_id)
    n = given.n_cmpl or given.n or 1
    if n * len(prompts) > MAX_GENERATIONS:
        raise out_of_range("n", f"at most {MAX_GENERATIONS // len(prompts)} for {len(prompts)} prompts", n)
    choices = tuple(nth_choice(replace(one, prompt=prompt), k) for prompt in prompts for k in range(n))
    if len(choices) > 1:
        choices = tuple(replace(choice, id=f"{choice.id}-{index}") for index, choice in enumerate(choices))
    return _described(given, choices)


def infill_request(fields: Fields, limits: RequestLimits, new_id: str, adapters: Sequence[str] = ()) -> NativeRequest:
    """Parse a body of ``POST /infill``; raises ``RequestError``."""
    given = schemas.InfillRequest(_in_our_words(fields, adapters))
    others = tuple((other.filename or "", other.text) for other in given.input_extra or ())
    gap = Infill(given.input_prefix, given.input_suffix, given.prompt or "", others)
    texts = (gap.prefix, gap.suffix, gap.beginning, *(text for other in others for text in other))
    check_prompt_bytes(sum(len(text.encode()) for text in texts), limits, "input_prefix")
    return _described(given, (replace(_parameters(given, limits, new_id), prompt=gap),))


def _described(given: NativeOptions, choices: tuple[Generate, ...]) -> NativeRequest:
    """``choices`` with what ``given`` says of their replies."""
    return NativeRequest(
        choices,
        n_predict=_n_predict(given),
        stream=given.stream,
        return_tokens=given.return_tokens,
        timings_per_token=given.timings_per_token,
        response_fields=given.response_fields or (),
    )


def _parameters(given: NativeOptions, limits: RequestLimits, new_id: str) -> Generate:
    """Read all of a request but its prompt."""
    n_predict, n_probs, logprobs = _n_predict(given), given.n_probs, given.logprobs
    request = Generate(
        new_id,
        "",
        # llama-server makes one token where none are wanted.
        within_cap(None if n_predict < 0 else max(1, n_predict), limits),
        _sampling(given),
        given.stop or (),
        (logprobs if n_probs is None else n_probs) or None,
        cache_prompt=given.cache_prompt,
        lora=given.lora,
        wants_progress=given.return_progress and given.stream,
        model=given.model or "",
    )
    return with_targets(request, given)


def _n_predict(given: NativeOptions) -> int:
    wanted = (given.n_predict, given.max_completion_tokens, given.max_tokens)
    return next((number for number in wanted if number is not None), -1)


def _sampling(given: NativeOptions) -> Sampling:
    chosen = sampling(NativeOptions({**given.values, "logit_bias": None}), DEFAULTS)
    token_biases, text_biases = given.biases or ((), ())
    return replace(chosen, logit_bias=token_biases, text_bias=text_biases, scores_after=given.post_sampling_probs)


def _in_our_words(fields: Fields, adapters: Sequence[str]) -> dict[str, Any]:
    """The values of ``fields`` with llama-server's own ways to say something replaced by those that all dialects
    share."""
    values = dict(fields.values)
    if values.get("grammar") == "":
        values["grammar"] = None
    if values.get("json_schema") == {}:
        values["json_schema"] = {"type": "object"}
    if isinstance(values.get("lora"), list):
        values["lora"] = named_adapters(values["lora"], adapters, "lora")
    return values


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


def named_adapters(value: list[Any], names: Sequence[str], path: str) -> dict[str, float]:
    """An array of adapters at ``path`` as an object of names and scales; in llama-server adapters have numbers."""
    chosen: dict[str, float] = {}
    for adapter in ADAPTERS.read(value, path):
        if adapter.id >= len(names):
            known = f"a number below {len(names)}" if names else "no adapters, since the server has none"
            raise out_of_range(adapter.name("id"), known, adapter.id)
        chosen[names[adapter.id]] = 1.0 if adapter.scale is None else adapter.scale
    return chosen
