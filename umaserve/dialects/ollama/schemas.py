"""Schemas of the API of Ollama."""

from __future__ import annotations

import re
from typing import Any

from umaserve.core import requests
from umaserve.core.errors import RequestError
from umaserve.core.requests import Grammar, Image, Syntax
from umaserve.dialects.content import MAX_MEDIA
from umaserve.dialects.grammars import ANY_OBJECT, MAX_SCHEMA_BYTES
from umaserve.dialects.openai.tool_schemas import MAX_TOOLS, Tool, ToolChoice
from umaserve.dialects.sampling_schemas import SEED, Sampling
from umaserve.dialects.schemas import MAX_ID_BYTES, MAX_TURNS, ROLES, Targets
from umaserve.wire import fields
from umaserve.wire.declared import (
    Declared,
    Kind,
    array,
    boolean,
    choice,
    const,
    number,
    omittable,
    one_of,
    optional,
    required,
    string,
    switch,
    value,
    whole,
)
from umaserve.wire.fields import bad_request, dump_capped, integer, media_data, out_of_range
from umaserve.wire.long_texts import as_string

DEFAULTS = requests.Sampling(temperature=0.8, top_k=40, top_p=0.9, min_p=0.0, repeat_penalty=1.1)
"""Defaults that Ollama documents."""
_MAX_WHOLE = 2**31 - 1
_MAX_TEXTS = 256
_MAX_DURATION_BYTES = 64
_LEVELS = ("low", "medium", "high")
"""How much a model may be told to think."""
_UNLIMITED = (-1, -2)
"""Ollama's words for an answer as long as the context holds."""
NAME = string(1, MAX_ID_BYTES)
_NANOSECONDS = "Nanoseconds since the request."
_LISTED = "One that /api/tags lists, or an alias, with or without :latest."
_DATA_URL = "data:"
_DURATION = re.compile(r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:ns|us|µs|ms|s|m|h))+|[+-]?0|-?[0-9]+")


def _image(given: Any, path: str) -> Image:
    data = media_data(given, path)
    head = data[: len(_DATA_URL)]
    if (head if isinstance(head, str) else as_string(head)) == _DATA_URL:
        raise out_of_range(path, "the base64 of an image alone", f'one that begins with "{_DATA_URL}"')
    return Image(data, path)


def _seed(given: Any, path: str) -> int | None:
    seed = SEED.read(given, path)
    return None if given < 0 else seed


def _length(given: Any, path: str) -> int | None:
    if given in _UNLIMITED:
        return None
    try:
        return integer(given, path, 1)
    except RequestError as error:
        problem = error.problem.replace("a whole number from 1", "a whole number from 1, or -1 for no limit", 1)
        raise RequestError(error.fault, path, problem) from None


def _format(given: Any, path: str) -> Grammar | None:
    if given == "":
        return None
    if isinstance(given, dict):
        return Grammar(Syntax.JSON_SCHEMA, dump_capped(given, path, MAX_SCHEMA_BYTES).decode(), path)
    expected = '"json" or a JSON schema as an object'
    if given == "json":
        return Grammar(Syntax.JSON_SCHEMA, ANY_OBJECT, path)
    if isinstance(given, str):
        raise out_of_range(path, expected, f'"{given[:32]}"')
    raise bad_request(path, expected, given)


def _think(given: Any, path: str) -> bool | str:
    expected = "true, false or " + " or ".join(f'"{level}"' for level in _LEVELS)
    if not isinstance(given, bool | str):
        raise bad_request(path, expected, given)
    if isinstance(given, str) and given not in _LEVELS:
        raise out_of_range(path, expected, f'"{given[:32]}"')
    return given


def _keep_alive(given: Any, path: str) -> bool:
    """Whether the time that a model is kept is not 0."""
    expected = 'seconds, or a duration such as "5m"'
    if isinstance(given, int | float) and not isinstance(given, bool):
        return given != 0
    if not isinstance(given, str):
        raise bad_request(path, expected, given)
    if len(given) > _MAX_DURATION_BYTES or not _DURATION.fullmatch(given):
        raise out_of_range(path, expected, f'"{given[:32]}"')
    return bool(re.search("[1-9]", given))


def _texts(given: Any, path: str) -> tuple[str, ...]:
    if isinstance(given, str):
        return (fields.string(given, path),)
    if not isinstance(given, list):
        raise bad_request(path, "a string or an array of strings", given)
    if not 1 <= len(given) <= _MAX_TEXTS:
        raise out_of_range(path, f"1 to {_MAX_TEXTS} texts", len(given))
    return tuple(fields.string(text, f"{path}[{i}]") for i, text in enumerate(given))


_IMAGE = Kind(string(1, description="Base64, without a data: URL.").schema, _image)
_SEED = Kind(SEED.schema, _seed)
_LENGTH = Kind(one_of(whole(1), choice(*_UNLIMITED)).schema, _length)
_FORMAT = Kind(one_of(choice("json", "", None), value(type="object")).schema, _format)
_THINK = Kind(choice(True, False, *_LEVELS).schema, _think)
_KEEP_ALIVE = Kind({"type": ["number", "string"]}, _keep_alive)
_TEXTS = Kind(one_of(string(1), array(string(1), 1, _MAX_TEXTS)).schema, _texts)


class OllamaError(Declared):
    error = required(string(), "Names the field, what was expected and what was found.")


# -- requests ----------------------------------------------------------------------------------------------------


class OllamaRequest(Declared):
    model = required(NAME, f"{_LISTED} An unknown name means the default model, or with --strict-models none.")
    keep_alive = optional(
        _KEEP_ALIVE,
        "Seconds, or a duration such as 5m. Has no effect: the daemon's settings decide how long the model stays"
        " loaded.",
    )


class OllamaLoadOptions(Declared):
    num_keep = optional(whole(-1, _MAX_WHOLE))
    num_batch = optional(whole(-1, _MAX_WHOLE))
    num_gpu = optional(whole(-1, _MAX_WHOLE))
    main_gpu = optional(whole(-1, _MAX_WHOLE))
    num_thread = optional(whole(-1, _MAX_WHOLE))
    numa = optional(boolean())
    low_vram = optional(boolean())
    f16_kv = optional(boolean())
    logits_all = optional(boolean())
    vocab_only = optional(boolean())
    use_mmap = optional(boolean())
    use_mlock = optional(boolean())
    embedding_only = optional(boolean())
    penalize_newline = optional(boolean())
    num_ctx = optional(
        whole(1, _MAX_WHOLE),
        "Has no effect: the context is the daemon's, and a prompt that it has no room for is refused, never cut.",
    )


class OllamaOptions(Sampling, OllamaLoadOptions, defaults=DEFAULTS):
    seed = optional(_SEED, "The same seed and request give the same text; negative: any, as by default.")
    num_predict = optional(
        _LENGTH, "The most tokens of the answer; -1 and -2: as many as the context holds.", default=-1
    )


class OllamaTextRequest(OllamaRequest, Targets):
    stream = switch(True)
    format = omittable(_FORMAT, "json: any JSON object; an object: the JSON schema that the text has to follow.")
    options = optional(OllamaOptions, "Options for loading a model, such as num_gpu, are checked and ignored.")
    think = optional(_THINK, "Whether the model thinks, and how much, where its chat template supports that.")
    logprobs = switch(False)
    top_logprobs = optional(whole(0, 20), "Needs logprobs.")


class _Arguments(Declared):
    pass


class _Function(Declared):
    name_ = required(string(1))
    arguments = required(_Arguments)


class OllamaToolCall(Declared):
    id = optional(string(max_bytes=MAX_ID_BYTES))
    function = required(_Function)


class OllamaMessage(Declared):
    role = required(choice(*ROLES))
    content = optional(string())
    thinking = optional(string())
    images = optional(array(_IMAGE, high=MAX_MEDIA, of="images"))
    tool_calls = optional(array(OllamaToolCall, high=MAX_TOOLS, of="calls"))
    tool_name = optional(string(max_bytes=MAX_ID_BYTES))
    tool_call_id = optional(string(max_bytes=MAX_ID_BYTES))


class OllamaChatRequest(OllamaTextRequest):
    messages = optional(array(OllamaMessage, high=MAX_TURNS, of="messages"), "Absent: the model is loaded.")
    tools = optional(array(Tool, high=MAX_TOOLS, of="tools"))
    tool_choice = omittable(ToolChoice)


class OllamaGenerateRequest(OllamaTextRequest):
    prompt = optional(string(), "Empty: the model is loaded.")
    system = optional(string())
    images = optional(array(_IMAGE, high=MAX_MEDIA, of="images"))
    raw = switch(False, "Whether the prompt is used unchanged, without the chat template.")
    template = optional(choice(""), "Refused: with raw, a prompt can have any form.")
    suffix = optional(choice(""), "Refused.")
    context = optional(
        array(whole()),
        "Tokens that come before the prompt: those in the last object of an earlier answer, which the prompt goes on"
        " from. Refused with raw and with images.",
    )


class OllamaEmbedRequest(OllamaRequest):
    input = required(_TEXTS)
    truncate = optional(boolean(), "Ignored: a text that is too long is refused.")
    dimensions = optional(
        whole(1), "The number of dimensions of each vector, which is normalized again; at most the model's."
    )
    options = optional(OllamaLoadOptions, "Checked and ignored.")


class OllamaEmbeddingsRequest(OllamaRequest):
    prompt = required(string(1))
    options = optional(OllamaLoadOptions, "Checked and ignored.")


class OllamaModelName(Declared, also={"anyOf": [{"required": ["model"]}, {"required": ["name"]}]}):
    # The client in Go sends both, one of them empty.
    model = optional(string(0, MAX_ID_BYTES), _LISTED)
    name_ = optional(string(0, MAX_ID_BYTES), "An older name of model.")


class OllamaShowRequest(OllamaModelName):
    verbose = switch(False, "Not used.")


class OllamaPullRequest(OllamaModelName):
    insecure = switch(False, "Not used.")
    stream = switch(True)


# -- answers -----------------------------------------------------------------------------------------------------


class _TopLogprob(Declared):
    token = required(string())
    logprob = required(number())
    bytes = required(array(whole()))


class OllamaLogprobs(_TopLogprob):
    top_logprobs = omittable(array(_TopLogprob))


class _Answer(Declared):
    model = required(string())
    created_at = required(string(format="date-time"))
    done = required(boolean(), "True in the last line.")
    done_reason = omittable(choice("stop", "length", "content_filter", "load", "unload"))
    logprobs = omittable(array(OllamaLogprobs))
    total_duration = omittable(whole(), _NANOSECONDS)
    load_duration = omittable(whole())
    prompt_eval_count = omittable(whole(), "Tokens of the prompt.")
    prompt_eval_duration = omittable(whole(), _NANOSECONDS)
    eval_count = omittable(whole(), "Tokens of the answer.")
    eval_duration = omittable(whole(), _NANOSECONDS)


class _CalledFunction(Declared):
    index = required(whole())
    name_ = required(string())
    arguments = required(value(type="object"))


class _Call(Declared):
    id = required(string())
    function = required(_CalledFunction)


class _AnswerMessage(Declared):
    role = required(const("assistant"))
    content = required(string())
    thinking = omittable(string())
    tool_calls = omittable(array(_Call))


class OllamaChatAnswer(_Answer):
    message = required(_AnswerMessage)


class OllamaGenerateAnswer(_Answer):
    response = required(string())
    thinking = omittable(string())
    context = omittable(
        array(whole()),
        "Tokens of prompt and answer, in the last object, for the context of the next request. Absent with raw and"
        " with images.",
    )


class OllamaEmbedReply(Declared):
    model = required(string())
    embeddings = required(array(array(number())))
    total_duration = required(whole(), _NANOSECONDS)
    load_duration = required(const(0))
    prompt_eval_count = required(whole())


class OllamaEmbeddingsReply(Declared):
    embedding = required(array(number()))


# -- models ------------------------------------------------------------------------------------------------------


class OllamaVersion(Declared):
    version = required(string())


class OllamaDetails(Declared):
    parent_model = required(string())
    format = required(string())
    family = required(string())
    families = required(array(string()))
    parameter_size = required(string())
    quantization_level = required(string())


class _Model(Declared):
    name_ = required(string())
    model = required(string())
    size = required(whole(), "Bytes.")
    digest = required(string(), "SHA-256 of the model's name, not of its file.")
    details = required(OllamaDetails)


class _ListedModel(_Model):
    modified_at = required(string(format="date-time"))
    context_length = omittable(whole(1), "Tokens that prompt and answer may have together, where that is known.")


class _LoadedModel(_Model):
    expires_at = required(string(format="date-time"))
    size_vram = required(whole(0), "About so much of size is in the memory of GPUs.")
    context_length = required(whole())


class OllamaModels(Declared):
    models = required(array(_ListedModel))


class OllamaLoadedModels(Declared):
    models = required(array(_LoadedModel))


class OllamaAboutModel(Declared):
    modelfile = required(string())
    parameters = required(string())
    template = required(string(), "The chat template, in Jinja.")
    license = omittable(string(), "As the model's file names it.")
    details = required(OllamaDetails)
    model_info = required(value(type="object"))
    capabilities = required(array(choice("completion", "tools", "vision", "thinking")))
    modified_at = required(string(format="date-time"))


class OllamaStatus(Declared):
    status = required(string())
