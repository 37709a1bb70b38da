"""Parses OpenAI's chat and completion requests."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from umaserve.core.errors import Fault, RequestError
from umaserve.core.events import VoiceInfo
from umaserve.core.queries import CountPrompt
from umaserve.core.requests import Generate, Grammar, MixedText, Sampling, Speaking, Syntax, TokenIds
from umaserve.dialects.grammars import ANY_OBJECT, only_one
from umaserve.dialects.openai import schemas
from umaserve.dialects.openai.schemas import (
    CHAT_FORMATS,
    DEFAULT_COMPLETION_TOKENS,
    UNLIMITED,
    PlainFormat,
    SchemaFormat,
)
from umaserve.dialects.openai.server_tools import Known
from umaserve.dialects.openai.server_tools import offered as offered_by_servers
from umaserve.dialects.openai.speech import wanted_audio
from umaserve.dialects.openai.tool_schemas import ServerTools
from umaserve.dialects.openai.turns import chosen_tools, tools, turns
from umaserve.dialects.parameters import (
    RequestLimits,
    check_prompt_bytes,
    json_body,
    sampling,
    stops,
    template_kwargs,
    token_ids,
    with_targets,
    with_thoughts,
    within_cap,
)
from umaserve.dialects.sampling_schemas import DEFAULTS, MAX_SEED
from umaserve.dialects.server_tools import ServerToolsOf
from umaserve.wire.fields import Fields, bad_request, out_of_range

MAX_GENERATIONS = 32
"""Prompts times choices per prompt, in one request."""
MAX_PROMPTS = 16


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
    servers: Known = field(default_factory=dict)
    """The tools that the daemon calls."""


def chat_request(
    body: bytes,
    limits: RequestLimits,
    voice: VoiceInfo | None,
    new_id: str,
    server_tools: ServerToolsOf | None = None,
) -> CompletionRequest:
    """Parse a body of ``POST /v1/chat/completions``; raises ``RequestError``. ``voice``: the daemon's, if it has
    one. ``server_tools``: as in ``Facts``."""
    given = schemas.ChatRequest.view(json_body(body))
    for legacy in ("functions", "function_call"):
        if given.values.get(legacy) is not None:
            raise RequestError(Fault.BAD_REQUEST, legacy, "expected to be absent, use tools and tool_choice")
    if given.values.get("prompt_logprobs") is not None:
        raise RequestError(Fault.BAD_REQUEST, "prompt_logprobs", "expected to be absent, use /v1/completions")
    wanted = given.tools or ()
    of_servers, known = offered_by_servers([one for one in wanted if isinstance(one, ServerTools)], server_tools)
    if of_servers and (n := given.n or 1) != 1:
        raise out_of_range("n", "1 where tools has one of the type mcp", n)
    all_tools = tools(wanted, given.name("tools"), of_servers)
    offered, must_call, parallel_calls = chosen_tools(given, all_tools)
    response_format = _response_format(given)
    # The format is that of answers in words.
    chosen = _sampling(given, None if must_call else response_format)
    if must_call and chosen.grammar is not None:
        problem = f"expected no required call where {chosen.grammar.field} is given, got both"
        raise RequestError(Fault.BAD_REQUEST, "tool_choice", problem)
    max_tokens = _first_limit(given.max_completion_tokens, given.max_tokens, given.n_predict)
    continues, opens = _continuation(given)
    kwargs, thinks = _template_kwargs(given)
    one = Generate(
        id=new_id,
        prompt=turns(given, limits),
        max_tokens=within_cap(max_tokens, limits),
        sampling=chosen,
        stop=stops(given),
        logprobs=_chat_logprobs(given),
        tools=offered,
        must_call=must_call,
        parallel_calls=parallel_calls,
        continue_final_message=continues,
        add_generation_prompt=opens,
        enable_thinking=thinks,
        chat_template_kwargs=kwargs,
    )
    audio = wanted_audio(given, voice)
    inline = given.reasoning_format == "none" and audio is None
    one = with_thoughts(one, given, split=not inline)
    if audio is None:
        return replace(_asked(given, (one,)), servers=known)
    if offered:
        raise RequestError(Fault.BAD_REQUEST, "tools", "expected none where audio is asked for")
    if (n := given.n or 1) != 1:
        raise out_of_range("n", "1 where audio is asked for", n)
    speaking = Speaking(sound_format=CHAT_FORMATS[audio])
    return replace(_asked(given, (replace(one, spoken=speaking),)), audio=audio)


def count_request(body: bytes, limits: RequestLimits, server_tools: ServerToolsOf | None = None) -> CountPrompt:
    """Parse a body of ``POST /v1/chat/completions/input_tokens``, which is one of ``/v1/chat/completions``; raises
    ``RequestError``."""
    return CountPrompt(chat_request(body, limits, None, "", server_tools).choices[0])


def _template_kwargs(given: schemas.ChatRequest) -> tuple[dict[str, object], bool | None]:
    """The chat template's variables, with ``reasoning_effort`` among them; and whether the model is to think."""
    kwargs, thinks = template_kwargs(given)
    effort = given.reasoning_effort
    if effort == "none":
        return kwargs, False
    return kwargs | ({} if effort is None else {"reasoning_effort": effort}), thinks


def _continuation(given: schemas.ChatRequest) -> tuple[bool | None, bool]:
    """``continue_final_message`` and ``add_generation_prompt``, as in llama-server and vLLM."""
    continues, opens = given.continue_final_message, given.add_generation_prompt
    if continues and opens and given.values.get("add_generation_prompt") is not None:
        problem = "expected false where continue_final_message is true, got true"
        raise RequestError(Fault.BAD_REQUEST, "add_generation_prompt", problem)
    return continues, opens


def completion_request(body: bytes, limits: RequestLimits, new_id: str) -> CompletionRequest:
    """Parse a body of ``POST /v1/completions``; raises ``RequestError``."""
    given = schemas.CompletionRequest.view(json_body(body))
    _ = given.suffix  # Refused unless it is empty.
    n = given.n or 1
    if (best_of := given.best_of) not in (None, n):
        raise out_of_range("best_of", f"{n}, the value of n", best_of)
    prompts = inputs(given, "prompt", limits, MAX_PROMPTS)
    if n * len(prompts) > MAX_GENERATIONS:
        raise out_of_range("n", f"at most {MAX_GENERATIONS // len(prompts)} for {len(prompts)} prompts", n)
    logprobs, prompt_logprobs, echo = given.logprobs, given.prompt_logprobs, given.echo
    if echo and logprobs is None and not all(isinstance(prompt, str) for prompt in prompts):
        problem = "expected false where the prompt is token ids and logprobs are not asked for, got true"
        raise RequestError(Fault.BAD_REQUEST, "echo", problem)
    max_tokens = _first_limit(given.max_tokens, given.n_predict, default=DEFAULT_COMPLETION_TOKENS)
    of_prompt = [wanted for wanted in (logprobs if echo else None, prompt_logprobs) if wanted is not None]
    one = Generate(
        id=new_id,
        prompt="",
        max_tokens=within_cap(max_tokens, limits),
        sampling=_sampling(given, _response_format(given)),
        stop=stops(given),
        logprobs=logprobs,
        prompt_logprobs=max(of_prompt, default=None),
    )
    asked = _asked(given, tuple(replace(one, prompt=prompt) for prompt in prompts), echo=echo)
    if asked.stream and prompt_logprobs is not None:
        problem = "expected to be absent in a stream, which gives the same by echo and logprobs"
        raise RequestError(Fault.BAD_REQUEST, "prompt_logprobs", problem)
    return replace(asked, prompt_logprobs=prompt_logprobs)


def inputs(fields: Fields, key: str, limits: RequestLimits, max_items: int) -> tuple[str | TokenIds | MixedText, ...]:
    """OpenAI's and llama-server's forms of texts: a string, an array of token ids or of ids and strings, or an array of
    up to ``max_items`` of these."""
    value, path = fields.values.get(key), fields.name(key)
    if not isinstance(value, list) or any(type(item) is int for item in value):
        return (_input(value, path, limits),)
    if not 1 <= len(value) <= max_items:
        raise out_of_range(path, f"1 to {max_items} texts", len(value))
    return tuple(_input(item, f"{path}[{i}]", limits) for i, item in enumerate(value))


def _input(value: object, path: str, limits: RequestLimits) -> str | TokenIds | MixedText:
    if isinstance(value, list):
        if not value:
            raise out_of_range(path, "at least one token id", "none")
        if any(isinstance(item, str) for item in value):
            return _mixed(value, path, limits)
        return TokenIds(token_ids(value, path, limits))
    if not isinstance(value, str):
        raise bad_request(path, "a string or an array of token ids", value)
    check_prompt_bytes(len(value.encode()), limits, path)
    return value


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


def _asked(
    given: schemas.ChatRequest | schemas.CompletionRequest, requests: tuple[Generate, ...], *, echo: bool = False
) -> CompletionRequest:
    n, stream, options = given.n or 1, given.stream, given.stream_options
    include_usage = options is not None and options.include_usage
    if options is not None and not stream and any(value is not None for value in options.values.values()):
        raise RequestError(Fault.BAD_REQUEST, "stream_options", "expected to be absent where stream isn't true")
    shared: dict[str, Any] = {
        "cache_prompt": given.cache_prompt,
        "lora": given.lora,
        "wants_progress": given.return_progress and stream,
        "wants_prompt": given.verbose,
        "model": given.model or "",
    }
    requests = tuple(with_targets(replace(request, **shared), given) for request in requests)
    choices = tuple(nth_choice(request, k) for request in requests for k in range(n))
    if len(choices) > 1:
        choices = tuple(replace(choice, id=f"{choice.id}-{index}") for index, choice in enumerate(choices))
    return CompletionRequest(
        model=shared["model"],
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


def _first_limit(*given: int | None, default: int | None = None) -> int | None:
    """The first number of tokens that is given, or ``default``; ``None``: up to the context's end."""
    numbers = [number for number in given if number is not None]
    return next((number for number in numbers if number != UNLIMITED), None if numbers else default)


def _sampling(given: Fields, response_format: Grammar | None) -> Sampling:
    chosen = sampling(given, DEFAULTS)
    return replace(chosen, grammar=only_one((chosen.grammar, response_format)))


def _response_format(given: schemas.ChatRequest | schemas.CompletionRequest) -> Grammar | None:
    """The JSON schema that ``response_format`` asks for."""
    wanted: PlainFormat | SchemaFormat | None = given.response_format
    match wanted:
        case SchemaFormat():
            return wanted.json_schema.schema_
        case PlainFormat() if wanted.type == "json_object":
            # llama-server takes a schema here too.
            return wanted.schema_ or Grammar(Syntax.JSON_SCHEMA, ANY_OBJECT, given.name("response_format"))
    return None


def _chat_logprobs(given: schemas.ChatRequest) -> int | None:
    wanted, top = given.logprobs, given.top_logprobs
    if top is not None and not wanted:
        raise RequestError(Fault.BAD_REQUEST, "top_logprobs", "expected to be absent where logprobs isn't true")
    return (top or 0) if wanted else None
