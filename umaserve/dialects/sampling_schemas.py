"""Declares how each next token is chosen: the fields of sampling that all APIs share."""

from __future__ import annotations

import re
from typing import Any

from umaserve.core import requests
from umaserve.core.errors import Fault, RequestError
from umaserve.core.requests import ADAPTIVE_P, SAMPLERS
from umaserve.dialects.grammars import CHOICES, GBNF, REGEX, SCHEMA, SCHEMA_OR_TEXT, STRUCTURED
from umaserve.wire import fields
from umaserve.wire.declared import Declared, Kind, array, boolean, choice, mapping, number, optional, strings, whole
from umaserve.wire.fields import MAX_INTEGER, Fields, integer, out_of_range

DEFAULTS = requests.Sampling(temperature=1.0, top_p=1.0)
"""OpenAI and Anthropic document these two; the other defaults are this server's own."""
MAX_STOPS, MAX_STOP_BYTES = 16, 256
MAX_BIASES = 1024
MAX_BAD_WORDS, MAX_BAD_WORD_BYTES = 256, 256
MAX_BREAKERS, MAX_BREAKER_BYTES = 16, 40
"""llama.cpp looks through its whole vocabulary for each sequence breaker, and takes no more bytes of one."""
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


_SAMPLER_NAMES = strings(32, 32)
_STOP_IDS = array(whole(0), high=MAX_BIASES, of="token ids")
SEED = Kind({"type": "integer", "minimum": -MAX_INTEGER, "maximum": MAX_INTEGER}, _seed)
TOKENS = Kind({"type": "integer", "minimum": -1, "maximum": MAX_WINDOW}, _tokens)
_BIASES = Kind(mapping(number(-100, 100), maxProperties=MAX_BIASES).schema | {"properties": {}}, _biases)


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
        TOKENS,
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
        TOKENS,
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
