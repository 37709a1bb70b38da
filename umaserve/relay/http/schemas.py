"""Schemas of the pages of the relay itself."""

from __future__ import annotations

from umaserve.dialects.openai.reply_schemas import CodexModel
from umaserve.dialects.schemas import list_of
from umaserve.wire.declared import (
    Declared,
    any_of,
    array,
    boolean,
    choice,
    const,
    named,
    nullable,
    number,
    omittable,
    optional,
    required,
    string,
    switch,
    value,
    whole,
)


class Request(Declared):
    """The worker is given all of it."""

    model = optional(
        string(),
        'Without a name, or for "default": --default-model, or the only model; the worker then gets its name.',
    )
    stream = switch(False)


class Model(Declared):
    id = required(string())
    object_ = required(const("model"))
    created = required(whole(), "Now, in seconds since 1970.")
    owned_by = required(string(), "The provider of the workers.")
    context_length = omittable(
        whole(1), "Tokens that prompt and answer may have together at each of its workers, as far as they say."
    )
    max_model_len = omittable(whole(1), "As context_length.")
    max_tokens = omittable(whole(1), "As context_length.")


class Health(Declared):
    status = required(choice("ok", "draining"))
    workers = required(whole(0))


class Worker(Declared):
    id = required(string())
    name_ = required(string())
    models = required(array(string()))
    max_concurrent = required(whole())
    in_flight = required(whole())
    cancelled = required(
        whole(), "Requests whose client has disconnected, and which still occupy a place at the worker."
    )
    load = required(whole())
    draining = required(boolean())
    features = required(array(string()))


class RelayError(Declared):
    """What became of a request that was taken."""

    error = required(string())


class _Error(Declared):
    message = required(string())


class Error(Declared):
    """Why a request was not taken, in the form of OpenAI's API."""

    error = required(_Error)


AnyError = named("AnyError", any_of(RelayError, Error, value(type="object")))


class OllamaModel(Declared):
    """A model of any worker; POST /api/show tells the details that a worker knows."""

    name_ = required(string())
    model = required(string())
    size = required(const(0))
    digest = required(string())
    details = required(value(type="object"))
    modified_at = omittable(string())
    expires_at = omittable(string())
    size_vram = omittable(const(0))
    context_length = omittable(
        whole(1), "Tokens that prompt and answer may have together at each of its workers, as far as they say."
    )


_INPUT = omittable(value(type=["string", "array"]), "A text, or up to 4,096 items.")


class ResponseRequest(Request):
    input = _INPUT
    store = switch(True, "Whether the relay stores the response.")
    previous_response_id = optional(string(), "The stored response that this one continues.")
    background = switch(
        False,
        "Whether the reply is sent at once, and the client fetches the response later. The limits of the relay's"
        " queue and of a request's time apply. Needs store, and takes no stream.",
    )


class CompactionRequest(Request):
    input = _INPUT
    previous_response_id = optional(string(), "The stored response whose conversation is compacted.")


class Response(Declared):
    """In the worker's words, but for its id, created_at, store, background and previous_response_id."""

    id = required(string())
    object_ = required(const("response"))
    created_at = omittable(whole(), "In seconds since 1970.")
    status = required(choice("queued", "in_progress", "completed", "incomplete", "failed", "cancelled"))
    output = required(value(type="array"))
    error = optional(value(type="object"))
    store = required(boolean())
    background = required(boolean())
    previous_response_id = nullable(string())


class AnthropicModel(Declared):
    type = required(const("model"))
    id = required(string())
    display_name = required(string())
    created_at = required(string(format="date-time"), "When the relay started.")
    lifecycle = omittable(const("active"))
    max_input_tokens = omittable(whole(1), "As context_length in OpenAI's form.")
    max_tokens = omittable(whole(1), "As max_input_tokens.")


class AnthropicModels(Declared):
    data = required(array(AnthropicModel))
    has_more = required(boolean())
    first_id = nullable(string())
    last_id = nullable(string())


class DeleteResponseReply(Declared):
    id = required(string())
    object_ = required(const("response"))
    deleted = required(const(True))


class _DataItem(Declared, also={"additionalProperties": True}):
    id = required(string())
    type = required(string())


ListInputItemsReply = named("ListInputItemsReply", list_of(_DataItem))


class TranscribeBody(Declared):
    """Other fields are passed on."""

    file = required(string(contentMediaType="application/octet-stream"))
    model = omittable(string(), "As in a JSON body: a name that GET /v1/models lists, or default.")
    stream = omittable(boolean())


class ModelList(Declared):
    object_ = required(const("list"))
    data = required(array(Model))
    models = required(array(CodexModel), "For Codex, which asks with client_version. Else empty.")


class OllamaTagsReply(Declared):
    models = required(array(OllamaModel))


class OllamaVersionReply(Declared):
    version = required(string())


class ListWorkersReply(Declared):
    workers = required(array(Worker))


class DrainBody(Declared):
    reason = omittable(string())
    drain_timeout_secs = omittable(number(0, 3600), "Without it, --drain-timeout.")


class Done(Declared):
    status = required(const("ok"))


class _Used(Declared):
    requests_total = required(whole(0))
    refused_total = required(whole(0))
    prompt_tokens_total = required(whole(0))
    generated_tokens_total = required(whole(0))


class _Key(Declared):
    id = required(string())
    name_ = required(string())
    created = required(string())
    revoked = nullable(string())
    class_ = required(string())
    requests_per_minute = required(number())
    tokens_per_minute = required(number())
    models = nullable(array(string()))
    used = required(_Used, "Since the relay's start")


class ListKeysReply(Declared):
    keys = required(array(_Key))


class CreateKeyBody(Declared):
    name_ = required(string())
    class_ = omittable(
        string(enum=["interactive", "background"]),
        "background: its requests wait for all interactive ones",
        default="interactive",
    )
    requests_per_minute = omittable(number(0, 1000000000), "0: no limit", default=0)
    tokens_per_minute = omittable(number(0, 1000000000), "Generated tokens; 0: no limit", default=0)
    models = optional(array(string(), 1, 256), "The models that the key may use; null: all")


class CreateKeyReply(Declared):
    name_ = required(string())
    key = required(string(), "The key itself, which is shown only here.")
