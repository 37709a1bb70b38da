"""Operations of the API of Ollama."""

from __future__ import annotations

from umaserve.dialects.examples import COLOURS, ONCE, SKY, YES_OR_NO, said
from umaserve.dialects.ollama import schemas
from umaserve.dialects.reference import CACHED, Errors, Operation, Reference, Reply, takes
from umaserve.wire.declared import Declared

ERRORS = Errors("Ollama", schemas.OllamaError)

_NAMED = {"model": "SmolLM2-135M-Instruct.Q4_1"}
_WHOLE = {**_NAMED, "stream": False}
_SHORT = {"options": {"num_predict": 16}}
_CHAT = {**_NAMED, **_SHORT, "messages": said(COLOURS)}
_REFUSED = Operation("Refused. Not supported: the daemon's operator manages its models. Returns 400.")
_LINES = "Each line is a JSON object (x-line). An error after the first line is a line with an OllamaError."


def _answer(of: type[Declared]) -> Reply:
    return Reply("The whole answer, or its lines.", of, lines=(of, _LINES), headers=CACHED)


OPERATIONS = {
    ("ollamaVersion", "GET /api/version"): Operation("Get the Ollama version that is followed", schemas.OllamaVersion),
    ("ollamaTags", "GET /api/tags"): Operation("List all models, the default one first", schemas.OllamaModels),
    ("ollamaPs", "GET /api/ps"): Operation("List the loaded models", schemas.OllamaLoadedModels),
    ("ollamaShow", "POST /api/show"): Operation(
        "Show a model; of one that was never loaded, only its name",
        schemas.OllamaAboutModel,
        takes(schemas.OllamaShowRequest, plain=_NAMED),
    ),
    ("ollamaChat", "POST /api/chat"): Operation(
        "Create the next message of a conversation. One that is longer than the context is refused, never truncated. A"
        " stream without other lines has a line with an empty content every 15 seconds.",
        _answer(schemas.OllamaChatAnswer),
        takes(
            schemas.OllamaChatRequest,
            plain={**_CHAT, "stream": False},
            streamed={**_CHAT, "logprobs": True, "top_logprobs": 2, "stream": True},
            json={**_WHOLE, "messages": said(SKY), "format": YES_OR_NO, "options": {"num_predict": 32}},
            load=_WHOLE,
        ),
    ),
    ("ollamaGenerate", "POST /api/generate"): Operation(
        "Answer a prompt. One that is longer than the context is refused, never truncated. A stream without other lines"
        " has a line with an empty response every 15 seconds.",
        _answer(schemas.OllamaGenerateAnswer),
        takes(
            schemas.OllamaGenerateRequest,
            plain={**_WHOLE, **_SHORT, "prompt": COLOURS},
            streamed={**_NAMED, **_SHORT, "prompt": ONCE, "raw": True, "stream": True},
            unload={**_WHOLE, "keep_alive": 0},
        ),
    ),
    ("ollamaEmbed", "POST /api/embed"): Operation(
        "Create the embeddings of texts",
        schemas.OllamaEmbedReply,
        takes(schemas.OllamaEmbedRequest, plain={**_NAMED, "input": ["hello", "goodbye"]}),
    ),
    ("ollamaEmbeddings", "POST /api/embeddings"): Operation(
        "Create the embedding of one text",
        schemas.OllamaEmbeddingsReply,
        takes(schemas.OllamaEmbeddingsRequest, plain={**_NAMED, "prompt": "hello"}),
    ),
    ("ollamaPull", "POST /api/pull"): Operation(
        "Pull a model: succeeds at once if the daemon has it, else returns 404",
        Reply("OK", schemas.OllamaStatus, lines=(schemas.OllamaStatus, _LINES)),
        takes(schemas.OllamaPullRequest, plain=_WHOLE, streamed={**_NAMED, "stream": True}),
    ),
    ("ollamaCreate", "POST /api/create"): _REFUSED,
    ("ollamaCopy", "POST /api/copy"): _REFUSED,
    ("ollamaPush", "POST /api/push"): _REFUSED,
    ("ollamaDelete", "DELETE /api/delete"): _REFUSED,
    ("ollamaBlob", "POST /api/blobs/{digest}"): _REFUSED,
}

REFERENCE = Reference("Ollama", "Ollama's API, for its clients.", ERRORS, OPERATIONS)
