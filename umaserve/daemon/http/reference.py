"""Operations of the daemon itself, and what its OpenAPI document says of all."""

from __future__ import annotations

from umaserve.daemon.http import schemas
from umaserve.dialects.openai.reference import ERRORS
from umaserve.dialects.reference import METRICS, NOT_CHANGED, Frame, Operation, Reference, Reply, bearer, takes
from umaserve.wire.declared import any_of, one_of, string, value

FRAME = Frame(
    "umaserve",
    "GGUF models over HTTP/1.1: the APIs of OpenAI, Anthropic, Ollama and llama.cpp's server, and streams over REST and"
    " WebSocket that can be changed while they run.\n\nBodies are JSON in UTF-8 with `Content-Type: application/json`,"
    " unless a path takes a form. GET paths answer HEAD too, and all answer OPTIONS. In a request, null means the same"
    " as an absent field. Fields that are not listed are ignored, unless they promise a constraint on the answer: these"
    " are refused. When a client disconnects, its request is cancelled. A slash at the end of a path has no effect."
    " Images, recordings and films are for models that take them (--mmproj); a body with them, or a form with a file,"
    " may have up to --max-chat-bytes bytes.\n\nWhere events come, each has `data:` and a JSON object (`x-event`), and"
    " if a name, then the object's type. An error that occurs after the stream has begun is its last event. A stream"
    " without other events has a comment every 15 seconds, unless its API has something for this. On all paths that"
    " generate text, the headers x-umaserve-priority (interactive or background), x-umaserve-slo-ttft-ms and"
    " x-umaserve-slo-tbt-ms replace priority and slo in the body.",
    keys={"key": bearer("A key of --api-keys; without that setting, none is needed.")},
    headers={
        "CacheMiss": {
            "description": "If the prompt differs little from a cached one, for example only in a date: the first token"
            " that differs, counted from 1, and the text there, as JSON strings in ASCII. Absent from a stream whose"
            " head was sent before its prompt could start.",
            "schema": {"type": "string", "maxLength": 200},
            "example": 'token 412 of 530: "\\nToday is 2026-11-2" then "3. Answer in" where it was "2. Answer in"',
        }
    },
)


def _public(about: str, reply: Reply, replies: dict[str, Reply]) -> Operation:
    """An operation for everybody."""
    return Operation(about, reply, replies=replies, security=())


def _probe(about: str, problem: Reply) -> Operation:
    """An operation that tells whether all is well."""
    return _public(about, Reply("OK", schemas.Health), {"503": problem})


_HEALTH = _probe(
    "Check that the model is loaded, and all threads advance",
    Reply("The model is being loaded, or a thread does not advance.", one_of(schemas.Loading, schemas.Stuck)),
)
_PAGE_TYPES = ("text/css", "text/html", "text/javascript", "image/svg+xml")

OPERATIONS = {
    ("root", "GET /"): _public(
        "Get the page (browsers), that a server runs (Ollama's clients), or a list of all paths (others)",
        Reply("OK", schemas.RootReply, content={"text/html": string(), "text/plain": string()}),
        NOT_CHANGED,
    ),
    ("box", "GET /api/box"): Operation(
        "For operators: stream the daemon's status, at once and then every second",
        Reply("OK", events=(schemas.Box, "Events until the client disconnects; a client that reads slowly gets fewer")),
    ),
    ("endRequest", "POST /api/box/end"): Operation(
        "For operators: cancel a request, whose client gets an error, or a batch",
        Reply("The request or the batch has ended", value(type="object", additionalProperties=False, properties={})),
        takes(schemas.EndRequestBody, end={"session": 1}),
    ),
    ("defaultRefAudio", "GET /api/default_ref_audio"): Operation(
        "Get the default voice for requests that clone one", schemas.DefaultRefAudioReply, tag="umaserve"
    ),
    ("settings", "GET /api/settings"): Operation("For operators: get the daemon's settings", schemas.SettingsReply),
    ("health", "GET /health"): _HEALTH,
    ("live", "GET /health/live"): _probe(
        "Check that no restart is needed (liveness)", Reply("A thread does not advance.", schemas.Stuck)
    ),
    ("ready", "GET /health/ready"): _probe(
        "Check that new requests can be served (readiness)",
        Reply(
            "The model is being loaded (again), a tick or a thread does not advance, or the daemon is shutting down.",
            any_of(schemas.Loading, schemas.Wedged, schemas.Stuck, schemas.Draining),
        ),
    ),
    ("metrics", "GET /metrics"): Operation("Get counters, gauges and histograms", METRICS),
    ("openapi", "GET /openapi.json"): Operation("This document", value(type="object")),
    ("docs", "GET /docs"): _public(
        "Get this document as a page; not with --no-page", Reply("OK", content={"text/html": string()}), NOT_CHANGED
    ),
    ("pageFile", "GET /page/{file}"): _public(
        "Get a file of the page for browsers; not with --no-page",
        Reply("OK", content=dict.fromkeys(_PAGE_TYPES, string()), headers={"ETag": {"schema": {"type": "string"}}}),
        NOT_CHANGED,
    ),
    ("healthV1", "GET /v1/health"): _HEALTH,
}

REFERENCE = Reference("operation", "", ERRORS, OPERATIONS)
