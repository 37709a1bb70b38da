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
    "Bodies are JSON in UTF-8 with `Content-Type: application/json`, unless a path wants a form. GET paths answer HEAD "
    "too, and all answer OPTIONS. In a request, null stands for an absent field. A client that disconnects cancels "
    "what it asked for. A slash at the end of a path makes no difference.",
    keys={
        "key": {
            "type": "http",
            "scheme": "bearer",
            "description": "A key of --api-keys; without that setting, none is needed.",
        }
    },
    headers={
        "CacheMiss": {
            "description": "Where the prompt is nearly the same as one whose computed tokens are kept, for example but "
            "for a date: the first token that differs, counted from 1, and the text there, as JSON strings in ASCII. A "
            "stream whose head was sent before its prompt could start has none.",
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
                "A page for browsers, which accept text/html; the list of all paths for other clients; for "
                "Ollama's, by their User-Agent, that a server runs"
            ),
            security=(),
            replies={
                "200": Reply("OK", json=RootReply, content={"text/html": string(), "text/plain": string()}),
                "304": Reply("The page is still the one that If-None-Match names"),
            },
        ),
        ("GET", "/api/box"): Operation(
            "box",
            "For operators: what the daemon does, at once and then every second",
            replies={
                "200": Reply("OK", events=(Box, "Events until the client leaves; one that reads slowly gets fewer"))
            },
        ),
        ("POST", "/api/box/end"): Operation(
            "endRequest",
            "For operators: end a request; its client gets an error",
            body=Body(EndRequestBody, {"end": {"session": 1}}),
            replies={
                "200": Reply("It has ended", json=value(type="object", additionalProperties=False, properties={}))
            },
        ),
        ("GET", "/api/default_ref_audio"): Operation(
            "defaultRefAudio",
            "The recording whose voice is the daemon's own, for requests that clone one",
            tag="umaserve",
            replies={"200": Reply("OK", json=DefaultRefAudioReply)},
        ),
        ("GET", "/api/settings"): Operation(
            "settings", "For operators: the daemon's settings", replies={"200": Reply("OK", json=SettingsReply)}
        ),
        ("GET", "/health"): Operation(
            "health",
            "Whether the model is loaded, and all threads advance",
            security=(),
            replies=_HEALTH,
        ),
        ("GET", "/health/live"): Operation(
            "live",
            "Whether only a restart would help",
            security=(),
            replies={
                "200": Reply("OK", json=Health),
                "503": Reply("A thread of the server does not advance.", json=Stuck),
            },
        ),
        ("GET", "/health/ready"): Operation(
            "ready",
            (
                "Whether new requests had better come here: the default model is loaded, ticks advance, and "
                "the daemon is not to end"
            ),
            security=(),
            replies={
                "200": Reply("OK", json=Health),
                "503": Reply(
                    (
                        "The model is being loaded, also after its engine has ended; a tick or a thread does not "
                        "advance; or the daemon is to end."
                    ),
                    json=any_of(Loading, Wedged, Stuck, Draining),
                ),
            },
        ),
        ("GET", "/metrics"): Operation(
            "metrics",
            "Counters, gauges and histograms",
            replies={"200": Reply("OK", content={"text/plain": string(description="Prometheus' text format.")})},
        ),
        ("GET", "/openapi.json"): Operation(
            "openapi", "This document", replies={"200": Reply("OK", json=value(type="object"))}
        ),
        ("GET", "/docs"): Operation(
            "docs",
            "This document for people, in a page of its own; none with --no-page",
            security=(),
            replies={
                "200": Reply("OK", content={"text/html": string()}),
                "304": Reply("The page is still the one that If-None-Match names"),
            },
        ),
        ("GET", "/page/{file}"): Operation(
            "pageFile",
            "The files that the page for browsers is made of; none with --no-page",
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
                "304": Reply("The file is still the one that If-None-Match names"),
            },
        ),
        ("GET", "/v1/health"): Operation(
            "healthV1",
            "Whether the model is loaded, and all threads advance",
            security=(),
            replies=_HEALTH,
        ),
    },
)
