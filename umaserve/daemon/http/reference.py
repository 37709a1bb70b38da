"""Operations of the daemon itself, and its OpenAPI document."""

from __future__ import annotations

from umaserve.daemon.http.schemas import (
    Box,
    DefaultRefAudioReply,
    Draining,
    EndRequestBody,
    Health,
    Loading,
    RootReply,
    SettingsReply,
    Stuck,
    Wedged,
)
from umaserve.dialects.openai.reference import ERRORS
from umaserve.dialects.reference import Body, Frame, Operation, Parameter, Reference, Reply
from umaserve.wire.declared import any_of, one_of, string, value

FRAME = Frame(
    "umaserve",
    "GGUF models over HTTP/1.1: the APIs of OpenAI, Anthropic, Ollama and llama.cpp's server, and streams over REST "
    "and WebSocket that can be changed while they run.\n\n"
    "Bodies are JSON in UTF-8 with `Content-Type: application/json`, unless a path takes a form. GET paths answer HEAD "
    "too, and all answer OPTIONS. In a request, null means the same as an absent field. When a client disconnects,"
    " its request is cancelled. A slash at the end of a path has no effect.",
    keys={
        "key": {
            "type": "http",
            "scheme": "bearer",
            "description": "A key of --api-keys; without that setting, none is needed.",
        }
    },
    headers={
        "CacheMiss": {
            "description": (
                "If the prompt differs little from a cached one, for example only in a date: the first token that"
                " differs, counted from 1, and the text there, as JSON strings in ASCII. Absent from a stream whose"
                " head was sent before its prompt could start."
            ),
            "schema": {"type": "string", "maxLength": 200},
            "example": 'token 412 of 530: "\\nToday is 2026-11-2" then "3. Answer in" where it was "2. Answer in"',
        }
    },
)

_HEALTH = {
    "200": Reply("OK", json=Health),
    "503": Reply("The model is being loaded, or a thread of the server does not advance.", json=one_of(Loading, Stuck)),
}

REFERENCE = Reference(
    "operation",
    "",
    ERRORS,
    {
        ("GET", "/"): Operation(
            "root",
            (
                "Get the page for browsers (which accept text/html), the list of all paths for other clients, or for"
                " Ollama's clients (by User-Agent) that a server runs"
            ),
            security=(),
            replies={
                "200": Reply("OK", json=RootReply, content={"text/html": string(), "text/plain": string()}),
                "304": Reply("The page has not changed since the one in If-None-Match"),
            },
        ),
        ("GET", "/api/box"): Operation(
            "box",
            "For operators: stream the daemon's status, at once and then every second",
            replies={
                "200": Reply(
                    "OK", events=(Box, "Events until the client disconnects; a client that reads slowly gets fewer")
                )
            },
        ),
        ("POST", "/api/box/end"): Operation(
            "endRequest",
            "For operators: cancel a request, whose client gets an error, or a batch",
            body=Body(EndRequestBody, {"end": {"session": 1}}),
            replies={
                "200": Reply(
                    "The request or the batch has ended",
                    json=value(type="object", additionalProperties=False, properties={}),
                )
            },
        ),
        ("GET", "/api/default_ref_audio"): Operation(
            "defaultRefAudio",
            "Get the default voice for requests that clone one, as a recording",
            tag="umaserve",
            replies={"200": Reply("OK", json=DefaultRefAudioReply)},
        ),
        ("GET", "/api/settings"): Operation(
            "settings", "For operators: get the daemon's settings", replies={"200": Reply("OK", json=SettingsReply)}
        ),
        ("GET", "/health"): Operation(
            "health",
            "Check that the model is loaded, and all threads advance",
            security=(),
            replies=_HEALTH,
        ),
        ("GET", "/health/live"): Operation(
            "live",
            "Check that no restart is needed (liveness)",
            security=(),
            replies={
                "200": Reply("OK", json=Health),
                "503": Reply("A thread of the server does not advance.", json=Stuck),
            },
        ),
        ("GET", "/health/ready"): Operation(
            "ready",
            (
                "Check that new requests can be served (readiness): the default model is loaded, ticks advance, and"
                " the daemon is not shutting down"
            ),
            security=(),
            replies={
                "200": Reply("OK", json=Health),
                "503": Reply(
                    (
                        "The model is being loaded, also again after its engine has ended; a tick or a thread does"
                        " not advance; or the daemon is shutting down."
                    ),
                    json=any_of(Loading, Wedged, Stuck, Draining),
                ),
            },
        ),
        ("GET", "/metrics"): Operation(
            "metrics",
            "Get counters, gauges and histograms",
            replies={"200": Reply("OK", content={"text/plain": string(description="Prometheus' text format.")})},
        ),
        ("GET", "/openapi.json"): Operation(
            "openapi", "This document", replies={"200": Reply("OK", json=value(type="object"))}
        ),
        ("GET", "/docs"): Operation(
            "docs",
            "Get this document as a page; not with --no-page",
            security=(),
            replies={
                "200": Reply("OK", content={"text/html": string()}),
                "304": Reply("The page has not changed since the one in If-None-Match"),
            },
        ),
        ("GET", "/page/{file}"): Operation(
            "pageFile",
            "Get a file of the page for browsers; not with --no-page",
            security=(),
            parameters=(Parameter("file", "path", string()),),
            replies={
                "200": Reply(
                    "OK",
                    content={
                        "text/css": string(),
                        "text/html": string(),
                        "text/javascript": string(),
                        "image/svg+xml": string(),
                    },
                    headers={"ETag": {"schema": {"type": "string"}}},
                ),
                "304": Reply("The file has not changed since the one in If-None-Match"),
            },
        ),
        ("GET", "/v1/health"): Operation(
            "healthV1",
            "Check that the model is loaded, and all threads advance",
            security=(),
            replies=_HEALTH,
        ),
    },
)
