"""Schemas that all APIs share: what the engine computes for a request, targets, content, errors."""

from __future__ import annotations

import re
from typing import Any

from umaserve.core.errors import Fault, RequestError
from umaserve.core.requests import Priority
from umaserve.dialects.grammars import MAX_GRAMMAR_BYTES
from umaserve.dialects.sampling_schemas import TOKENS
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
    omittable,
    one_of,
    optional,
    required,
    string,
    switch,
    whole,
)
from umaserve.wire.fields import Fields, out_of_range

MAX_ID_BYTES = 256
MAX_TURNS = 1024
MAX_ITEMS = 256
"""Most texts and media of one message."""
MAX_KWARGS_BYTES = 64 * 1024
MAX_ADAPTERS, MAX_ADAPTER_BYTES = 16, 256
MAX_SCALE = 10.0
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
_PRIORITY = Kind(choice(*PRIORITIES).schema, lambda given, path: PRIORITIES[fields.one_of(given, path, PRIORITIES)])
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


class Computation(Declared):
    """What the prompt and the answer are computed with."""

    cache_prompt = switch(True, "Reuse the cached prefixes of other requests, and cache this one's.")
    lora = optional(
        _ADAPTERS,
        "The server's LoRA adapters to use, by name, each with its scale; {}: none. By default all, at 1.",
    )


class Thoughts(Declared):
    reasoning_budget = optional(
        TOKENS,
        "The number of tokens after which thoughts are closed by force: -1 never, 0 at once. Default: the server's"
        " --reasoning-budget.",
    )
    thinking_budget_tokens = optional(TOKENS, "Another name of reasoning_budget.")
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


def list_of(item: type[Declared]) -> Kind[Any]:
    """A page of a list in OpenAI's form; ``item``: one of the list."""

    class Page(Declared):
        object_ = required(const("list"))
        data = required(array(item))
        first_id = nullable(string())
        last_id = nullable(string())
        has_more = required(boolean())

    return Kind(Page.schema())


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
    type = required(choice("invalid_request_error", "exceed_context_size_error", "rate_limit_error", "server_error"))
    param = nullable(string(), "The field.")
    code = nullable(string(), "Such as context_length_exceeded, invalid_api_key or rate_limit_exceeded.")
    n_prompt_tokens = omittable(whole(), "With exceed_context_size_error: of the prompt.")
    n_ctx = omittable(whole(), "With exceed_context_size_error: what the context holds.")


class Error(Declared):
    error = required(_Error)
