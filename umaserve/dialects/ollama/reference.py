"""Operations of the API of Ollama."""

from __future__ import annotations

from umaserve.dialects.ollama.schemas import (
    OllamaChatAnswer,
    OllamaChatRequest,
    OllamaEmbedBody,
    OllamaEmbeddingsBody,
    OllamaEmbeddingsReply,
    OllamaEmbedReply,
    OllamaError,
    OllamaGenerateAnswer,
    OllamaGenerateRequest,
    OllamaPsReply,
    OllamaPullBody,
    OllamaPullReply,
    OllamaShowBody,
    OllamaShowReply,
    OllamaTagsReply,
    OllamaVersionReply,
)
from umaserve.dialects.reference import CACHE_MISS, Body, Errors, Operation, Parameter, Reference, Reply
from umaserve.wire.declared import string

ERRORS = Errors("Ollama", OllamaError)

REFERENCE = Reference(
    "Ollama",
    "As Ollama has them, for its clients.",
    ERRORS,
    {
        ("GET", "/api/version"): Operation(
            "ollamaVersion",
            "The version of Ollama that this API is like",
            replies={"200": Reply("OK", json=OllamaVersionReply)},
        ),
        ("GET", "/api/tags"): Operation(
            "ollamaTags", "All models, the default one first", replies={"200": Reply("OK", json=OllamaTagsReply)}
        ),
        ("GET", "/api/ps"): Operation(
            "ollamaPs", "The models that are loaded", replies={"200": Reply("OK", json=OllamaPsReply)}
        ),
        ("POST", "/api/show"): Operation(
            "ollamaShow",
            "About a model; of one that was never loaded, its name",
            body=Body(OllamaShowBody, {"plain": {"model": "SmolLM2-135M-Instruct.Q4_1"}}),
            replies={"200": Reply("OK", json=OllamaShowReply)},
        ),
        ("POST", "/api/chat"): Operation(
            "ollamaChat",
            "The next message of a conversation",
            (
                "Fields that are not listed are ignored. A conversation that is longer than the context is "
                "refused, never cut. A stream in which nothing else comes has a line with an empty content "
                "every 15 seconds."
            ),
            body=Body(
                OllamaChatRequest,
                {
                    "plain": {
                        "model": "SmolLM2-135M-Instruct.Q4_1",
                        "messages": [{"role": "user", "content": "Name three colours."}],
                        "options": {"num_predict": 16},
                        "stream": False,
                    },
                    "streamed": {
                        "model": "SmolLM2-135M-Instruct.Q4_1",
                        "messages": [{"role": "user", "content": "Name three colours."}],
                        "options": {"num_predict": 16, "temperature": 0.7, "seed": 1},
                        "logprobs": True,
                        "top_logprobs": 2,
                        "stream": True,
                    },
                    "json": {
                        "model": "SmolLM2-135M-Instruct.Q4_1",
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
                    "load": {"model": "SmolLM2-135M-Instruct.Q4_1", "stream": False},
                },
            ),
            replies={
                "200": Reply(
                    "The whole answer, or its lines.",
                    json=OllamaChatAnswer,
                    lines=(
                        OllamaChatAnswer,
                        (
                            "Each line is a JSON object (x-line). An error that comes when the stream has begun is a "
                            "line with an OllamaError."
                        ),
                    ),
                    headers={"x-umaserve-cache-miss": CACHE_MISS},
                )
            },
        ),
        ("POST", "/api/generate"): Operation(
            "ollamaGenerate",
            "The answer to a prompt",
            (
                "Fields that are not listed are ignored. A prompt that is longer than the context is "
                "refused, never cut. A stream in which nothing else comes has a line with an empty response "
                "every 15 seconds."
            ),
            body=Body(
                OllamaGenerateRequest,
                {
                    "plain": {
                        "model": "SmolLM2-135M-Instruct.Q4_1",
                        "prompt": "Name three colours.",
                        "options": {"num_predict": 16},
                        "stream": False,
                    },
                    "streamed": {
                        "model": "SmolLM2-135M-Instruct.Q4_1",
                        "prompt": "Once upon a time",
                        "raw": True,
                        "options": {"num_predict": 16},
                        "stream": True,
                    },
                    "unload": {"model": "SmolLM2-135M-Instruct.Q4_1", "keep_alive": 0, "stream": False},
                },
            ),
            replies={
                "200": Reply(
                    "The whole answer, or its lines.",
                    json=OllamaGenerateAnswer,
                    lines=(
                        OllamaGenerateAnswer,
                        (
                            "Each line is a JSON object (x-line). An error that comes when the stream has begun is a "
                            "line with an OllamaError."
                        ),
                    ),
                    headers={"x-umaserve-cache-miss": CACHE_MISS},
                )
            },
        ),
        ("POST", "/api/embed"): Operation(
            "ollamaEmbed",
            "The vectors of texts",
            body=Body(
                OllamaEmbedBody, {"plain": {"model": "SmolLM2-135M-Instruct.Q4_1", "input": ["hello", "goodbye"]}}
            ),
            replies={"200": Reply("OK", json=OllamaEmbedReply)},
        ),
        ("POST", "/api/embeddings"): Operation(
            "ollamaEmbeddings",
            "The vector of one text",
            body=Body(OllamaEmbeddingsBody, {"plain": {"model": "SmolLM2-135M-Instruct.Q4_1", "prompt": "hello"}}),
            replies={"200": Reply("OK", json=OllamaEmbeddingsReply)},
        ),
        ("POST", "/api/pull"): Operation(
            "ollamaPull",
            "Succeeds at once for the models that are there, and answers 404 for all others",
            body=Body(
                OllamaPullBody,
                {
                    "plain": {"model": "SmolLM2-135M-Instruct.Q4_1", "stream": False},
                    "streamed": {"model": "SmolLM2-135M-Instruct.Q4_1", "stream": True},
                },
            ),
            replies={
                "200": Reply(
                    "OK",
                    json=OllamaPullReply,
                    lines=(
                        OllamaPullReply,
                        (
                            "Each line is a JSON object (x-line). An error that comes when the stream has begun is a "
                            "line with an OllamaError."
                        ),
                    ),
                )
            },
        ),
        ("POST", "/api/create"): Operation(
            "ollamaCreate", "Refused", "Models belong to this daemon's operator: it answers 400.", replies={}
        ),
        ("POST", "/api/copy"): Operation(
            "ollamaCopy", "Refused", "Models belong to this daemon's operator: it answers 400.", replies={}
        ),
        ("POST", "/api/push"): Operation(
            "ollamaPush", "Refused", "Models belong to this daemon's operator: it answers 400.", replies={}
        ),
        ("DELETE", "/api/delete"): Operation(
            "ollamaDelete", "Refused", "Models belong to this daemon's operator: it answers 400.", replies={}
        ),
        ("POST", "/api/blobs/{digest}"): Operation(
            "ollamaBlob",
            "Refused",
            "Models belong to this daemon's operator: it answers 400.",
            parameters=(Parameter("digest", "path", string()),),
            replies={},
        ),
    },
)
