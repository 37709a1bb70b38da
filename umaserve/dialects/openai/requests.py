"""Parses OpenAI's chat and completion requests."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from umaserve.core.errors import Fault, RequestError
from umaserve.core.events import VoiceInfo
from umaserve.core.queries import CountPrompt
from umaserve.core.requests import Generate, Grammar, MixedText, Sampling, Speaking, Syntax, TokenIds
from umaserve.dialects.grammars import ANY_OBJECT, only_one, schema
from umaserve.dialects.openai.speech import CHAT_FORMATS, wanted_audio
from umaserve.dialects.openai.turns import chosen_tools, tools, turns
from umaserve.dialects.parameters import (
    RequestLimits,
    check_prompt_bytes,
    json_body,
    lora,
    model_name,
    sampling,
    stops,
    template_kwargs,
    token_ids,
    with_targets,
    with_thoughts,
    within_cap,
)
from umaserve.dialects.schemas import MAX_SEED
from umaserve.wire.fields import Fields, bad_request, kind_of, out_of_range, string

DEFAULTS = Sampling(temperature=1.0, top_p=1.0)
"""OpenAI documents these two; the other defaults are this server's own."""

DEFAULT_COMPLETION_TOKENS = 16
MAX_CHOICES = 8
MAX_GENERATIONS = 32
"""Prompts times choices per prompt, in one request."""
MAX_PROMPTS = 16
MAX_TOP_LOGPROBS = 20
REASONING_FORMATS = ("auto", "deepseek", "none")
"""llama-server's names: thoughts are ``reasoning_content``, or with ``none`` a part of the content."""
REASONING_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""``none``: the model doesn't think; what the others do is up to the chat template."""


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """A parsed body. ``choices`` has ``choices_each`` choices for each prompt, those of one prompt adjacent."""

    model: str
    choices: tuple[Generate, ...]
    choices_each: int
    stream: bool
    include_usage: bool
    echo: bool = False
    verbose: bool = False
    """Whether the prompt as the model got it is told, as llama-server does."""
    prompt_logprobs: int | None = None
    """Alternatives to tell of each token of the prompt, in vLLM's form."""
    audio: str | None = None
    """The format of a spoken answer; ``None``: text only."""


def chat_request(body: bytes, limits: RequestLimits, voice: VoiceInfo | None, new_id: str) -> CompletionRequest:
    """Parse a body of ``POST /v1/chat/completions``; raises ``RequestError``. ``voice``: the daemon's, if it has
    one."""
    fields = json_body(body)
    for legacy in ("functions", "function_call"):
        if fields.values.get(legacy) is not None:
            raise RequestError(Fault.BAD_REQUEST, legacy, "expected to be absent, use tools and tool_choice")
    if fields.values.get("prompt_logprobs") is not None:
        raise RequestError(Fault.BAD_REQUEST, "prompt_logprobs", "expected to be absent, use /v1/completions")
    offered, must_call, parallel_calls = chosen_tools(fields, tools(fields))
    response_format = _response_format(fields)
    # The format is that of answers in words.
    chosen = _sampling(fields, None if must_call else response_format)
    if must_call and chosen.grammar is not None:
        problem = f"expected no required call where {chosen.grammar.field} is given, got both"
        raise RequestError(Fault.BAD_REQUEST, "tool_choice", problem)
    max_tokens = _wanted_tokens(fields, None, "max_completion_tokens", "max_tokens", "n_predict")
    continues, opens = _continuation(fields)
    kwargs, thinks = _template_kwargs(fields)
    one = Generate(
        id=new_id,
        prompt=turns(fields, limits),
        max_tokens=within_cap(max_tokens, limits),
        sampling=chosen,
        stop=stops(fields),
        logprobs=_chat_logprobs(fields),
        tools=offered,
        must_call=must_call,
        parallel_calls=parallel_calls,
        continue_final_message=continues,
        add_generation_prompt=opens,
        enable_thinking=thinks,
        chat_template_kwargs=kwargs,
    )
    audio = wanted_audio(fields, voice)
    inline = fields.one_of("reasoning_format", REASONING_FORMATS) == "none" and audio is None
    one = with_thoughts(one, fields, split=not inline)
    if audio is None:
        return _asked(fields, (one,))
    if offered:
        raise RequestError(Fault.BAD_REQUEST, "tools", "expected none where audio is asked for")
    if (n := _n_choices(fields)) != 1:
        raise out_of_range("n", "1 where audio is asked for", n)
    speaking = Speaking(sound_format=CHAT_FORMATS[audio])
    return replace(_asked(fields, (replace(one, spoken=speaking),)), audio=audio)


def count_request(body: bytes, limits: RequestLimits) -> CountPrompt:
    """Parse a body of ``POST /v1/chat/completions/input_tokens``, which is one of ``/v1/chat/completions``; raises
    ``RequestError``."""
    return CountPrompt(chat_request(body, limits, None, "").choices[0])


def _template_kwargs(fields: Fields) -> tuple[dict[str, object], bool | None]:
    """The chat template's variables, with ``reasoning_effort`` among them; and whether the model is to think."""
    kwargs, thinks = template_kwargs(fields)
    effort = fields.one_of("reasoning_effort", REASONING_EFFORTS)
    if effort == "none":
        return kwargs, False
    return kwargs | ({} if effort is None else {"reasoning_effort": effort}), thinks


def _continuation(fields: Fields) -> tuple[bool | None, bool]:
    """``continue_final_message`` and ``add_generation_prompt``, as in llama-server and vLLM."""
    continues = fields.boolean("continue_final_message", None)
    if continues and fields.boolean("add_generation_prompt", False):
        problem = "expected false where continue_final_message is true, got true"
        raise RequestError(Fault.BAD_REQUEST, "add_generation_prompt", problem)
    return continues, fields.boolean("add_generation_prompt", True)


def completion_request(body: bytes, limits: RequestLimits, new_id: str) -> CompletionRequest:
    """Parse a body of ``POST /v1/completions``; raises ``RequestError``."""
    fields = json_body(body)
    if fields.values.get("suffix") not in (None, ""):
        raise RequestError(
            Fault.BAD_REQUEST, "suffix", f"expected null or an empty string, got {kind_of(fields.values['suffix'])}"
        )
    n = _n_choices(fields)
    if (best_of := fields.integer("best_of", 1, MAX_CHOICES)) not in (None, n):
        raise out_of_range("best_of", f"{n}, the value of n", best_of)
    prompts = inputs(fields, "prompt", limits, MAX_PROMPTS, empty=True)
    if n * len(prompts) > MAX_GENERATIONS:
        raise out_of_range("n", f"at most {MAX_GENERATIONS // len(prompts)} for {len(prompts)} prompts", n)
    logprobs = fields.integer("logprobs", 0, MAX_TOP_LOGPROBS)
    prompt_logprobs = fields.integer("prompt_logprobs", 0, MAX_TOP_LOGPROBS)
    echo = fields.boolean("echo", False)
    if echo and logprobs is None and not all(isinstance(prompt, str) for prompt in prompts):
        problem = "expected false where the prompt is token ids and logprobs are not asked for, got true"
        raise RequestError(Fault.BAD_REQUEST, "echo", problem)
    max_tokens = _wanted_tokens(fields, DEFAULT_COMPLETION_TOKENS, "max_tokens", "n_predict", low=0)
    chosen, stop = _sampling(fields, _response_format(fields)), stops(fields)
    of_prompt = [wanted for wanted in (logprobs if echo else None, prompt_logprobs) if wanted is not None]
    one = Generate(
        id=new_id,
        prompt="",
        max_tokens=within_cap(max_tokens, limits),
        sampling=chosen,
        stop=stop,
        logprobs=logprobs,
        prompt_logprobs=max(of_prompt, default=None),
    )
    asked = _asked(fields, tuple(replace(one, prompt=prompt) for prompt in prompts), echo=echo)
    if asked.stream and prompt_logprobs is not None:
        problem = "expected to be absent in a stream, which gives the same by echo and logprobs"
        raise RequestError(Fault.BAD_REQUEST, "prompt_logprobs", problem)
    return replace(asked, prompt_logprobs=prompt_logprobs)


def inputs(
    fields: Fields, key: str, limits: RequestLimits, max_items: int, *, empty: bool = False
) -> tuple[str | TokenIds | MixedText, ...]:
    """OpenAI's and llama-server's forms of texts: a string, an array of token ids or of ids and strings, or an array of
    up to ``max_items`` of these. ``empty``: whether a string may be empty."""
    value, path = fields.values.get(key), fields.name(key)
    if not isinstance(value, list) or any(type(item) is int for item in value):
        return (_input(value, path, limits, empty=empty),)
    if not 1 <= len(value) <= max_items:
        raise out_of_range(path, f"1 to {max_items} texts", len(value))
    return tuple(_input(item, f"{path}[{i}]", limits, empty=empty) for i, item in enumerate(value))


def _input(value: object, path: str, limits: RequestLimits, *, empty: bool) -> str | TokenIds | MixedText:
    if isinstance(value, list):
        if not value:
            raise out_of_range(path, "at least one token id", "none")
        if any(isinstance(item, str) for item in value):
            return _mixed(value, path, limits)
        return TokenIds(token_ids(value, path, limits))
    if not isinstance(value, str):
        raise bad_request(path, "a string or an array of token ids", value)
    text = string(value, path, empty=empty)
    check_prompt_bytes(len(text.encode()), limits, path)
    return text


def _mixed(items: list[object], path: str, limits: RequestLimits) -> MixedText:
    """An array of texts and token ids."""
    # All at once, so that errors name an id by its place among all items.
    ids = token_ids([0 if isinstance(item, str) else item for item in items], path, limits)
    parts: list[str | TokenIds] = []
    for is_text, run in groupby(range(len(items)), lambda at: isinstance(items[at], str)):
        places = list(run)
        parts += [str(items[at]) for at in places] if is_text else [TokenIds(ids[places[0] : places[-1] + 1])]
    mixed = MixedText(tuple(parts))
    check_prompt_bytes(size_of(mixed), limits, path)
    return mixed


def size_of(text: str | TokenIds | MixedText) -> int:
    """Size of a prompt, in bytes; a token id counts as one, since a token is at least one byte."""
    match text:
        case str():
            return len(text.encode())
        case TokenIds(ids):
            return len(ids)
        case MixedText(parts):
            return sum(map(size_of, parts))


def _asked(fields: Fields, requests: tuple[Generate, ...], *, echo: bool = False) -> CompletionRequest:
    n = _n_choices(fields)
    stream = fields.boolean("stream", False)
    stream_options = fields.object("stream_options") or Fields({})
    include_usage = stream_options.boolean("include_usage", False)
    if not stream and any(value is not None for value in stream_options.values.values()):
        raise RequestError(Fault.BAD_REQUEST, "stream_options", "expected to be absent where stream isn't true")
    model = model_name(fields)
    shared: dict[str, Any] = {
        "cache_prompt": fields.boolean("cache_prompt", True),
        "lora": lora(fields),
        "wants_progress": fields.boolean("return_progress", False) and stream,
        "wants_prompt": fields.boolean("verbose", False),
        "model": model,
    }
    requests = tuple(with_targets(replace(request, **shared), fields) for request in requests)
    choices = tuple(nth_choice(request, k) for request in requests for k in range(n))
    if len(choices) > 1:
        choices = tuple(replace(choice, id=f"{choice.id}-{index}") for index, choice in enumerate(choices))
    return CompletionRequest(
        model=model,
        choices=choices,
        choices_each=n,
        stream=stream,
        include_usage=include_usage,
        echo=echo,
        verbose=shared["wants_prompt"],
    )


def nth_choice(request: Generate, k: int) -> Generate:
    seed = request.sampling.seed
    if k == 0 or seed is None:
        return request
    # With the same seed all choices would have the same text.
    return replace(request, sampling=replace(request.sampling, seed=(seed + k) % (MAX_SEED + 1)))


def _n_choices(fields: Fields) -> int:
    return fields.integer("n", 1, MAX_CHOICES) or 1


def _wanted_tokens(fields: Fields, default: int | None, *keys: str, low: int = 1) -> int | None:
    """The first number given in ``keys``, or ``default``. ``None``, which some clients send as -1: up to the context's
    end."""
    given = [key for key in keys if fields.values.get(key) is not None]
    if not given:
        return default
    numbers = [None if fields.values[key] == -1 else fields.integer(key, low) for key in given]
    return next((number for number in numbers if number is not None), None)


def _sampling(fields: Fields, response_format: Grammar | None) -> Sampling:
    chosen = sampling(fields, DEFAULTS)
    return replace(chosen, grammar=only_one(one for one in (chosen.grammar, response_format) if one is not None))


def _response_format(fields: Fields) -> Grammar | None:
    """The JSON schema that ``response_format`` asks for."""
    wanted = fields.object("response_format")
    if wanted is None:
        return None
    kind = wanted.required_one_of("type", ("text", "json_object", "json_schema"))
    if kind == "json_object":
        # llama-server takes a schema here too.
        return schema(wanted, "schema") or Grammar(Syntax.JSON_SCHEMA, ANY_OBJECT, fields.name("response_format"))
    if kind == "text":
        return None
    described = Fields.of(wanted.values.get("json_schema"), wanted.name("json_schema"))
    given = schema(described, "schema")
    if given is None:
        raise bad_request(described.name("schema"), "an object", None)
    return given


def _chat_logprobs(fields: Fields) -> int | None:
    wanted = fields.boolean("logprobs", False)
    top = fields.integer("top_logprobs", 0, MAX_TOP_LOGPROBS)
    if top is not None and not wanted:
        raise RequestError(Fault.BAD_REQUEST, "top_logprobs", "expected to be absent where logprobs isn't true")
    return (top or 0) if wanted else None
