"""Schemas that all APIs share: sampling, what the engine computes for a request, targets, errors."""

from __future__ import annotations

import re
from typing import Any

from umaserve.core import requests
from umaserve.core.errors import Fault, RequestError
from umaserve.core.requests import ADAPTIVE_P, SAMPLERS, Priority
from umaserve.dialects.grammars import CHOICES, GBNF, MAX_GRAMMAR_BYTES, REGEX, SCHEMA, SCHEMA_OR_TEXT, STRUCTURED
from umaserve.wire import fields
from umaserve.wire.declared import (
    Declared,
    Kind,
    array,
    boolean,
    choice,
    const,
    mapping,
    named,
    nullable,
    number,
    one_of,
    optional,
    required,
    string,
    strings,
    switch,
    whole,
)
from umaserve.wire.fields import MAX_INTEGER, Fields, integer, out_of_range

DEFAULTS = requests.Sampling(temperature=1.0, top_p=1.0)
"""OpenAI and Anthropic document these two; the other defaults are this server's own."""
MAX_ID_BYTES = 256
MAX_TURNS = 1024
MAX_ITEMS = 256
"""Most texts and media of one message."""
MAX_KWARGS_BYTES = 64 * 1024
MAX_STOPS, MAX_STOP_BYTES = 16, 256
MAX_BIASES = 1024
MAX_BAD_WORDS, MAX_BAD_WORD_BYTES = 256, 256
MAX_BREAKERS, MAX_BREAKER_BYTES = 16, 40
"""llama.cpp looks through its whole vocabulary for each sequence breaker, and takes no more bytes of one."""
MAX_ADAPTERS, MAX_ADAPTER_BYTES = 16, 256
MAX_SCALE = 10.0
MAX_SEED = 2**32 - 2
"""The largest that llama.cpp's samplers take: the next one stands for a random one."""
MAX_WINDOW = 2**31 - 1
"""More than any context has."""
MAX_DRY = 100.0
_LETTERS = {
    "e": "penalties",
    "d": "dry",
    "s": "top_n_sigma",
    "k": "top_k",
    "y": "typ_p",
    "p": "top_p",
    "m": "min_p",
    "x": "xtc",
    "t": "temperature",
    "a": ADAPTIVE_P,
}
_ALIASES = {name.replace("_", ""): name for name in _LETTERS.values()} | {
    "nucleus": "top_p",
    "typ": "typ_p",
    "typical_p": "typ_p",
    "temp": "temperature",
}
"""llama-server's other names of samplers, without hyphens."""
MIN_SAMPLE_RATE, MAX_SAMPLE_RATE = 1000, 384_000
MAX_SLO_MS = 3_600_000.0
ROLES = ("system", "user", "assistant", "tool")
REASONING = ("inline", "separate", "off")
"""Thoughts in the text with their marks, in a field of their own, or nowhere."""
PRIORITIES = {"interactive": Priority.INTERACTIVE, "background": Priority.BACKGROUND}
ABOUT_MODEL = (
    "One that /v1/models lists, or an alias. Without one, or by an unknown name (refused with --strict-models): the "
    "default model."
)
ABOUT_STRICT = (
    "true: a schema with a keyword that no grammar can enforce is refused by its path. Otherwise such keywords are"
    " left out, with one line in the server's log."
)
ABOUT_TOOL_FORMAT = (
    "The model gets the grammar in its prompt, and the input matches it: a regular expression in the syntax of Rust's"
    " regex crate, without look-around, or Lark, without templates and imports other than those of common."
)


class ToolText(Declared):
    """Format of a custom tool's input that may be any text."""

    type = required(const("text"))


class ToolGrammar(Declared):
    """A grammar that a custom tool's input matches."""

    syntax = required(choice("lark", "regex"))
    definition = required(string(1, MAX_GRAMMAR_BYTES))


def _tokens(given: Any, path: str) -> int:
    number = integer(given, path, -1, MAX_WINDOW)
    return number if number >= 0 else MAX_WINDOW


def _seed(given: Any, path: str) -> int:
    # OpenAI's seeds have 64 bits. Those that the samplers take stay as they are.
    return integer(given, path, -MAX_INTEGER) % (MAX_SEED + 1)


def _dry_base(given: Any, path: str) -> float:
    base = fields.number(given, path, 0.0, MAX_DRY)
    return base if base >= 1 else DEFAULTS.dry_base


def _ids(given: Any, path: str) -> tuple[int, ...]:
    return tuple(_STOP_IDS.read(given, path))


def _samplers(given: Any, path: str) -> tuple[str, ...]:
    """The samplers to use, in the order in which to use them. Unknown ones are left out, as in llama-server; so is
    "infill", which editors send."""
    names = _SAMPLER_NAMES.read(given, path)
    if not names:
        return SAMPLERS
    if isinstance(given, str):
        names = tuple(_LETTERS.get(letter, "") for letter in given)
    names = tuple(name.lower().replace("-", "_") for name in names)
    used = tuple(name for one in names if (name := _ALIASES.get(one, one)) in (*SAMPLERS, ADAPTIVE_P))
    if len(set(used)) < len(used):
        raise RequestError(Fault.BAD_REQUEST, path, "expected each sampler once, got one repeated")
    return used


def _biases(given: Any, path: str) -> tuple[tuple[int, float], ...]:
    biases = Fields.of(given, path)
    if len(biases.values) > MAX_BIASES:
        raise out_of_range(path, f"at most {MAX_BIASES} tokens", len(biases.values))
    pairs = []
    for key, bias in biases.values.items():
        if not re.fullmatch("[0-9]{1,9}", key):
            raise out_of_range(path, "token ids as keys", f'"{key[:32]}"')
        pairs.append((int(key), fields.number(bias, biases.name(key), -100.0, 100.0)))
    return tuple(pairs)


def _adapters(given: Any, path: str) -> tuple[tuple[str, float], ...]:
    adapters = Fields.of(given, path)
    if len(adapters.values) > MAX_ADAPTERS:
        raise out_of_range(path, f"at most {MAX_ADAPTERS} adapters", len(adapters.values))
    pairs = []
    for name, scale in adapters.values.items():
        if not 1 <= (n_bytes := len(name.encode())) <= MAX_ADAPTER_BYTES:
            raise out_of_range(path, f"names of 1 to {MAX_ADAPTER_BYTES} bytes", f"{n_bytes} bytes")
        pairs.append((name, fields.number(scale, adapters.name(name), -MAX_SCALE, MAX_SCALE)))
    return tuple(pairs)


Base64 = Kind(string(1).schema, fields.media_data)
"""Base64 text, which is checked where it is decoded."""
_SAMPLER_NAMES = strings(32, 32)
_STOP_IDS = array(whole(0), high=MAX_BIASES, of="token ids")
_PRIORITY = Kind(choice(*PRIORITIES).schema, lambda given, path: PRIORITIES[fields.one_of(given, path, PRIORITIES)])
SEED = Kind({"type": "integer", "minimum": -MAX_INTEGER, "maximum": MAX_INTEGER}, _seed)
_TOKENS = Kind({"type": "integer", "minimum": -1, "maximum": MAX_WINDOW}, _tokens)
_BIASES = Kind(mapping(number(-100, 100), maxProperties=MAX_BIASES).schema | {"properties": {}}, _biases)
_ADAPTERS = Kind(
    mapping(
        number(-MAX_SCALE, MAX_SCALE), maxProperties=MAX_ADAPTERS, propertyNames={"minLength": 1, "maxLength": 256}
    ).schema
    | {"properties": {}},
    _adapters,
)


def object_text(max_bytes: int) -> Kind[str]:
    """An object, read as JSON text of at most ``max_bytes``."""

    def read(given: Any, path: str) -> str:
        return fields.dump_capped(Fields.of(given, path).values, path, max_bytes).decode()

    return Kind({"type": "object"}, read)


class Sampling(Declared):
    """How each next token is chosen. Defaults are those of /v1/chat/completions and /v1/completions; at /v1/generate
    temperature is 0 and top_p is 0.95 by default."""

    temperature = optional(number(0, 10), "0: always the likeliest token.", default=DEFAULTS.temperature)
    top_p = optional(
        number(0, 1, above_low=True),
        "Choose among the likeliest tokens whose probabilities add up to this.",
        default=DEFAULTS.top_p,
    )
    top_k = optional(
        whole(0, 1048576), "Choose among this many of the likeliest tokens; 0: among all.", default=DEFAULTS.top_k
    )
    min_p = optional(
        number(0, 1), "Drop tokens below this share of the likeliest one's probability.", default=DEFAULTS.min_p
    )
    repeat_penalty = optional(
        number(0, 10, above_low=True),
        "Makes recent tokens less likely by this factor; 1: off.",
        default=DEFAULTS.repeat_penalty,
    )
    presence_penalty = optional(
        number(-2, 2), "Subtracted from the logit of each recent token.", default=DEFAULTS.presence_penalty
    )
    frequency_penalty = optional(
        number(-2, 2),
        "Subtracted from the logit of each recent token, once for each occurrence.",
        default=DEFAULTS.frequency_penalty,
    )
    penalty_window = optional(
        _TOKENS,
        "How many of the last tokens count for the penalties; 0: no penalties; -1: all.",
        default=DEFAULTS.penalty_window,
        key="repeat_last_n",
    )
    samplers = optional(
        Kind(_SAMPLER_NAMES.schema, _samplers),
        "The samplers to use, by llama-server's names or letters, in the order in which to apply them: penalties (e), "
        "dry (d), top_n_sigma (s), top_k (k), typ_p (y), top_p (p), min_p (m), xtc (x), temperature (t), which are the "
        "default in this order; and adaptive_p (a), always the last one.",
    )
    dry_multiplier = optional(
        number(0, MAX_DRY),
        "DRY: a token that would go on with a repetition loses dry_multiplier * dry_base ^ (the repetition's length - "
        "dry_allowed_length); 0: off.",
        default=DEFAULTS.dry_multiplier,
    )
    dry_base = optional(
        Kind(number(0, MAX_DRY).schema, _dry_base), "DRY; below 1 means 1.75.", default=DEFAULTS.dry_base
    )
    dry_allowed_length = optional(
        whole(0, MAX_WINDOW), "DRY: tokens that may repeat.", default=DEFAULTS.dry_allowed_length
    )
    dry_penalty_last_n = optional(
        _TOKENS,
        "DRY: how many of the last tokens are looked through; 0: none; -1: all.",
        default=DEFAULTS.dry_penalty_last_n,
    )
    dry_sequence_breakers = optional(
        strings(MAX_BREAKERS, MAX_BREAKER_BYTES),
        "DRY: texts at which a repetition ends.",
        default=list(DEFAULTS.dry_sequence_breakers),
    )
    top_n_sigma = optional(
        number(-1, 100),
        "Keep the tokens whose weight is within so many standard deviations of the greatest one; 0 and below: all.",
        default=DEFAULTS.top_n_sigma,
    )
    typical_p = optional(
        number(0, 1),
        "Choose among the tokens nearest to the usual surprise that have this probability together; 1: among all.",
        default=DEFAULTS.typical_p,
    )
    xtc_probability = optional(
        number(0, 1),
        "XTC: how often all tokens of xtc_threshold and more are dropped but the least likely of them; 0: never.",
        default=DEFAULTS.xtc_probability,
    )
    xtc_threshold = optional(number(0, 1), "XTC: a probability; above 0.5 it is off.", default=DEFAULTS.xtc_threshold)
    dynatemp_range = optional(
        number(0, 10),
        "The temperature is so much lower or higher, the more certain or uncertain the next token is; 0: the same.",
        default=DEFAULTS.dynatemp_range,
    )
    dynatemp_exponent = optional(
        number(0, 10), "How a token's uncertainty becomes its temperature.", default=DEFAULTS.dynatemp_exponent
    )
    mirostat = optional(
        whole(0, 2),
        "Version of Mirostat, which holds the text's surprise near mirostat_tau, and takes the place of all samplers "
        "but the temperature; 0: off.",
        default=DEFAULTS.mirostat,
    )
    mirostat_tau = optional(number(0, 100), "Mirostat: bits of surprise.", default=DEFAULTS.mirostat_tau)
    mirostat_eta = optional(number(0, 1), "Mirostat: its rate of learning.", default=DEFAULTS.mirostat_eta)
    adaptive_target = optional(
        number(-1, 1),
        "adaptive_p: a probability near which tokens are drawn; below 0: as usual. Only where samplers names it.",
        default=DEFAULTS.adaptive_target,
    )
    adaptive_decay = optional(
        number(0, 0.99), "adaptive_p: how long earlier tokens count.", default=DEFAULTS.adaptive_decay
    )
    min_tokens = optional(
        whole(0, MAX_WINDOW),
        "Before so many tokens, neither the model nor stop_token_ids ends the text.",
        default=DEFAULTS.min_tokens,
    )
    stop_token_ids = optional(
        Kind(_STOP_IDS.schema, _ids), "Tokens that end the text, of which they are no part.", default=[]
    )
    bad_words = optional(
        strings(MAX_BAD_WORDS, MAX_BAD_WORD_BYTES),
        "Texts that must not come, with or without a space before them, in the tokens by which the model writes them.",
        default=[],
    )
    seed = optional(
        SEED,
        f"The same seed and request give the same text; random by default. It counts modulo {MAX_SEED + 1}.",
    )
    logit_bias = optional(
        _BIASES,
        "Token ids, and the bias added to their logits: -100 bans a token, 100 forces it.",
    )
    stop = optional(strings(MAX_STOPS, MAX_STOP_BYTES), "The text ends before the first of these.")
    grammar = optional(
        GBNF,
        "A grammar that the text has to follow, in the syntax that grammar_syntax names. Of this field and the six"
        " below that constrain the text, and response_format, at most one may be given.",
    )
    grammar_syntax = optional(
        choice("gbnf", "lark"),
        "The syntax of grammar, guided_grammar and structured_outputs.grammar: llama.cpp's GBNF, or "
        "Lark as llguidance reads it.",
        default="gbnf",
    )
    json_schema = optional(SCHEMA, "A JSON schema that the text has to follow.")
    regex = optional(
        REGEX,
        "A regular expression that the whole text has to match, in the syntax of Rust's regex crate, "
        "without look-around.",
    )
    guided_json = optional(SCHEMA_OR_TEXT, "As json_schema, or its JSON text.")
    guided_regex = optional(REGEX, "As regex.")
    guided_choice = optional(CHOICES, "Texts of which the answer has to be one.")
    guided_grammar = optional(GBNF, "As grammar.")
    structured_outputs = optional(STRUCTURED, "One of these, as the fields of the same names; json_object: any object.")
    ignore_eos = optional(boolean(), "Continue where the model would end.", default=DEFAULTS.ignore_eos)


class Computation(Declared):
    """What the prompt and the answer are computed with."""

    cache_prompt = switch(True, "Reuse the cached prefixes of other requests, and cache this one's.")
    lora = optional(
        _ADAPTERS,
        "The server's LoRA adapters to use, by name, each with its scale; {}: none. By default all, at 1.",
    )


class Thoughts(Declared):
    reasoning_budget = optional(
        _TOKENS,
        "The number of tokens after which thoughts are closed by force: -1 never, 0 at once. Default: the server's"
        " --reasoning-budget.",
    )
    thinking_budget_tokens = optional(_TOKENS, "Another name of reasoning_budget.")
    stop_in_reasoning = switch(False, "Whether stop strings also end the answer inside thoughts.")


_OF_REQUEST, _OF_MODEL = "it is a field of the request", "it comes from the model"
_NOT_KWARGS = {
    **dict.fromkeys(("messages", "tools", "add_generation_prompt"), _OF_REQUEST),
    **dict.fromkeys(("bos_token", "eos_token"), _OF_MODEL),
}


class _Kwargs(Declared):
    enable_thinking = optional(boolean())


def _kwargs(given: Any, path: str) -> _Kwargs:
    kwargs = _Kwargs.of(given, path)
    fields.dump_capped(kwargs.values, path, MAX_KWARGS_BYTES)
    for name in kwargs.values:
        if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]{0,63}", name):
            raise out_of_range(path, "names of variables as keys", f'"{name}"')
        if name in _NOT_KWARGS:
            raise RequestError(Fault.BAD_REQUEST, kwargs.name(name), f"expected to be absent: {_NOT_KWARGS[name]}")
    return kwargs


class TemplateKwargs(Declared):
    chat_template_kwargs = optional(
        Kind({"$ref": _Kwargs}, _kwargs),
        "Variables of the model's chat template. enable_thinking: whether a model that can think does so, true by"
        " default; preserve_reasoning: whether thoughts of earlier turns stay in the prompt, true by default.",
    )
    enable_thinking = optional(
        boolean(), "The same as enable_thinking in chat_template_kwargs, which takes precedence."
    )


class _Slo(Declared):
    target_ttft_ms = optional(number(0, MAX_SLO_MS, above_low=True), "Time to first token.")
    target_tbt_ms = optional(number(0, MAX_SLO_MS, above_low=True), "Between tokens.")


class Targets(Declared):
    priority = optional(_PRIORITY, "Background requests wait for interactive ones.", default="interactive")
    slo = optional(_Slo, "Latencies to aim for, in milliseconds.")


class TextItem(Declared):
    type = required(const("text"))
    text = required(string())


class ImageItem(Declared):
    type = required(const("image"))
    data = required(Base64, "The file in base64.")


class AudioItem(Declared):
    type = required(const("audio"))
    data = required(
        Base64, "The file in base64, or where there is a sample_rate, mono samples: 32-bit floats, little-endian."
    )
    sample_rate = optional(whole(MIN_SAMPLE_RATE, MAX_SAMPLE_RATE), "Samples per second; absent for a file.")


class VideoItem(Declared):
    type = required(const("video"))
    data = required(Base64, "The file in base64, with its sound.")
    stack_frames = optional(
        whole(1, 16), "Pictures per second; all but the first of each second are tiled into one.", default=1
    )


def content_with(sound: type[Declared], about: str = "") -> Kind[Any]:
    """Content of a message: a text, or an array of texts and media. ``sound``: its form of recordings; ``about``: what
    is said of the array besides."""
    order = "Consecutive texts are joined as lines; images, recordings and films keep their places among them."
    items = one_of(TextItem, ImageItem, sound, VideoItem)
    return one_of(string(), array(items, 1, MAX_ITEMS, description=order + about))


FinishReason = named(
    "FinishReason",
    choice("stop", "length", "content_filter"),
    "stop: the model or a stop string ended it; length: max_tokens did.",
)


class _Error(Declared):
    message = required(string(), "Names the field, what was expected and what was found.")
    type = required(choice("invalid_request_error", "rate_limit_error", "server_error"))
    param = nullable(string(), "The field.")
    code = nullable(string(), "Such as context_length_exceeded, invalid_api_key or rate_limit_exceeded.")


class Error(Declared):
    error = required(_Error)
