"""Schemas of the API of llama-server."""

from __future__ import annotations

import re
from typing import Any

from umaserve.core import requests
from umaserve.core.errors import Fault, RequestError
from umaserve.dialects.generate.schemas import Parameters
from umaserve.dialects.openai.schemas import MAX_CHOICES, Texts
from umaserve.dialects.sampling_schemas import MAX_BIASES, MAX_SEED, MAX_STOPS, SEED, Sampling
from umaserve.dialects.schemas import MAX_ADAPTERS, MAX_ID_BYTES, MAX_SCALE, Computation, Targets
from umaserve.wire import fields
from umaserve.wire.declared import (
    Declared,
    Kind,
    any_of,
    array,
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


def _seed(given: Any, path: str) -> int | None:
    return None if given in (-1, RANDOM_SEED) else SEED.read(given, path)


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


class _OfModel(Declared):
    model = optional(
        string(max_bytes=MAX_ID_BYTES),
        "One that /v1/models lists, or an alias. Without one, or by an unknown name (refused with --strict-models): "
        "the default model.",
    )


class TokenizeRequest(_OfModel):
    content = required(string())
    add_special = switch(False, "Begin with the model's start token, if it has one, as in a prompt.")
    parse_special = switch(True, "Whether the names of control tokens are those tokens; else they are text.")
    with_pieces = switch(False)


class DetokenizeRequest(_OfModel):
    tokens = required(array(whole(0)))


class Adapter(Declared):
    id = required(whole(0), "Its number in /lora-adapters.")
    scale = optional(number(-MAX_SCALE, MAX_SCALE), default=1)


ADAPTERS = array(Adapter, high=MAX_ADAPTERS, of="adapters")


class NativeOptions(Sampling, Computation, Targets, _OfModel, defaults=DEFAULTS):
    seed = optional(
        Kind(SEED.schema, _seed),
        "The same seed and request give the same text; -1, 4294967295 and none: any.",
    )
    top_k = optional(
        Kind(Sampling.top_k.kind.schema | {"minimum": -1}, _top_k),
        "Choose among this many of the likeliest tokens; 0 and -1: among all.",
        default=DEFAULTS.top_k,
    )
    stop = optional(
        Kind(one_of(string(), array(string(), high=MAX_STOPS)).schema, _stop),
        "The text ends before the first of these; empty ones have no effect.",
    )
    # The inherited logit_bias has biases of token ids only.
    biases = optional(
        _BIASES,
        "Token ids, or texts for all their tokens, and the bias added to their logits: -100 and false ban a token,"
        " 100 forces it.",
        key="logit_bias",
    )
    lora = optional(
        Kind(one_of(Computation.lora.kind, ADAPTERS).schema, Computation.lora.kind.read),
        "The server's LoRA adapters to use, by name or number, each with its scale; an empty list: none. By default"
        " all, at 1.",
    )
    n_predict = optional(
        whole(-1),
        "The longest answer in tokens, limited by the context and the server's --max-tokens; -1, the default: that"
        " limit; 0: one token, as in llama-server.",
    )
    max_tokens = optional(whole(-1), "As n_predict.")
    max_completion_tokens = optional(whole(-1), "As n_predict.")
    n_probs = optional(
        whole(0, 100),
        "Return the log-probability of each token, and of this many of the likeliest; 0: none.",
        default=0,
    )
    logprobs = optional(whole(0, 100), "As n_probs.")
    post_sampling_probs = switch(
        False,
        "Return prob and top_probs, of the tokens that the samplers left, instead of logprob and top_logprobs before "
        "sampling.",
    )
    stream = switch(False, "Answer with server-sent events.")
    return_tokens = switch(False, "Return the ids of the answer's tokens; a stream always does.")
    timings_per_token = switch(False, "Return the timings with each event of a stream.")
    response_fields = optional(
        strings(64, 256),
        "The fields of the reply to send, by their paths, such as timings/predicted_n; the paths become their names.",
    )
    return_progress = switch(False, "In a stream, report the progress of prefill.")


class NativeRequest(NativeOptions):
    prompt = required(Texts)
    n_cmpl = optional(
        whole(1, MAX_CHOICES),
        "Answers for each prompt. With a seed, the answers have this seed, the next one, and so on.",
        default=1,
    )
    n = optional(whole(1, MAX_CHOICES), "As n_cmpl.")


class OtherFile(Declared):
    filename = optional(string(max_bytes=256))
    text = required(string())


class InfillRequest(NativeOptions):
    input_prefix = required(string(), "The text before the gap.")
    input_suffix = required(string(), "The text after it.")
    prompt = optional(string(), "How the text that fills the gap begins.")
    input_extra = optional(array(OtherFile, high=1024, of="objects"), "Other files, as additional context.")


class NativeEmbeddingRequest(_OfModel):
    content = required(Texts)
    embd_normalize = optional(
        whole(NONE, EUCLIDEAN),
        "-1: vectors as the model makes them; 0: the largest number is 32760; 1: all numbers add up to 1, without "
        "their signs; 2: vectors of unit length.",
        default=EUCLIDEAN,
    )


class RerankDocument(Declared):
    text = required(string())


DOCUMENTS = array(Kind(one_of(string(), RerankDocument).schema, _document), 1, 256, of="strings")


class RerankRequest(_OfModel):
    query = required(string(1))
    documents = optional(DOCUMENTS)
    texts = optional(DOCUMENTS, "As documents; the answer then has TEI's form.")
    top_n = optional(whole(1), "Return only this many of the best.")
    return_text = switch(False, "In TEI's form, send the texts too.")
    return_documents = switch(False, "In Jina's form, send the texts too.")


class ControlRequest(Declared):
    id = required(string(1, MAX_ID_BYTES), "That of the running completion, which its events have.")
    action = required(
        choice("reasoning_end", "pause", "resume", "modify", "cancel"),
        "reasoning_end: close the thought that it is in; cancel: end it, as a stop string would.",
    )
    # All of them are named where a generation is changed; those that are fixed have schemas of their own.
    parameters = optional(
        Kind({"type": "object"}, Parameters.of), "What to change by modify, as in the control messages of /generate."
    )


def _byte(given: str, path: str) -> int:
    return _BYTE.read(int(given) if given.isdecimal() and len(given) < 19 else given, path)


_BYTE = whole(0)


class StreamPlace(Declared):
    conv_id = required(string(1, MAX_ID_BYTES), "The x-conversation-id of the stream's request.")
    from_ = omittable(Kind(_BYTE.schema, _byte), "How many bytes of the stream to pass over.", default=0)


class StreamsToFind(Declared):
    conversation_ids = required(strings(1024, MAX_ID_BYTES), "Names of streams, with or without ::MODEL at their ends.")


class SlotFileName(Declared):
    filename = required(string(1, 128))


class ModelToDownload(Declared):
    model = required(
        string(1, MAX_ID_BYTES),
        "ORG/REPOSITORY:QUANTIZATION of the Hugging Face Hub. Without a quantization: Q4_K_M, or the only one.",
    )


class ModelToMove(Declared):
    model = required(string(1, MAX_ID_BYTES), "Its name, or an alias.")
