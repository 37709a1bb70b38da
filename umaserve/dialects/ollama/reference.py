"""Operations of the API of Ollama."""

from __future__ import annotations

from umaserve.dialects.ollama.schemas import (
    OllamaAboutModel,
    OllamaChatAnswer,
    OllamaChatRequest,
    OllamaEmbeddingsReply,
    OllamaEmbeddingsRequest,
    OllamaEmbedReply,
    OllamaEmbedRequest,
    OllamaError,
    OllamaGenerateAnswer,
    OllamaGenerateRequest,
    OllamaLoadedModels,
    OllamaModels,
    OllamaPullRequest,
    OllamaShowRequest,
    OllamaStatus,
    OllamaVersion,
)
from umaserve.dialects.reference import CACHE_MISS, Body, Errors, Operation, Parameter, Reference, Reply
from umaserve.wire.declared import Declared

ERRORS = Errors("Ollama", OllamaError)

_MODEL = "SmolLM2-135M-Instruct.Q4_1"
_COLOURS = "Name three colours."
_LINES = (
    "Each line is a JSON object (x-line). An error that occurs after the stream has begun is a line with an"
    " OllamaError."
)


def _asks(name: str, summary: str, body: type[Declared], reply: type[Declared], **examples: object) -> Operation:
    return Operation(name, summary, body=Body(body, examples), replies={"200": Reply("OK", json=reply)})


def _tells(name: str, summary: str, reply: type[Declared]) -> Operation:
    return Operation(name, summary, replies={"200": Reply("OK", json=reply)})


def _answers(
    name: str, summary: str, prompt: str, part: str, body: type[Declared], answer: type[Declared], **examples: object
) -> Operation:
    """An operation whose answer is a text. ``prompt``: what it answers; ``part``: the field of a line's text."""
    about = (
        f"Fields that are not listed are ignored. A {prompt} that is longer than the context is refused, never"
        f" truncated. A stream without other lines has a line with an empty {part} every 15 seconds."
    )
    reply = Reply(
        "The whole answer, or its lines.",
        json=answer,
        lines=(answer, _LINES),
        headers={"x-umaserve-cache-miss": CACHE_MISS},
    )
    return Operation(name, summary, about, {"200": reply}, Body(body, examples))


def _refused(name: str, *parameters: Parameter) -> Operation:
    about = "Not supported: the daemon's operator manages its models. Returns 400."
    return Operation(name, "Refused", about, parameters=parameters)


REFERENCE = Reference(
    "Ollama",
    "Ollama's API, for its clients.",
    ERRORS,
    {
        ("GET", "/api/version"): _tells(
            "ollamaVersion", "Get the version of Ollama that this API follows", OllamaVersion
        ),
        ("GET", "/api/tags"): _tells("ollamaTags", "List all models, the default one first", OllamaModels),
        ("GET", "/api/ps"): _tells("ollamaPs", "List the loaded models", OllamaLoadedModels),
        ("POST", "/api/show"): _asks(
            "ollamaShow",
            "Show a model; of one that was never loaded, only its name",
            OllamaShowRequest,
            OllamaAboutModel,
            plain={"model": _MODEL},
        ),
        ("POST", "/api/chat"): _answers(
            "ollamaChat",
            "Create the next message of a conversation",
            "conversation",
            "content",
            OllamaChatRequest,
            OllamaChatAnswer,
            plain={
                "model": _MODEL,
                "messages": [{"role": "user", "content": _COLOURS}],
                "options": {"num_predict": 16},
                "stream": False,
            },
            streamed={
                "model": _MODEL,
                "messages": [{"role": "user", "content": _COLOURS}],
                "options": {"num_predict": 16, "temperature": 0.7, "seed": 1},
                "logprobs": True,
                "top_logprobs": 2,
                "stream": True,
            },
            json={
                "model": _MODEL,
                "messages": [{"role": "user", "content": "Is the sky blue?"}],
                "format": {
                    "type": "object",
                    "properties": {"answer": {"enum": ["yes", "no"]}},
                    "required": ["answer"],
                    "additionalProperties": False,
                },
                "options": {"num_predict": 32, "temperature": 0},
                "stream": False,
            },
            load={"model": _MODEL, "stream": False},
        ),
        ("POST", "/api/generate"): _answers(
            "ollamaGenerate",
            "Answer a prompt",
            "prompt",
            "response",
            OllamaGenerateRequest,
            OllamaGenerateAnswer,
            plain={"model": _MODEL, "prompt": _COLOURS, "options": {"num_predict": 16}, "stream": False},
            streamed={
                "model": _MODEL,
                "prompt": "Once upon a time",
                "raw": True,
                "options": {"num_predict": 16},
                "stream": True,
            },
            unload={"model": _MODEL, "keep_alive": 0, "stream": False},
        ),
        ("POST", "/api/embed"): _asks(
            "ollamaEmbed",
            "Create the embeddings of texts",
            OllamaEmbedRequest,
            OllamaEmbedReply,
            plain={"model": _MODEL, "input": ["hello", "goodbye"]},
        ),
        ("POST", "/api/embeddings"): _asks(
            "ollamaEmbeddings",
            "Create the embedding of one text",
            OllamaEmbeddingsRequest,
            OllamaEmbeddingsReply,
            plain={"model": _MODEL, "prompt": "hello"},
        ),
        ("POST", "/api/pull"): Operation(
            "ollamaPull",
            "Pull a model: succeeds at once if the daemon has it, else returns 404",
            body=Body(
                OllamaPullRequest,
                {"plain": {"model": _MODEL, "stream": False}, "streamed": {"model": _MODEL, "stream": True}},
            ),
            replies={"200": Reply("OK", json=OllamaStatus, lines=(OllamaStatus, _LINES))},
        ),
        ("POST", "/api/create"): _refused("ollamaCreate"),
        ("POST", "/api/copy"): _refused("ollamaCopy"),
        ("POST", "/api/push"): _refused("ollamaPush"),
        ("DELETE", "/api/delete"): _refused("ollamaDelete"),
        ("POST", "/api/blobs/{digest}"): _refused("ollamaBlob", Parameter("digest", "path")),
    },
)
