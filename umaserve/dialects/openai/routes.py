"""The paths of OpenAI's API."""

from __future__ import annotations

import orjson

from umaserve.dialects.facts import Facts
from umaserve.dialects.http import JSON
from umaserve.dialects.listing import named
from umaserve.dialects.openai import models
from umaserve.dialects.openai.completions import ChatBody, CompletionBody
from umaserve.dialects.openai.embeddings import embeddings_result, parse_embeddings
from umaserve.dialects.openai.errors import ERRORS
from umaserve.dialects.openai.reference import REFERENCE
from umaserve.dialects.openai.requests import count_request
from umaserve.dialects.openai.speech import text_to_speech, voices
from umaserve.dialects.openai.transcriptions import TranscriptionBody
from umaserve.dialects.parameters import json_body, model_name
from umaserve.dialects.routes import (
    Asked,
    CallingTextReply,
    EngineQuestion,
    FormReply,
    HttpDialect,
    Page,
    Route,
    SpeechReply,
    TextReply,
    ask,
)
from umaserve.dialects.spoken_reply import SpokenReply
from umaserve.wire.http_head import Request

MODELS_PATH = "/v1/models"


def _chat(facts: Facts) -> ChatBody:
    new_id = facts.new_id("chatcmpl-")
    return ChatBody(facts.limits, facts.voice, facts.model, new_id, facts.now(), facts.server_tools)


def _completion(facts: Facts) -> CompletionBody:
    return CompletionBody(facts.limits, facts.model, facts.new_id("cmpl-"), facts.now())


def _transcription(facts: Facts, content_type: str) -> TranscriptionBody:
    new_id = facts.new_id("transcript-")
    return TranscriptionBody(facts.limits, facts.model, new_id, content_type, translates=False)


def _translation(facts: Facts, content_type: str) -> TranscriptionBody:
    new_id = facts.new_id("translation-")
    return TranscriptionBody(facts.limits, facts.model, new_id, content_type, translates=True)


def _speech(facts: Facts) -> SpokenReply:
    return SpokenReply(lambda body: text_to_speech(json_body(body), facts.voice), ERRORS)


def _voices(facts: Facts, _request: Request) -> tuple[int, str, bytes]:
    return 200, JSON, voices(facts.voice)


def _embeddings(body: bytes, facts: Facts) -> Asked:
    fields = json_body(body)
    model = model_name(fields)
    info = facts.loaded(model)
    request = parse_embeddings(fields, facts.limits, info.embedding_length)
    return ask(request.query, lambda answer: embeddings_result(answer, request, info.name), model)


def _count(body: bytes, facts: Facts) -> Asked:
    query = count_request(body, facts.limits, facts.server_tools)
    return ask(query, lambda answer: orjson.dumps({"input_tokens": answer.tokens}), query.request.model)


def _models(facts: Facts, request: Request) -> tuple[int, str, bytes]:
    return 200, JSON, models.models(facts.models(), facts.started_at, facts.limits, request.query)


def _model(facts: Facts, request: Request) -> tuple[int, str, bytes]:
    name = request.path.removeprefix(f"{MODELS_PATH}/")
    return 200, JSON, models.model(named(facts, name), facts.started_at, facts.limits)


DIALECT = HttpDialect(
    "openai",
    {
        "/v1/chat/completions": Route("POST", CallingTextReply(_chat, media=True)),
        "/v1/chat/completions/input_tokens": Route("POST", EngineQuestion(_count, media=True)),
        "/v1/completions": Route("POST", TextReply(_completion)),
        "/v1/audio/speech": Route("POST", SpeechReply(_speech)),
        "/v1/audio/voices": Route("GET", Page(_voices)),
        "/v1/audio/transcriptions": Route("POST", FormReply(_transcription)),
        "/v1/audio/translations": Route("POST", FormReply(_translation)),
        "/v1/embeddings": Route("POST", EngineQuestion(_embeddings)),
        MODELS_PATH: Route("GET", Page(_models)),
        f"{MODELS_PATH}/{{model}}": Route("GET", Page(_model)),
    },
    ERRORS,
    REFERENCE,
    {
        "/chat/completions": "/v1/chat/completions",
        "/chat/completions/input_tokens": "/v1/chat/completions/input_tokens",
        "/audio/transcriptions": "/v1/audio/transcriptions",
    },
)
