"""Parses what Ollama's requests for text share: ``options``, ``format``, ``think``, ``keep_alive`` and ``logprobs``."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from umaserve.core.errors import Fault, RequestError
from umaserve.core.events import ModelInfo
from umaserve.core.requests import Grammar, Sampling, Syntax
from umaserve.dialects.grammars import ANY_OBJECT, only_one, schema
from umaserve.dialects.ollama.models import capabilities
from umaserve.dialects.parameters import RequestLimits, sampling, stops, within_cap
from umaserve.wire.fields import Fields, bad_request, out_of_range

DEFAULTS = Sampling(temperature=0.8, top_k=40, top_p=0.9, min_p=0.0, repeat_penalty=1.1)
"""Defaults that Ollama documents."""
MAX_TOP_LOGPROBS = 20
LEVELS = ("low", "medium", "high")
MAX_WHOLE = 2**31 - 1

_UNLIMITED = (-1, -2)
_DURATION = re.compile(r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:ns|us|µs|ms|s|m|h))+|[+-]?0")
_MAX_DURATION_BYTES = 64
_WHOLE_NUMBERS = ("num_keep", "num_batch", "num_gpu", "main_gpu", "num_thread")
_SWITCHES = (
    "numa",
    "low_vram",
    "f16_kv",
    "logits_all",
    "vocab_only",
    "use_mmap",
    "use_mlock",
    "embedding_only",
    "penalize_newline",
)
"""Options for loading a model, with the whole numbers above. It is loaded already, so they are checked but not used."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of an answer, from ``options`` and ``format``."""

    sampling: Sampling
    max_tokens: int | None
    stop: tuple[str, ...]


def options(fields: Fields, limits: RequestLimits, info: ModelInfo | None) -> Options:
    """Parse ``options`` and ``format``; raises ``RequestError``. ``info``: the model, once it is loaded."""
    given = fields.object("options") or Fields({}, "options.")
    check_load_options(given, info)
    chosen = _sampling(given)
    wanted = _format(fields)
    if wanted is not None:
        chosen = replace(chosen, grammar=only_one([wanted] if chosen.grammar is None else [chosen.grammar, wanted]))
    return Options(chosen, within_cap(_num_predict(given), limits), stops(given))


def check_load_options(given: Fields, info: ModelInfo | None) -> None:
    """Check the options that load a model in Ollama. Here they change nothing, but a context that is too long is
    refused."""
    for key in _WHOLE_NUMBERS:
        given.integer(key, -1, MAX_WHOLE)
    for key in _SWITCHES:
        given.boolean(key, False)
    n_ctx = given.integer("num_ctx", 1, MAX_WHOLE)
    if n_ctx is not None and info is not None and n_ctx > info.context_tokens:
        most = f"at most {info.context_tokens}, this daemon's context (--n-ctx), or no such option"
        raise out_of_range(given.name("num_ctx"), most, n_ctx)


def _sampling(given: Fields) -> Sampling:
    values = dict(given.values)
    seed = given.integer("seed", -MAX_WHOLE - 1)
    if seed is not None and seed < 0:
        values["seed"] = None  # Ollama's way of asking for a random one.
    return sampling(Fields(values, "options."), DEFAULTS)


def _num_predict(given: Fields) -> int | None:
    value = given.values.get("num_predict")
    if value in _UNLIMITED:
        return None
    try:
        return given.integer("num_predict", 1)
    except RequestError as error:
        problem = error.problem.replace("a whole number from 1", "a whole number from 1, or -1 for no limit", 1)
        raise RequestError(error.fault, error.field, problem) from None


def _format(fields: Fields) -> Grammar | None:
    value = fields.values.get("format")
    if value is None or value == "":
        return None
    if isinstance(value, dict):
        return schema(fields, "format")
    expected = '"json" or a JSON schema as an object'
    if value == "json":
        return Grammar(Syntax.JSON_SCHEMA, ANY_OBJECT, fields.name("format"))
    if isinstance(value, str):
        raise out_of_range(fields.name("format"), expected, f'"{value[:32]}"')
    raise bad_request(fields.name("format"), expected, value)


def think(fields: Fields, info: ModelInfo | None) -> tuple[bool | None, dict[str, object]]:
    """Whether the model is to think (``None``: as it is made), and the chat template's variables for how much."""
    value = fields.values.get("think")
    expected = "true, false or " + " or ".join(f'"{level}"' for level in LEVELS)
    if value is not None and not isinstance(value, bool | str):
        raise bad_request(fields.name("think"), expected, value)
    if isinstance(value, str) and value not in LEVELS:
        raise out_of_range(fields.name("think"), expected, f'"{value[:32]}"')
    if value and info is not None and "thinking" not in capabilities(info):
        raise RequestError(Fault.BAD_REQUEST, fields.name("think"), "expected false, since this model does not think")
    return (True, {"reasoning_effort": value}) if isinstance(value, str) else (value, {})


def unloads(fields: Fields) -> bool:
    """Whether ``keep_alive`` is 0. The model stays loaded whatever it says, but a wrong one is refused."""
    value, path = fields.values.get("keep_alive"), fields.name("keep_alive")
    expected = 'seconds, or a duration such as "5m"'
    if value is None:
        return False
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value == 0
    if not isinstance(value, str):
        raise bad_request(path, expected, value)
    if len(value) > _MAX_DURATION_BYTES or not (_DURATION.fullmatch(value) or re.fullmatch("-?[0-9]+", value)):
        raise out_of_range(path, expected, f'"{value[:32]}"')
    return not re.search("[1-9]", value)


def logprobs(fields: Fields) -> int | None:
    """The number of alternatives to report with each token; ``None``: no log-probabilities."""
    wanted = fields.boolean("logprobs", False)
    top = fields.integer("top_logprobs", 0, MAX_TOP_LOGPROBS)
    if top and not wanted:
        raise RequestError(
            Fault.BAD_REQUEST, fields.name("top_logprobs"), "expected to be absent where logprobs isn't true"
        )
    return (top or 0) if wanted else None
