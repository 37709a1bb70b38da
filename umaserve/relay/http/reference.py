"""Operations of the relay, and what its OpenAPI document says of all."""

from __future__ import annotations

from dataclasses import replace

from umaserve.dialects.anthropic.reference import REFERENCE as ANTHROPIC
from umaserve.dialects.chat.reference import REFERENCE as CHAT
from umaserve.dialects.generate.reference import REFERENCE as GENERATE
from umaserve.dialects.llama_server.reference import REFERENCE as LLAMA_SERVER
from umaserve.dialects.mcp.reference import REFERENCE as MCP
from umaserve.dialects.ollama.reference import REFERENCE as OLLAMA
from umaserve.dialects.openai.reference import REFERENCE as OPENAI
from umaserve.dialects.realtime.reference import HANDSHAKE
from umaserve.dialects.realtime.reference import REFERENCE as REALTIME
from umaserve.dialects.reference import (
    METRICS,
    Body,
    Errors,
    Frame,
    Operation,
    Parameter,
    Reference,
    Reply,
    bearer,
    form,
    websocket,
)
from umaserve.dialects.responses.kept_schemas import ItemsQuery
from umaserve.dialects.responses.reference import CONVERSATIONS
from umaserve.dialects.responses.reference import REFERENCE as RESPONSES
from umaserve.relay.http import relayed, schemas
from umaserve.relay.http.intake import FORM_PATHS
from umaserve.wire.declared import Kind, any_of, string, value

FRAME = Frame(
    "umaserve relay",
    "One address for many machines: the relay forwards requests unchanged to workers, which have the models, and"
    " returns their answers, errors included, unchanged. The server behind a worker defines what a body may contain and"
    " what the answer is: for a daemon, see its own /openapi.json. If a stream of events is interrupted, it ends with"
    " an event of RelayError; any other answer just ends. Bodies are JSON in UTF-8 with `Content-Type:"
    " application/json`. GET paths answer HEAD too, and all answer OPTIONS. When a client disconnects, its request is"
    " cancelled.",
    keys={
        "key": bearer("A client's key (--client-keys); without that setting, none is needed."),
        "admin": bearer("The token of administrators."),
        "worker": {
            "type": "apiKey",
            "in": "header",
            "name": "x-worker-secret",
            "description": "The secret of workers; also taken from the query, as worker_secret.",
        },
    },
)

ERRORS = Errors(
    "",
    schemas.AnyError,
    "By the relay: 400 for what is in the request, 401 without a valid key, 404 for its path or model, 405, 408 where"
    " it arrived too slowly, 413 where it is too large, 415 where it is no JSON, 429 where the queue is full or there"
    " were too many wrong tokens.",
    "By the relay: 502 where a worker failed, 503 where it is shutting down, workers were lost too often or none"
    " supports WebSockets or sound, 504 where no worker was free in time or one took too long.",
    plain=True,
)

_DAEMONS = {
    at: (name, operation, reference.tag)
    for reference in (OPENAI, RESPONSES, REALTIME, ANTHROPIC, OLLAMA, LLAMA_SERVER, GENERATE, CHAT)
    for (name, at), operation in reference.operations.items()
}
"""A daemon's operations, each with its name and the API that it is of."""
_ITEMS = "The worker gets all items of a conversation."
_READ = {
    **dict.fromkeys(FORM_PATHS, (form(schemas.TranscribeBody), "")),
    "/v1/responses": (
        Body(schemas.ResponseRequest),
        "The relay stores the response, and sets store, background, conversation and previous_response_id in an answer"
        " in one piece. A stream is forwarded unchanged, and only workers of umaserve have the same values in it. A"
        " worker gets all items of a conversation, and neither its id, previous_response_id nor background.",
    ),
    "/v1/responses/input_tokens": (Body(schemas.ResponseRequest), _ITEMS),
    "/v1/responses/compact": (Body(schemas.CompactionRequest), _ITEMS),
}
"""Bodies of which the relay reads more than the model, and what it makes of them."""
_SESSION = (
    " A daemon opens and keeps the session, which has one of its slots; if it is lost, an error says so before the"
    " close. The session counts as a request of its key, and so does each response; one that its rates don't allow is"
    " cancelled."
)
_MODEL = Parameter("model", "query", about='The model of messages that name none, or "default"; without it, any.')


def _posted(path: str) -> tuple[tuple[str, str], Operation]:
    """The operation of a daemon, as a worker answers it through the relay."""
    name, operation, api = _DAEMONS[f"POST {path}"]
    body, more = _READ.get(path, (Body(schemas.Request), ""))
    reply = operation.ok["200"]
    content = dict.fromkeys(reply.contents, string())
    if reply.json is not None:
        content["application/json"] = value() if isinstance(reply.json, Kind) else value(type="object")
    reply = Reply("The worker's answer, unchanged.", content=content)
    return (name, f"POST {path}"), Operation(f"{operation.summary} ({api}). {more}", reply, body)


def _conversation(path: str) -> tuple[tuple[str, str], Operation]:
    """The WebSocket of a daemon, as a worker answers it through the relay."""
    name, operation, api = _DAEMONS[f"GET {path}"]
    about = f"{operation.summary} ({api}). Frames are forwarded unchanged; all, from first to close, are one request."
    if path == relayed.REALTIME:
        return (name, f"GET {path}"), websocket(about + _SESSION, None, schemas.Error, HANDSHAKE)
    return (name, f"GET {path}"), websocket(about, None, schemas.Error, (_MODEL,))


_POSTED = map(_posted, sorted(relayed.RELAYED - relayed.ALIASES.keys()))
_RELAYED = dict([*_POSTED, *map(_conversation, sorted(relayed.CONVERSATIONS))])

_OPEN = Operation(
    "Check that the relay takes new requests, also without workers: requests wait for one",
    schemas.Health,
    replies={"503": Reply("The relay is shutting down.", schemas.Health)},
    security=(),
)
_OWN = {
    ("getResponse", "GET /v1/responses/{response_id}"): Operation(
        "Get a stored response. In memory for an hour, up to 16 MiB for a key or an address, the oldest evicted first.",
        schemas.Response,
    ),
    ("deleteResponse", "DELETE /v1/responses/{response_id}"): Operation(
        "Delete a stored response. One that still runs is cancelled.", schemas.DeleteResponseReply
    ),
    ("listInputItems", "GET /v1/responses/{response_id}/input_items"): Operation(
        "List a response's input, a page at a time", schemas.ListInputItemsReply, parameters=ItemsQuery
    ),
    ("cancelResponse", "POST /v1/responses/{response_id}/cancel"): Operation(
        "Cancel a background response. Its output so far is lost. One that has ended stays. A body is ignored.",
        schemas.Response,
    ),
    **CONVERSATIONS,
    ("mcp", "POST /mcp"): replace(
        MCP.operations["mcp", "POST /mcp"],
        about="Send a message of the Model Context Protocol. As a daemon's /mcp, which its own reference describes. The"
        " relay lists the tools and answers status; the other tools are calls that a worker answers, which must be a"
        " daemon. A call without a model means the only or default one.",
        errors=MCP.errors,
    ),
    ("listModels", "GET /v1/models"): Operation(
        "List the models of the connected workers. With the header anthropic-version, the reply has the form of"
        " Anthropic's API, a page at a time (limit, before_id, after_id).",
        any_of(schemas.ModelList, schemas.AnthropicModels),
    ),
    ("getModel", "GET /v1/models/{model}"): Operation(
        "Get a model by its name. With the header anthropic-version, the reply has the form of Anthropic's API, and a"
        " name that begins with claude means the only or default model.",
        any_of(schemas.Model, schemas.AnthropicModel),
    ),
    ("ollamaTags", "GET /api/tags"): Operation("List the models, in Ollama's API", schemas.OllamaTagsReply),
    ("ollamaRunning", "GET /api/ps"): Operation("List the models as loaded, in Ollama's API", schemas.OllamaTagsReply),
    ("ollamaVersion", "GET /api/version"): Operation("Get the Ollama version it follows", schemas.OllamaVersionReply),
    ("health", "GET /health"): _OPEN,
    ("live", "GET /health/live"): Operation("Check that the relay answers (liveness)", schemas.Health, security=()),
    ("ready", "GET /health/ready"): _OPEN,
    ("metrics", "GET /metrics"): Operation("Get counters and gauges", METRICS),
    ("document", "GET /openapi.json"): Operation("This document", value(type="object")),
    ("connectWorker", "GET /v1/worker/connect"): Operation(
        "WebSocket of a worker, by the protocol of ModelRelay",
        parameters=(Parameter("provider", "query", about="Must be the relay's --provider."),),
        replies={"101": Reply("A WebSocket from here on. A refused worker gets a close frame with the reason.")},
        security=[{"worker": []}],
    ),
}

_DRAIN = Body(schemas.DrainBody, required=False)
_FOR_ADMINISTRATORS = {
    ("listWorkers", "GET /admin/workers"): Operation("All workers", schemas.ListWorkersReply),
    ("stats", "GET /admin/stats"): Operation("Get the values of /metrics", value(type="object")),
    ("adminMetrics", "GET /admin/metrics"): Operation("Get the metrics, with the usage of all keys", METRICS),
    ("drainWorker", "POST /admin/workers/{id}/drain"): Operation(
        "Drain and disconnect a worker", schemas.Worker, _DRAIN
    ),
    ("drainAll", "POST /admin/drain"): Operation("Drain and disconnect all workers", schemas.ListWorkersReply, _DRAIN),
    ("refreshWorker", "POST /admin/workers/{id}/refresh"): Operation("Ask a worker for its models", schemas.Done),
    ("refreshAll", "POST /admin/refresh"): Operation("Ask all workers for their models", schemas.Done),
    ("listKeys", "GET /admin/keys"): Operation("List the clients' keys, without their secrets", schemas.ListKeysReply),
    ("createKey", "POST /admin/keys"): Operation(
        "Create a key", body=Body(schemas.CreateKeyBody), replies={"201": Reply("Created", schemas.CreateKeyReply)}
    ),
    ("revokeKey", "DELETE /admin/keys/{id}"): Operation("Revoke a key", schemas.Done),
}
_SECURED = {key: replace(operation, security=[{"admin": []}]) for key, operation in _FOR_ADMINISTRATORS.items()}

REFERENCES = (
    Reference("relayed", "Answered by a worker.", ERRORS, _RELAYED),
    Reference("relay", "Answered by the relay.", ERRORS, _OWN),
    Reference("operation", "For administrators; available only with --admin-token-file.", ERRORS, _SECURED),
)
