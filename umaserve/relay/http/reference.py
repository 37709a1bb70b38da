"""Operations of the relay, and its OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from umaserve.dialects.mcp.reference import ERRORS as MCPS_ERRORS
from umaserve.dialects.mcp.reference import REFERENCE as MCP
from umaserve.dialects.reference import Body, Errors, Frame, Operation, Parameter, Reference, Reply, upgraded
from umaserve.dialects.responses.conversations_reference import CONVERSATIONS
from umaserve.relay.http.admin_reference import FOR_ADMINISTRATORS
from umaserve.relay.http.schemas import (
    AnthropicModel,
    AnthropicModels,
    AnyError,
    CompactionRequest,
    DeleteResponseReply,
    Error,
    Health,
    ListInputItemsReply,
    Model,
    ModelList,
    OllamaTagsReply,
    OllamaVersionReply,
    Request,
    Response,
    ResponseRequest,
    TranscribeBody,
)
from umaserve.wire.declared import any_of, string, value

FRAME = Frame(
    "umaserve relay",
    "One address for many machines: the relay forwards requests unchanged to workers, which have the models, and"
    " returns their answers unchanged. The server behind a worker defines what a body may contain and what the answer"
    " is: for a daemon, see its own /openapi.json. Bodies are JSON in UTF-8 with `Content-Type: application/json`."
    " GET paths answer HEAD too, "
    "and all answer OPTIONS. When a client disconnects, its request is cancelled.",
    keys={
        "key": {
            "type": "http",
            "scheme": "bearer",
            "description": "A client's key (--client-keys); without that setting, none is needed.",
        },
        "admin": {"type": "http", "scheme": "bearer", "description": "The token of administrators."},
        "worker": {
            "type": "apiKey",
            "in": "header",
            "name": "x-worker-secret",
            "description": "The secret of workers; also taken from the query, as worker_secret.",
        },
    },
    tags=[
        {"name": "relayed", "description": "Answered by a worker."},
        {"name": "relay", "description": "Answered by the relay."},
        {
            "name": "operation",
            "description": "For administrators; available only with --admin-token-file.",
        },
    ],
)

ERRORS = Errors(
    "",
    AnyError,
    (
        "By the relay: 400 for what is in the request, 401 without a valid key, 404 for its path or "
        "model, 405, 408 where it arrived too slowly, 413 where it is too large, 415 where it is no "
        "JSON, 429 where the queue is full or there were too many wrong tokens. Or an error of the worker, unchanged."
    ),
    (
        "By the relay: 502 where a worker failed, 503 where it is shutting down, workers were lost too often or none"
        " supports WebSockets or sound, 504 where no worker was free in time or one took too long. Or an error of the"
        " worker, unchanged."
    ),
    plain=True,
)

_AS_IT_IS = "The worker's answer, unchanged"
_WHOLE = {"200": Reply(f"{_AS_IT_IS}.", json=value(type="object"))}
_EVENTS = {
    "200": Reply(
        f"{_AS_IT_IS}, in one piece or as a stream of events. A stream that is interrupted ends with an event of"
        " RelayError.",
        json=value(type="object"),
        content={"text/event-stream": string()},
    )
}
_LINES = {
    "200": Reply(
        f"{_AS_IT_IS}, in one piece or as lines. If it is interrupted, so is the body.",
        json=value(type="object"),
        content={"application/x-ndjson": string()},
    )
}
_ANYTHING = {"200": Reply(f"{_AS_IT_IS}.", content={"*/*": value()})}
_RESPONSE = {
    "200": Reply(
        "The worker's answer, in one piece or as a stream of events. A stream that is interrupted ends with an event"
        " of RelayError.",
        json=value(type="object"),
        content={"text/event-stream": string()},
    )
}
_WEBSOCKET = upgraded(
    Error,
    ", whose frames are forwarded to and from a worker unchanged. For the worker it is one request, from the first"
    " frame to the close.",
)
_KEPT = (
    "The relay stores the response, and sets store, background, conversation and previous_response_id in an answer in"
    " one piece. A stream is forwarded unchanged, and only workers of umaserve have the same values in it. A worker"
    " gets all items of a conversation, and neither its id, previous_response_id nor background."
)
_MODEL = Parameter("model", "query", about='The model of messages that name none, or "default"; without it, any.')
_RESPONSE_ID = Parameter("response_id", "path")


def _relayed(name: str, summary: str, replies: Mapping[str, Reply]) -> Operation:
    """An operation that a worker answers."""
    return Operation(name, summary, body=Body(Request), replies=replies)


REFERENCE = Reference(
    "relayed",
    "Answered by a worker.",
    ERRORS,
    {
        ("POST", "/v1/chat/completions"): _relayed("chat", "OpenAI's chat completions", _EVENTS),
        ("POST", "/v1/chat/completions/input_tokens"): _relayed(
            "countChatTokens", "The number of tokens of OpenAI's chat completions", _WHOLE
        ),
        ("POST", "/v1/completions"): _relayed("complete", "OpenAI's text completions", _EVENTS),
        ("POST", "/v1/messages"): _relayed("messages", "Anthropic's messages", _EVENTS),
        ("POST", "/v1/messages/count_tokens"): _relayed(
            "countTokens", "The number of tokens of Anthropic's messages", _WHOLE
        ),
        ("POST", "/v1/responses"): Operation(
            "respond",
            "OpenAI's responses",
            _KEPT,
            body=Body(ResponseRequest),
            replies=_RESPONSE,
        ),
        ("POST", "/responses"): Operation(
            "respondUnprefixed",
            "OpenAI's responses, without /v1",
            _KEPT,
            body=Body(ResponseRequest),
            replies=_RESPONSE,
        ),
        ("POST", "/v1/responses/input_tokens"): Operation(
            "countResponseTokens",
            "The number of tokens of a response's prompt",
            "The worker gets all items of a conversation.",
            body=Body(ResponseRequest),
            replies=_WHOLE,
        ),
        ("POST", "/v1/responses/compact"): Operation(
            "compactConversation",
            "A summary of a conversation, as items of the next request",
            "The worker gets all items of a conversation.",
            body=Body(CompactionRequest),
            replies=_WHOLE,
        ),
        ("GET", "/v1/responses/{response_id}"): Operation(
            "getResponse",
            "Get a stored response",
            (
                "Responses are stored in memory for an hour, up to 16 MiB for a key or an address; the oldest are"
                " evicted first."
            ),
            tag="relay",
            parameters=(_RESPONSE_ID,),
            replies={"200": Reply("OK", json=Response)},
        ),
        ("DELETE", "/v1/responses/{response_id}"): Operation(
            "deleteResponse",
            "Delete a stored response",
            "A response that still runs in the background is cancelled.",
            tag="relay",
            parameters=(_RESPONSE_ID,),
            replies={"200": Reply("OK", json=DeleteResponseReply)},
        ),
        ("GET", "/v1/responses/{response_id}/input_items"): Operation(
            "listInputItems",
            "List the input items of a response",
            "One page at a time, the latest first.",
            tag="relay",
            parameters=(
                _RESPONSE_ID,
                Parameter(
                    "limit", "query", value(type="integer", minimum=1, maximum=100, default=20), "Items of a page."
                ),
                Parameter("order", "query", value(enum=["asc", "desc"], default="desc"), "By time."),
                Parameter("after", "query", string(), "The id of the item that the page follows."),
            ),
            replies={"200": Reply("OK", json=ListInputItemsReply)},
        ),
        ("POST", "/v1/responses/{response_id}/cancel"): Operation(
            "cancelResponse",
            "Cancel a background response",
            "Its output so far is lost. A response that has ended is not changed. A body is ignored.",
            tag="relay",
            parameters=(_RESPONSE_ID,),
            replies={"200": Reply("OK", json=Response)},
        ),
        **{at: replace(operation, tag="relay") for at, operation in CONVERSATIONS.items()},
        ("POST", "/mcp"): replace(
            MCP.operations["POST", "/mcp"],
            about=(
                "As a daemon's /mcp, which its own reference describes. The relay lists the tools and answers status;"
                " the other tools are calls that a worker answers, which must be a daemon. A call without a model means"
                " the only or default one."
            ),
            tag="relay",
            errors=MCPS_ERRORS,
        ),
        ("POST", "/v1/embeddings"): _relayed("embed", "OpenAI's embeddings", _EVENTS),
        ("POST", "/api/chat"): _relayed("ollamaChat", "Ollama's chats", _LINES),
        ("POST", "/api/generate"): _relayed("ollamaGenerate", "Ollama's generations", _LINES),
        ("POST", "/api/embed"): _relayed("ollamaEmbed", "Ollama's embeddings", _WHOLE),
        ("POST", "/api/embeddings"): _relayed("ollamaEmbeddings", "Ollama's embedding of one text", _WHOLE),
        ("POST", "/api/show"): _relayed("ollamaShow", "Show a model, in Ollama's API", _WHOLE),
        ("POST", "/v1/audio/speech"): Operation(
            "speak",
            "Turn a text into speech, in OpenAI's API",
            body=Body(Request),
            replies={
                "200": Reply(
                    "The worker's answer, unchanged. If it is interrupted, so is the body.",
                    content={"audio/*": string(contentMediaType="audio/*")},
                )
            },
        ),
        ("POST", "/v1/audio/transcriptions"): Operation(
            "transcribe",
            "Transcribe a recording, in OpenAI's API",
            body=Body(TranscribeBody, media="multipart/form-data"),
            replies=_ANYTHING,
        ),
        ("POST", "/audio/transcriptions"): Operation(
            "transcribeUnprefixed",
            "Transcribe a recording, without /v1",
            body=Body(TranscribeBody, media="multipart/form-data"),
            replies=_ANYTHING,
        ),
        ("POST", "/v1/audio/translations"): Operation(
            "translate",
            "Translate a recording into English, in OpenAI's API",
            body=Body(TranscribeBody, media="multipart/form-data"),
            replies=_ANYTHING,
        ),
        ("POST", "/chat/completions"): _relayed("chatUnprefixed", "OpenAI's chat completions, without /v1", _EVENTS),
        ("POST", "/chat/completions/input_tokens"): _relayed(
            "countChatTokensUnprefixed", "The number of tokens of OpenAI's chat completions, without /v1", _WHOLE
        ),
        ("POST", "/completion"): _relayed("completeNative", "Continue a text, in llama.cpp's API", _EVENTS),
        ("POST", "/completions"): _relayed("completeNativeAlias", "Continue a text, in llama.cpp's API", _EVENTS),
        ("POST", "/infill"): _relayed("infill", "Fill in the middle of a text, in llama.cpp's API", _EVENTS),
        ("POST", "/embedding"): _relayed("embedNative", "Create the embeddings of texts, in llama.cpp's API", _EVENTS),
        ("POST", "/embeddings"): _relayed(
            "embedNativeAlias", "Create the embeddings of texts, in llama.cpp's API", _EVENTS
        ),
        ("POST", "/tokenize"): _relayed("tokenize", "Tokenize a text, in llama.cpp's API", _EVENTS),
        ("POST", "/detokenize"): _relayed("detokenize", "Detokenize tokens, in llama.cpp's API", _EVENTS),
        ("GET", "/generate"): Operation(
            "converse",
            "WebSocket: a stream that can be controlled while it runs",
            parameters=(_MODEL,),
            replies=_WEBSOCKET,
        ),
        ("GET", "/ws/chat"): Operation(
            "chatMode",
            "WebSocket: one turn of a chat, with text and speech",
            parameters=(_MODEL,),
            replies=_WEBSOCKET,
        ),
        ("GET", "/v1/models"): Operation(
            "listModels",
            "List the models of the connected workers",
            (
                "Also at /models. With the header anthropic-version, the reply has the form of Anthropic's API, a page"
                " at a time (limit, before_id, after_id)."
            ),
            tag="relay",
            replies={"200": Reply("OK", json=any_of(ModelList, AnthropicModels))},
        ),
        ("GET", "/v1/models/{model}"): Operation(
            "getModel",
            "Get a model by its name",
            (
                "With the header anthropic-version, the reply has the form of Anthropic's API, and a name that begins"
                " with claude means the only or default model."
            ),
            tag="relay",
            parameters=(Parameter("model", "path", string()),),
            replies={"200": Reply("OK", json=any_of(Model, AnthropicModel))},
        ),
        ("GET", "/api/tags"): Operation(
            "ollamaTags",
            "List the models of the connected workers, in Ollama's API",
            tag="relay",
            replies={"200": Reply("OK", json=OllamaTagsReply)},
        ),
        ("GET", "/api/ps"): Operation(
            "ollamaRunning",
            "List the same models as loaded, in Ollama's API",
            tag="relay",
            replies={"200": Reply("OK", json=OllamaTagsReply)},
        ),
        ("GET", "/api/version"): Operation(
            "ollamaVersion",
            "Get the version of Ollama that this API follows",
            tag="relay",
            replies={"200": Reply("OK", json=OllamaVersionReply)},
        ),
        ("GET", "/health"): Operation(
            "health",
            "Check that the relay takes new requests",
            tag="relay",
            security=(),
            replies={"200": Reply("OK", json=Health), "503": Reply("The relay is shutting down.", json=Health)},
        ),
        ("GET", "/health/live"): Operation(
            "live",
            "Check that the relay answers (liveness)",
            tag="relay",
            security=(),
            replies={"200": Reply("OK", json=Health)},
        ),
        ("GET", "/health/ready"): Operation(
            "ready",
            "Check that the relay takes new requests (readiness), also without workers: requests wait for one",
            tag="relay",
            security=(),
            replies={"200": Reply("OK", json=Health), "503": Reply("The relay is shutting down.", json=Health)},
        ),
        ("GET", "/metrics"): Operation(
            "metrics",
            "Get counters and gauges",
            tag="relay",
            replies={"200": Reply("OK", content={"text/plain": string(description="Prometheus' text format.")})},
        ),
        ("GET", "/openapi.json"): Operation(
            "document", "This document", tag="relay", replies={"200": Reply("OK", json=value(type="object"))}
        ),
        ("GET", "/v1/worker/connect"): Operation(
            "connectWorker",
            "WebSocket of a worker, by the protocol of ModelRelay",
            tag="relay",
            security=[{"worker": []}],
            parameters=(Parameter("provider", "query", string(), "Must be the relay's --provider."),),
            replies={
                "101": Reply(
                    "The connection is a WebSocket from here on. A refused worker gets a close frame with the reason."
                )
            },
        ),
        **FOR_ADMINISTRATORS,
    },
)
