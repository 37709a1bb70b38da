"""Schemas of the API of llama-server."""

from __future__ import annotations

import re
from typing import Any

from umaserve.core import requests
from umaserve.core.errors import Fault, RequestError
from umaserve.core.requests import SAMPLERS
from umaserve.dialects.openai.schemas import MAX_CHOICES, PromptProgress, Texts, Timings
from umaserve.dialects.schemas import (
    MAX_ADAPTERS,
    MAX_BIASES,
    MAX_ID_BYTES,
    MAX_SCALE,
    MAX_SEED,
    MAX_STOPS,
    Computation,
    Sampling,
    Targets,
)
from umaserve.wire import fields
from umaserve.wire.declared import (
    Declared,
    Field,
    Kind,
    any_of,
    array,
    boolean,
    choice,
    const,
    mapping,
    number,
    omittable,
    one_of,
    optional,
    required,
    string,
    strings,
    switch,
    value,
    whole,
)
from umaserve.wire.fields import bad_request

DEFAULTS = requests.Sampling(temperature=0.8)
RANDOM_SEED = MAX_SEED + 1
"""Stands for a seed that the server draws, as -1 does."""
BAN = 100.0
NONE, MAX_ABSOLUTE, TAXICAB, EUCLIDEAN = -1, 0, 1, 2
"""How vectors may be normalized."""
_LETTERS = {"e": "penalties", "k": "top_k", "p": "top_p", "m": "min_p", "t": "temperature"}
_ALIASES = {"topk": "top_k", "topp": "top_p", "nucleus": "top_p", "minp": "min_p", "temp": "temperature"}


def _seed(given: Any, path: str) -> int | None:
    return None if given in (-1, RANDOM_SEED) else Sampling.seed.kind.read(given, path)


def _top_k(given: Any, path: str) -> int | None:
    return 0 if given == -1 else Sampling.top_k.kind.read(given, path)


def _stop(given: Any, path: str) -> tuple[str, ...] | None:
    texts = [text for text in given if text != ""] if isinstance(given, list) else given
    return () if texts == "" else Sampling.stop.kind.read(texts, path)


def _pairs(given: Any, path: str) -> list[tuple[int | str, Any]]:
    """Biases, each with a token's id or a text."""
    if isinstance(given, dict):
        pairs: list[Any] = [[int(key) if re.fullmatch("[0-9]{1,9}", key) else key, given[key]] for key in given]
    elif isinstance(given, list):
        pairs = given
    else:
        raise bad_request(path, "an object or an array of pairs", given)
    fields.array(pairs, path, 0, MAX_BIASES, "pairs")
    if not all(isinstance(pair, list) and len(pair) == 2 and type(pair[0]) in (int, str) for pair in pairs):
        raise RequestError(Fault.BAD_REQUEST, path, "expected pairs of a token id or a text and its bias")
    return [(key, -BAN if bias is False else bias) for key, bias in pairs]


def _biases(given: Any, path: str) -> tuple[tuple[tuple[int, float], ...], tuple[tuple[str, float], ...]]:
    """Biases of tokens, and of texts."""
    pairs = _pairs(given, path)
    tokens = Sampling.logit_bias.kind.read({str(key): bias for key, bias in pairs if isinstance(key, int)}, path)
    texts = [(_BIASED.read(key, path), bias) for key, bias in pairs if isinstance(key, str)]
    return tokens or (), tuple((text, _BIAS.read(bias, path)) for text, bias in texts)


def _samplers(given: Any, path: str) -> tuple[str, ...]:
    """The samplers to use, in the order in which to use them. Others are off in any case, or are refused by their
    parameters; "infill" has none, and is left out of what editors send."""
    names = _NAMES.read(given, path)
    if not names:
        return SAMPLERS
    if isinstance(given, str):
        names = tuple(_LETTERS.get(letter, "") for letter in given)
    names = tuple(name.lower().replace("-", "_") for name in names)
    used = tuple(name for one in names if (name := _ALIASES.get(one, one)) in SAMPLERS)
    if len(set(used)) < len(used):
        raise RequestError(Fault.BAD_REQUEST, path, "expected each sampler once, got one repeated")
    return used


def _document(given: Any, path: str) -> str:
    """A text, or the one in ``{"text": TEXT}``."""
    if isinstance(given, dict):
        given, path = given.get("text"), f"{path}.text"
    return fields.string(given, path, empty=True)


_BIAS = number(-BAN, BAN)
_BIASED = string(max_bytes=256)
_BIAS_OR_BAN = any_of(_BIAS, const(False))
_BIASES = Kind(
    one_of(
        mapping(_BIAS_OR_BAN, maxProperties=MAX_BIASES),
        array(
            value(type="array", prefixItems=[any_of(whole(0), _BIASED), _BIAS_OR_BAN], minItems=2, maxItems=2),
            high=MAX_BIASES,
        ),
    ).schema,
    _biases,
)
_NAMES = strings(32, 32)


class _DefaultSampling(Declared):
    seed = required(whole(), "4294967295: a random one.")
    temperature = required(number())
    top_k = required(number())
    top_p = required(number())
    min_p = required(number())
    repeat_penalty = required(number())
    presence_penalty = required(number())
    frequency_penalty = required(number())


class _Defaults(Declared):
    n_ctx = required(whole(), "Tokens that prompt and answer may have together.")
    params = required(_DefaultSampling)


class _Modalities(Declared):
    vision = required(boolean())
    audio = required(boolean())


class Props(Declared):
    default_generation_settings = required(_Defaults)
    total_slots = required(whole(), "Sequences decoded at once.")
    model_alias = required(string())
    model_path = required(string(), "The name of the model's file, without its folder.")
    chat_template = required(string())
    bos_token = required(string())
    eos_token = required(string())
    modalities = required(_Modalities)
    lacks = required(array(string()), "What this model can't do here that other models can, a sentence each.")


class _OfModel(Declared):
    model = optional(
        string(max_bytes=MAX_ID_BYTES),
        "One that /v1/models lists, or an alias. Without one, or by an unknown name (refused with --strict-models): "
        "the default model.",
    )


class TokenizeRequest(_OfModel):
    content = required(string())
    add_special = switch(False, "Begin with the model's start token, if it has one, as a prompt does.")
    parse_special = switch(True, "Read the names of control tokens as such.")
    with_pieces = switch(False)


class _TokenWithPiece(Declared):
    id = required(whole())
    piece = required(one_of(string(), array(whole(0, 255))), "Text, or its bytes where it is a part of a character.")


class Tokens(Declared):
    tokens = required(array(one_of(whole(), _TokenWithPiece)))


class DetokenizeRequest(_OfModel):
    tokens = required(array(whole(0)))


class Text(Declared):
    content = required(string())


class Prompt(Declared):
    prompt = required(string())


class _Error(Declared):
    code = required(whole(), "The HTTP status.")
    message = required(string(), "Names the field, what came and what was expected.")
    type = required(
        choice(
            "invalid_request_error",
            "authentication_error",
            "permission_error",
            "not_found_error",
            "exceed_context_size_error",
            "rate_limit_error",
            "not_supported_error",
            "server_error",
            "unavailable_error",
        )
    )
    n_prompt_tokens = omittable(whole(), "With exceed_context_size_error: of the prompt.")
    n_ctx = omittable(whole(), "With exceed_context_size_error: what the context holds.")


class NativeError(Declared):
    error = required(_Error)


class Adapter(Declared):
    id = required(whole(0), "Its number in /lora-adapters.")
    scale = optional(number(-MAX_SCALE, MAX_SCALE), default=1)


ADAPTERS = array(Adapter, high=MAX_ADAPTERS, of="adapters")


class NativeOptions(Sampling, Computation, Targets, _OfModel, defaults=DEFAULTS):
    seed = optional(
        Kind(whole(-1, RANDOM_SEED).schema, _seed),
        "The same seed and request give the same text; -1, 4294967295 and none: any.",
    )
    top_k = optional(
        Kind(Sampling.top_k.kind.schema | {"minimum": -1}, _top_k),
        "Choose among this many of the likeliest tokens; 0 and -1: among all.",
        default=DEFAULTS.top_k,
    )
    stop = optional(
        Kind(one_of(string(), array(string(), high=MAX_STOPS)).schema, _stop),
        "The text ends before the first of these; empty ones make no difference.",
    )
    # The inherited logit_bias has biases of token ids only.
    biases = optional(
        _BIASES,
        "Token ids, or texts for all their tokens, and what is added to their weight: -100 and false ban, 100 forces.",
        key="logit_bias",
    )
    lora = optional(
        Kind(one_of(Computation.lora.kind, ADAPTERS).schema, Computation.lora.kind.read),
        "The server's LoRA adapters to use, by name or number, each with its scale; none of them where it is empty. By "
        "default all, at 1.",
    )
    n_predict = optional(
        whole(-1),
        "The answer's length in tokens, cut to what the context holds and to the server's --max-tokens; -1, the "
        "default: as many; 0 makes one token, as in llama-server.",
    )
    max_tokens = optional(whole(-1), "As n_predict.")
    max_completion_tokens = optional(whole(-1), "As n_predict.")
    samplers = Field(
        Kind(_NAMES.schema, _samplers),
        "The samplers to use, by name or letter: penalties (e), top_k (k), top_p (p), min_p (m), temperature (t), in "
        "the order in which to apply them; others make no difference. By default all, in this order.",
        required=False,
        nullable=True,
        absent=SAMPLERS,
    )
    n_probs = optional(
        whole(0, 100), "Tell the log-probability of each token, and of so many of the likeliest; 0: none.", default=0
    )
    logprobs = optional(whole(0, 100), "As n_probs.")
    post_sampling_probs = switch(
        False,
        "Tell prob and top_probs, of the tokens that the samplers left, instead of logprob and top_logprobs before "
        "sampling.",
    )
    stream = switch(False, "Answer with server-sent events.")
    return_tokens = switch(False, "Tell the ids of the answer's tokens; a stream always does.")
    timings_per_token = switch(False, "Tell the timings with each event of a stream.")
    response_fields = optional(
        strings(64, 256),
        "The fields of the answer to send, by their paths, such as timings/predicted_n, which are then their names.",
    )
    return_progress = switch(False, "In a stream, tell how much of the prompt is computed.")


class NativeRequest(NativeOptions):
    prompt = required(Texts)
    n_cmpl = optional(
        whole(1, MAX_CHOICES), "Answers for each prompt. With a seed, each has its own, counted up from it.", default=1
    )
    n = optional(whole(1, MAX_CHOICES), "As n_cmpl.")


class _Token(Declared):
    id = required(whole())
    token = required(string())
    bytes = required(array(whole()))


class _TopLogprob(_Token):
    logprob = required(number())


class _TopProb(_Token):
    prob = required(number())


class NativeScored(_Token):
    logprob = omittable(number())
    prob = omittable(number(0, 1), "Instead of logprob, with post_sampling_probs.")
    top_logprobs = omittable(array(_TopLogprob))
    top_probs = omittable(array(_TopProb), "Instead of top_logprobs, with post_sampling_probs.")


class NativeAnswer(
    Declared, also={"patternProperties": {"/": {"description": "A value by its path in response_fields."}}}
):
    """With response_fields only those."""

    index = omittable(whole(), "Of the answer, from 0.")
    content = omittable(string())
    tokens = omittable(array(whole()))
    id_slot = omittable(const(-1), "Answers have no slot of their own.")
    tokens_predicted = omittable(whole())
    tokens_evaluated = omittable(whole(), "Tokens of the prompt.")
    stop = omittable(const(True))
    model = omittable(string())
    generation_settings = omittable(value(type="object"), "What the answer was made with, by llama-server's names.")
    prompt = omittable(value(), "As it was sent.")
    has_new_line = omittable(boolean())
    truncated = omittable(boolean(), "Whether the context's end came before the wanted length.")
    stop_type = omittable(choice("eos", "word", "limit", "none"))
    stopping_word = omittable(string())
    tokens_cached = omittable(whole())
    timings = omittable(Timings)
    completion_probabilities = omittable(array(NativeScored))


class NativePiece(Declared):
    index = required(whole(), "Of the answer, from 0.")
    content = required(string())
    tokens = required(array(whole()))
    id_slot = required(const(-1), "Answers have no slot of their own.")
    tokens_predicted = required(whole())
    tokens_evaluated = required(whole(), "Tokens of the prompt.")
    stop = required(const(False))
    timings = omittable(Timings)
    completion_probabilities = omittable(array(NativeScored))
    prompt_progress = omittable(PromptProgress)


class OtherFile(Declared):
    filename = optional(string(max_bytes=256))
    text = required(string())


class InfillRequest(NativeOptions):
    input_prefix = required(string(), "The text before the gap.")
    input_suffix = required(string(), "The text after it.")
    prompt = optional(string(), "How what fills the gap begins.")
    input_extra = optional(array(OtherFile, high=1024, of="objects"), "Other files that may help.")


class NativeEmbeddingRequest(_OfModel):
    content = required(Texts)
    embd_normalize = optional(
        whole(NONE, EUCLIDEAN),
        "-1: vectors as the model makes them; 0: the largest number is 32760; 1: all numbers add up to 1, without "
        "their signs; 2: vectors of unit length.",
        default=EUCLIDEAN,
    )


class _Document(Declared):
    text = required(string())


DOCUMENTS = array(Kind(one_of(string(), _Document).schema, _document), 1, 256, of="strings")


class RerankRequest(_OfModel):
    query = required(string(1))
    documents = optional(DOCUMENTS)
    texts = optional(DOCUMENTS, "As documents; the answer then has TEI's form.")
    top_n = optional(whole(1), "Only so many of the best.")
    return_text = switch(False, "In TEI's form, send the texts too.")
    return_documents = switch(False, "In Jina's form, send the texts too.")


class ModelToMove(Declared):
    model = required(string(1, MAX_ID_BYTES), "Its name, or an alias.")


class Moved(Declared):
    success = required(const(True))


class NativeEmbedding(Declared):
    index = required(whole())
    embedding = required(array(array(number())))


class _NextToken(Declared):
    has_next_token = omittable(boolean())
    n_remain = omittable(whole())
    n_decoded = omittable(whole())


class Slot(Declared):
    id = required(whole())
    n_ctx = required(whole())
    speculative = required(boolean())
    is_processing = required(boolean())
    id_task = omittable(whole())
    n_prompt_tokens = omittable(whole())
    n_prompt_tokens_processed = omittable(whole())
    n_prompt_tokens_cache = omittable(whole())
    params = omittable(value(type="object"), "What the answer is made with, without a client's texts.")
    next_token = omittable(array(_NextToken))
    prompt = omittable(string())


class LoraAdapter(Declared):
    id = required(whole(), "By which lora in a body of /completion may name it.")
    name_ = required(string())
    path = required(const(""))
    scale = required(const(1))
    task_name = omittable(const(""))
    prompt_prefix = omittable(const(""))


class _Usage(Declared):
    prompt_tokens = required(whole())
    total_tokens = required(whole())


class _RankedDocument(Declared):
    index = required(whole(), "Of the document, from 0.")
    relevance_score = required(number())
    document = omittable(_Document)


class RerankAnswer(Declared):
    model = required(string())
    object_ = required(const("list"))
    usage = required(_Usage)
    results = required(array(_RankedDocument))


class RankedText(Declared):
    index = required(whole())
    score = required(number())
    text = omittable(string())
