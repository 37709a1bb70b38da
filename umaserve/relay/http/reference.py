"""Operations of the relay, and its OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping

from umaserve.dialects.reference import Body, Errors, Frame, Operation, Parameter, Reference, Reply, upgraded
from umaserve.relay.http.admin_reference import FOR_ADMINISTRATORS
from umaserve.relay.http.schemas import (
    AnthropicModel,
    AnthropicModels,
    AnyError,
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
    "Many boxes behind one address: requests go to workers, which have the models, as they are, and their answers come "
    "back as they are. What a body may hold, and what the answer is, a worker's own server says: a daemon's is in its "
    "own /openapi.json. Bodies are JSON in UTF-8 with `Content-Type: application/json`. GET paths answer HEAD too, "
    "and all answer OPTIONS. A client that disconnects cancels what it asked for.",
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
            "description": "For administrators; without --admin-token-file there is none of it.",
        },
    ],
)

ERRORS = Errors(
    "",
    AnyError,
    (
        "By the relay: 400 for what is in the request, 401 without a good key, 404 for its path or "
        "model, 405, 408 where it came too slowly, 413 where it is too large, 415 where it is no "
        "JSON, 429 where the queue is full or wrong tokens were too many. Or by a worker, in its own "
        "words."
    ),
    (
        "By the relay: 502 where a worker failed, 503 where it is shutting down, workers were lost "
        "too often or none carries WebSockets or sound, 504 where no worker was free in time or one "
        "took too long. Or by a worker, in its own words."
    ),
    plain=True,
)

_AS_IT_IS = "The worker's answer as it is"
_WHOLE = {"200": Reply(f"{_AS_IT_IS}.", json=value(type="object"))}
_EVENTS = {
    "200": Reply(
        f"{_AS_IT_IS}, in one piece or as a stream of events. A stream that breaks off ends with an event of "
        "RelayError.",
        json=value(type="object"),
        content={"text/event-stream": string()},
    )
}
_LINES = {
    "200": Reply(
        f"{_AS_IT_IS}, in one piece or as lines. Where it breaks off, so does the body.",
        json=value(type="object"),
        content={"application/x-ndjson": string()},
    )
}
_ANYTHING = {"200": Reply(f"{_AS_IT_IS}.", content={"*/*": value()})}
_RESPONSE = {
    "200": Reply(
        "The worker's answer, in one piece or as a stream of events. A stream that breaks off ends with an event of "
        "RelayError.",
        json=value(type="object"),
        content={"text/event-stream": string()},
    )
}
_WEBSOCKET = upgraded(
    Error,
    ", whose frames go to a worker and come from it as they are. It is one request to the worker, from the first frame "
    "to its close.",
)
_KEPT = (
    "The relay keeps the response, and what is said of that in an answer in one piece is its own: store, background, "
    "previous_response_id. A stream passes as the worker sends it, and only umaserve's workers say the same in it. A "
    "worker gets all items of a conversation, and neither previous_response_id nor background."
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
        ("GET", "/v1/responses/{response_id}"): Operation(
            "getResponse",
            "A kept response as it is now",
            (
                "Responses are kept in memory for an hour, up to 256 and 16 MiB for a key or an address; the "
                "oldest go first."
            ),
            tag="relay",
            parameters=(_RESPONSE_ID,),
            replies={"200": Reply("OK", json=Response)},
        ),
        ("DELETE", "/v1/responses/{response_id}"): Operation(
            "deleteResponse",
            "Forget a response",
            "One that goes on in the background ends.",
            tag="relay",
            parameters=(_RESPONSE_ID,),
            replies={"200": Reply("OK", json=DeleteResponseReply)},
        ),
        ("GET", "/v1/responses/{response_id}/input_items"): Operation(
            "listInputItems",
            "The items before a response",
            "A page at a time, the latest first.",
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
            "End a response in the background",
            "Nothing of what it has said is kept. One that has ended stays as it is. A body is ignored.",
            tag="relay",
            parameters=(_RESPONSE_ID,),
            replies={"200": Reply("OK", json=Response)},
        ),
        ("POST", "/v1/embeddings"): _relayed("embed", "OpenAI's embeddings", _EVENTS),
        ("POST", "/api/chat"): _relayed("ollamaChat", "Ollama's chats", _LINES),
        ("POST", "/api/generate"): _relayed("ollamaGenerate", "Ollama's generations", _LINES),
        ("POST", "/api/embed"): _relayed("ollamaEmbed", "Ollama's embeddings", _WHOLE),
        ("POST", "/api/embeddings"): _relayed("ollamaEmbeddings", "Ollama's embedding of one text", _WHOLE),
        ("POST", "/api/show"): _relayed("ollamaShow", "What a worker says of a model, as Ollama has it", _WHOLE),
        ("POST", "/v1/audio/speech"): Operation(
            "speak",
            "A text read aloud, as OpenAI's API has it",
            body=Body(Request),
            replies={
                "200": Reply(
                    "The worker's answer as it is. Where it breaks off, so does the body.",
                    content={"audio/*": string(contentMediaType="audio/*")},
                )
            },
        ),
        ("POST", "/v1/audio/transcriptions"): Operation(
            "transcribe",
            "What is said in a recording, as OpenAI's API has it",
            body=Body(TranscribeBody, media="multipart/form-data"),
            replies=_ANYTHING,
        ),
        ("POST", "/audio/transcriptions"): Operation(
            "transcribeUnprefixed",
            "What is said in a recording, without /v1",
            body=Body(TranscribeBody, media="multipart/form-data"),
            replies=_ANYTHING,
        ),
        ("POST", "/v1/audio/translations"): Operation(
            "translate",
            "What is said in a recording, in English, as OpenAI's API has it",
            body=Body(TranscribeBody, media="multipart/form-data"),
            replies=_ANYTHING,
        ),
        ("POST", "/chat/completions"): _relayed("chatUnprefixed", "OpenAI's chat completions, without /v1", _EVENTS),
        ("POST", "/chat/completions/input_tokens"): _relayed(
            "countChatTokensUnprefixed", "The number of tokens of OpenAI's chat completions, without /v1", _WHOLE
        ),
        ("POST", "/completion"): _relayed("completeNative", "Completions, as llama.cpp's server has them", _EVENTS),
        ("POST", "/completions"): _relayed(
            "completeNativeAlias", "Completions, as llama.cpp's server has them", _EVENTS
        ),
        ("POST", "/infill"): _relayed("infill", "What fills a gap in a text, as llama.cpp's server has it", _EVENTS),
        ("POST", "/embedding"): _relayed(
            "embedNative", "The vectors of texts, as llama.cpp's server has them", _EVENTS
        ),
        ("POST", "/embeddings"): _relayed(
            "embedNativeAlias", "The vectors of texts, as llama.cpp's server has them", _EVENTS
        ),
        ("POST", "/tokenize"): _relayed("tokenize", "The tokens of a text, as llama.cpp's server has it", _EVENTS),
        ("POST", "/detokenize"): _relayed("detokenize", "The text of tokens, as llama.cpp's server has it", _EVENTS),
        ("GET", "/generate"): Operation(
            "converse",
            "A WebSocket: a stream that can be steered while it runs",
            parameters=(_MODEL,),
            replies=_WEBSOCKET,
        ),
        ("GET", "/ws/chat"): Operation(
            "chatMode",
            "A WebSocket: one conversation in, text and speech out",
            parameters=(_MODEL,),
            replies=_WEBSOCKET,
        ),
        ("GET", "/v1/models"): Operation(
            "listModels",
            "The models that connected workers have",
            (
                "With the header anthropic-version in the form of Anthropic's API, a page at a time (limit, "
                "before_id, after_id)."
            ),
            tag="relay",
            replies={"200": Reply("OK", json=any_of(ModelList, AnthropicModels))},
        ),
        ("GET", "/v1/models/{model}"): Operation(
            "getModel",
            "A model by its name",
            (
                "With the header anthropic-version in the form of Anthropic's API, where a name that begins "
                "with claude stands for the only or default model."
            ),
            tag="relay",
            parameters=(Parameter("model", "path", string()),),
            replies={"200": Reply("OK", json=any_of(Model, AnthropicModel))},
        ),
        ("GET", "/api/tags"): Operation(
            "ollamaTags",
            "The models that connected workers have, as Ollama lists them",
            tag="relay",
            replies={"200": Reply("OK", json=OllamaTagsReply)},
        ),
        ("GET", "/api/ps"): Operation(
            "ollamaRunning",
            "The same, as Ollama lists the loaded ones",
            tag="relay",
            replies={"200": Reply("OK", json=OllamaTagsReply)},
        ),
        ("GET", "/api/version"): Operation(
            "ollamaVersion",
            "The version of Ollama whose API this is",
            tag="relay",
            replies={"200": Reply("OK", json=OllamaVersionReply)},
        ),
        ("GET", "/health"): Operation(
            "health",
            "Whether new requests are taken",
            tag="relay",
            security=(),
            replies={"200": Reply("OK", json=Health), "503": Reply("The relay is shutting down.", json=Health)},
        ),
        ("GET", "/health/live"): Operation(
            "live",
            "Whether the relay answers at all",
            tag="relay",
            security=(),
            replies={"200": Reply("OK", json=Health)},
        ),
        ("GET", "/health/ready"): Operation(
            "ready",
            "Whether new requests are taken, also while there is no worker: they wait for one",
            tag="relay",
            security=(),
            replies={"200": Reply("OK", json=Health), "503": Reply("The relay is shutting down.", json=Health)},
        ),
        ("GET", "/metrics"): Operation(
            "metrics",
            "Counters and gauges",
            tag="relay",
            replies={"200": Reply("OK", content={"text/plain": string(description="Prometheus' text format.")})},
        ),
        ("GET", "/openapi.json"): Operation(
            "document", "This document", tag="relay", replies={"200": Reply("OK", json=value(type="object"))}
        ),
        ("GET", "/v1/worker/connect"): Operation(
            "connectWorker",
            "A worker's WebSocket, by the protocol of ModelRelay",
            tag="relay",
            security=[{"worker": []}],
            parameters=(Parameter("provider", "query", string(), "Must be the relay's --provider."),),
            replies={
                "101": Reply(
                    "The connection is a WebSocket from here on. A worker that is refused gets a close with the reason."
                )
            },
        ),
        **FOR_ADMINISTRATORS,
    },
)
