"""Schemas of the pages of the daemon itself."""

from __future__ import annotations

from umaserve.dialects.batches.states import Status
from umaserve.wire.declared import (
    Declared,
    array,
    boolean,
    choice,
    const,
    mapping,
    nullable,
    number,
    omittable,
    optional,
    required,
    string,
    value,
    whole,
)


class _Request(Declared, closed=True):
    session = required(whole(), "Its number")
    key = nullable(string(), "The name of the client's API key")
    peer = required(string(), "The client: uid:…, ip:…, relay:…")
    dialect = required(string())
    model = required(string())
    class_ = required(choice("interactive", "background"))
    state = required(
        choice("waiting", "prompt", "writing", "held"),
        "waiting: it has no slot. prompt: its prompt is being computed. held: it has a slot and gets no tokens at the"
        " moment",
    )
    why = nullable(
        choice(
            "model",
            "other_model",
            "pause",
            "reader",
            "detached",
            "trial",
            "preparing",
            "media",
            "prefix",
            "disk",
            "slots",
            "cells",
            "turn",
        ),
        "Why the request waits. model: its model is not loaded. other_model: its model is being unloaded, for another"
        " one or by an operator. pause: its client has paused it. reader: its client has too much unread output."
        " detached: its client has lost its connection. trial: a request that may have crashed the engine runs alone."
        " preparing, media: its prompt or its media are being prepared, or are queued for that. prefix: another"
        " request is computing a prefix of its prompt. disk: a prefix of its prompt is being read from disk. slots,"
        " cells: no slot or too few KV cells are free. turn: other requests are before it.",
    )
    age_s = required(number(), "Seconds since the request arrived")
    prompt_tokens = required(whole(), "0 until its prompt is prepared")
    prompt_tokens_done = required(whole(), "Tokens of the prompt that are computed or were cached")
    tokens = required(whole(), "Generated so far")
    tokens_per_s = required(number(), "Tokens per second since the previous event, or on average for a new request")
    gap_ms = nullable(number(), "Time between the request's latest two tokens, as sent")
    target_gap_ms = required(number(), "The request's target for the time between tokens")
    kv_cells = required(whole(), "KV cells that hold the request's tokens")


class _Batch(Declared, closed=True):
    batch = required(string(), "The batch's id")
    key = nullable(string(), "Name of the API key that made it")
    peer = required(string(), "Where it came from, without a key")
    endpoint = required(string())
    status = required(choice(*Status))
    total = required(whole(), "Lines of the batch")
    completed = required(whole())
    failed = required(whole())
    problem = nullable(string(), "Code of what is wrong with the batch as a whole")
    created_at = required(whole(), "Seconds since 1970")


class _Model(Declared, closed=True):
    name_ = required(string())
    default = required(boolean())
    state = required(choice("unloaded", "loading", "loaded", "unloading", "failed"))
    progress = required(number(), "How much of the model is loaded, from 0 to 1")
    needed_bytes = required(whole(), "The memory that the model takes, or would take")
    last_used_at = nullable(whole(), "Seconds since 1970; null: not since the start")


class _Figures(Declared, closed=True):
    tokens_per_s = nullable(number(), "Tokens per second of all requests since the previous event; null in the first")
    gap_ms_p95 = nullable(number(), "95th percentile of the latest 1,024 times between tokens; null if there were none")
    target_gap_ms = required(number(), "The model of requests that name none")
    available_bytes = required(whole(), "Memory that is available on this machine")
    waiting = required(whole(), "Requests without a slot")
    running = required(whole(), "Requests with a slot")
    kv_cells_used = required(whole())
    kv_cells_cached = required(whole(), "KV cells that hold cached prefixes")
    kv_cells_total = required(whole())
    memory_bytes = required(whole(), "Resident memory of the daemon and its engines")
    threads = required(whole(), "Compute threads in use")
    threads_reason = required(string(), "Why there are not more threads; empty while no model is loaded")
    crashes = required(whole(), "Engine processes that ended by themselves")


class Box(Declared, closed=True):
    at = required(number(), "Seconds since 1970")
    requests = required(array(_Request, high=100), "Requests with a slot first, then the oldest")
    not_listed = required(whole(), "Further requests")
    batches = required(array(_Batch, high=20), "Of all clients, those that have not ended first, then the newest")
    models = required(array(_Model))
    figures = required(_Figures)


class Health(Declared):
    status = required(const("ok"))
    chat_problem = omittable(
        string(),
        "The problem with the model's chat template: why chats are refused, or chats with tools use the default"
        " template; absent if there is none.",
    )


class _Error(Declared):
    message = required(string())
    code = required(const(503))


class Loading(Declared):
    status = required(const("loading"))
    error = required(_Error)


class Stuck(Declared):
    status = required(const("stuck"))
    error = required(_Error)
    threads = required(mapping(number()), "Threads that do not advance, each with the seconds since it last did.")


class Wedged(Declared):
    status = required(const("stuck"))
    error = required(_Error)


class Draining(Declared):
    status = required(const("draining"))
    error = required(_Error)


class RootReply(Declared, closed=True):
    openapi = required(string(), "The path of the OpenAPI document")
    paths = required(mapping(array(string())), "By path, the methods that it answers")


class EndRequestBody(Declared):
    session = optional(whole(1), "The number of the request's session, as in /api/box")
    batch = optional(string(1, 64), "The id of a batch, in place of a session")


class DefaultRefAudioReply(Declared, closed=True):
    name_ = required(string())
    duration = required(number(), "Seconds.")
    sample_rate = required(value(type="integer", const=16000))
    base64 = required(string(), "Mono float32 samples, little-endian.")


class _Setting(Declared, closed=True):
    name_ = required(string(), "As in the configuration file")
    value = required(string(), "As in the configuration file; secrets are not shown")
    default = required(string(), "The default value")
    about = required(string())


class SettingsReply(Declared, closed=True):
    settings = required(array(_Setting))
