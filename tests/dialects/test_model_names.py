"""Requests that name a model: it travels with them, and what comes back is of that model."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from routes import MODEL_INFO, facts, listed, routes

from umaserve.core.errors import Fault, ModelAwaited, RequestError
from umaserve.core.events import Finished, FinishReason, ModelInfo, ModelState, Prefilled, Started, Token, Usage
from umaserve.core.queries import Counted, Detokenized, Embedded, Prompted, Tokenized
from umaserve.core.requests import Generate
from umaserve.dialects.facts import Facts
from umaserve.dialects.http import Body
from umaserve.dialects.listing import find_model
from umaserve.dialects.parameters import RequestLimits
from umaserve.dialects.routes import EngineQuestion, FormReply, TextReply
from umaserve.dialects.uds.conversation import JsonDialect
from umaserve.dialects.wyoming.requests import Listening, listening

LARGE = replace(MODEL_INFO, name="large-2", embedding_length=4, context_tokens=9)
KNOWN = {"": MODEL_INFO, "small-1": MODEL_INFO, "large-2": LARGE, "unread": None}
MODELS = [
    listed(MODEL_INFO, aliases=("small", "large")),
    listed(LARGE, aliases=("big",), default=False),
    listed(MODEL_INFO, name="unread", default=False, state=ModelState.UNLOADED, info=None),
]


def known(name: str) -> ModelInfo | None:
    """An unknown name means the default model."""
    return KNOWN.get(name, MODEL_INFO)


FACTS = replace(facts(), limits=RequestLimits(2000), model=known, models=lambda: MODELS, new_id=lambda prefix: prefix)
USER = [{"role": "user", "content": "Hi"}]
PROMPT = {"prompt": "Hi"}
TEXTS: dict[str, Any] = {
    "/v1/generate": PROMPT,
    "/v1/chat/completions": {"messages": USER},
    "/v1/completions": PROMPT,
    "/v1/responses": {"input": "Hi"},
    "/v1/responses/compact": {"input": "Hi"},
    "/v1/messages": {"messages": USER, "max_tokens": 5},
    "/completion": PROMPT,
    "/infill": {"input_prefix": "a", "input_suffix": "b"},
    "/api/chat": {"messages": USER, "stream": False},
    "/api/generate": {**PROMPT, "stream": False},
}
OUTPUTS = (
    Started(),
    Prefilled(3),
    Token("Hi", 1, answer="Hi"),
    Finished(FinishReason.STOP, Usage(3, 1)),
)
QUESTIONS: dict[str, tuple[dict[str, Any], Any]] = {
    "/v1/chat/completions/input_tokens": ({"messages": USER}, Counted(3)),
    "/v1/responses/input_tokens": ({"input": "Hi"}, Counted(3)),
    "/v1/messages/count_tokens": ({"messages": USER}, Counted(3)),
    "/v1/embeddings": ({"input": "Hi"}, Embedded([[1.0]], 1)),
    "/embedding": ({"content": "Hi"}, Embedded([[1.0]], 1)),
    "/rerank": ({"query": "q", "documents": ["a"]}, Embedded([[1.0]], 1)),
    "/tokenize": ({"content": "Hi"}, Tokenized([1], [b"Hi"])),
    "/detokenize": ({"tokens": [1]}, Detokenized("Hi")),
    "/apply-template": ({"messages": USER}, Prompted("Hi")),
    "/api/embed": ({"input": "Hi"}, Embedded([[1.0]], 1)),
    "/api/embeddings": ({"prompt": "Hi"}, Embedded([[1.0]], 1)),
}
NAMING = ("/v1/embeddings", "/rerank", "/api/embed")
"""The questions whose answers name the model."""
AWAITING = (*NAMING, "/api/embeddings")


def encoded(body: dict[str, Any], name: str | None) -> bytes:
    return json.dumps(body if name is None else {**body, "model": name}).encode()


def new_body(path: str, about: Facts = FACTS) -> Body:
    endpoint = routes()[path].endpoint
    assert isinstance(endpoint, TextReply)
    return endpoint.new_body(about)


def parse(path: str) -> Callable[[bytes, Facts], Any]:
    endpoint = routes()[path].endpoint
    assert isinstance(endpoint, EngineQuestion)
    return endpoint.parse


def answered(body: Body) -> Any:
    for output in OUTPUTS:
        body.send(0, output)
    return json.loads(body.result())


def test_every_route_to_the_engine_is_here() -> None:
    found = {path: type(route.endpoint) for path, route in routes().items()}
    assert {path for path, kind in found.items() if kind is EngineQuestion} == QUESTIONS.keys()
    assert {path for path, kind in found.items() if issubclass(kind, TextReply)} == TEXTS.keys()


@pytest.mark.parametrize("path", TEXTS)
def test_a_request_takes_the_models_name_along_and_its_reply_names_that_model(path: str) -> None:
    for asked, name in (("large-2", "large-2"), ("small-1", "small-1")):
        body = new_body(path)
        (request,) = body.receive(encoded(TEXTS[path], asked))
        assert request.model == asked
        assert answered(body)["model"].removesuffix(":latest") == name


@pytest.mark.parametrize("path", [path for path in TEXTS if not path.startswith("/api/")])
def test_one_without_a_name_gets_the_default_model(path: str) -> None:
    body = new_body(path)
    (request,) = body.receive(encoded(TEXTS[path], None))
    assert request.model == ""
    assert answered(body)["model"] == "small-1"


@pytest.mark.parametrize("path", [path for path in TEXTS if path != "/v1/generate"])
def test_the_reply_to_an_unknown_name_names_the_model_that_answered(path: str) -> None:
    body = new_body(path)
    (request,) = body.receive(encoded(TEXTS[path], "gpt-9"))
    assert request.model == "gpt-9"
    assert answered(body)["model"].removesuffix(":latest") == "small-1"


@pytest.mark.parametrize("path", [path for path in TEXTS if path != "/infill"])
def test_a_name_is_text(path: str) -> None:
    with pytest.raises(RequestError, match=r"^model: expected a .*string of at most 256 bytes, got a whole number"):
        new_body(path).receive(json.dumps({**TEXTS[path], "model": 5}).encode())


def test_calls_are_read_in_the_form_of_the_chosen_model() -> None:
    asked: list[str] = []

    def model(name: str) -> ModelInfo | None:
        asked.append(name)
        return known(name)

    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    tools: dict[str, list[Any]] = {
        "/v1/chat/completions": [tool],
        "/api/chat": [tool],
        "/v1/responses": [{"type": "function", "name": "f"}],
        "/v1/messages": [{"name": "f", "input_schema": {"type": "object"}}],
    }
    for path, offered in tools.items():
        asked.clear()
        body = new_body(path, replace(FACTS, model=model))
        body.receive(encoded({**TEXTS[path], "tools": offered}, "large-2"))
        answered(body)
        assert set(asked) == {"large-2"}, path


@pytest.mark.parametrize("path", QUESTIONS)
def test_a_question_says_which_model_it_is_for(path: str) -> None:
    body, answer = QUESTIONS[path]
    asked = parse(path)(encoded(body, "large-2"), FACTS)
    assert asked.model == "large-2"
    if path in NAMING:
        assert json.loads(asked.render(answer))["model"].removesuffix(":latest") == "large-2"
    if not path.startswith("/api/"):
        assert parse(path)(encoded(body, None), FACTS).model == ""


@pytest.mark.parametrize("path", QUESTIONS)
def test_one_that_needs_to_know_the_model_waits_for_it(path: str) -> None:
    content = encoded(QUESTIONS[path][0], "unread")
    if path not in AWAITING:
        assert parse(path)(content, FACTS).model == "unread"
        return
    with pytest.raises(ModelAwaited) as raised:
        parse(path)(content, FACTS)
    assert raised.value.model == "unread"


@pytest.mark.parametrize("path", ["/v1/embeddings", "/tokenize", "/detokenize", "/embedding", "/rerank"])
def test_a_questions_name_is_text(path: str) -> None:
    with pytest.raises(RequestError, match=r"^model: expected a string of at most 256 bytes, got a whole number"):
        parse(path)(json.dumps({**QUESTIONS[path][0], "model": 5}).encode(), FACTS)


def test_the_limits_are_those_of_the_chosen_model() -> None:
    shorter = parse("/v1/embeddings")
    assert shorter(encoded({"input": "Hi", "dimensions": 5}, "small-1"), FACTS).model == "small-1"
    with pytest.raises(RequestError, match="dimensions: expected a whole number from 1 to 4, got 5"):
        shorter(encoded({"input": "Hi", "dimensions": 5}, "large-2"), FACTS)
    with pytest.raises(RequestError, match=r"context: expected fewer than 9 tokens"):
        new_body("/api/generate").receive(encoded({"prompt": "Hi", "context": [1] * 9}, "large-2"))


def test_loading_a_model_waits_for_the_one_that_is_named() -> None:
    body = new_body("/api/generate")
    assert body.receive(b'{"model": "large-2"}') == ()
    assert json.loads(body.result())["model"] == "large-2:latest"
    with pytest.raises(ModelAwaited) as raised:
        new_body("/api/chat").receive(b'{"model": "unread", "messages": []}')
    assert raised.value.model == "unread"


def test_a_model_that_is_awaited_can_be_told_to_several() -> None:
    error = ModelAwaited("unread")
    told = error.copy()
    assert isinstance(told, ModelAwaited)
    assert (told.model, told.fault, told.message) == ("unread", Fault.MODEL_NOT_LOADED, error.message)
    assert told.retry_after_s == error.retry_after_s == 1.0


def form(fields: Sequence[tuple[str, bytes]]) -> bytes:
    parts = [
        b'--b\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n' % (name.encode(), v) for name, v in fields
    ]
    return b"".join(parts) + b"--b--\r\n"


@pytest.mark.parametrize("path", ["/v1/audio/transcriptions", "/v1/audio/translations"])
def test_a_form_names_the_model_too(path: str) -> None:
    endpoint = routes()[path].endpoint
    assert isinstance(endpoint, FormReply)
    sound = ("file", b"RIFF")
    for fields, name in (([("model", b"large-2"), sound], "large-2"), ([sound], "")):
        (request,) = endpoint.new_body(FACTS, "multipart/form-data; boundary=b").receive(form(fields))
        assert request.model == name


def test_conversations_name_the_model() -> None:
    command = JsonDialect(RequestLimits(64), keep_alive=False).receive(
        b'{"id": "1", "prompt": "Hi", "model": "large-2"}'
    )
    assert isinstance(command, Generate)
    assert command.model == "large-2"
    chat = routes()["/ws/chat"].endpoint.new_dialect(FACTS, None)  # type: ignore[union-attr]
    image = {"type": "image", "data": base64.b64encode(b"x").decode()}
    command = chat.receive(json.dumps({"messages": [{"role": "user", "content": [image]}], "model": "big"}).encode())
    assert isinstance(command, Generate)
    assert command.model == "big"
    generate = routes()["/generate"].endpoint.new_dialect(FACTS, None)  # type: ignore[union-attr]
    generate.receive(b'{"type": "config", "prompt": "Hi", "model": "large-2"}')
    reply = generate.send(Started())
    assert json.loads(reply.payload)["model"] == "large-2"


def test_wyomings_clients_may_name_it() -> None:
    assert listening({"name": "large-2", "language": "de"}) == Listening("large-2", "de")
    assert listening({}) == Listening()


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("default", "small-1"),
        ("large-2", "large-2"),
        ("large-2:latest", "large-2"),
        ("large-2.gguf", "large-2"),
        ("big", "large-2"),
        ("big:latest", "large-2"),
        ("unread", "unread"),
        ("", None),
        ("large-2:q4", None),
        ("LARGE-2", None),
    ],
)
def test_by_what_names_a_model_is_found(name: str, found: str | None) -> None:
    model = find_model(MODELS, name)
    assert (None if model is None else model.name) == found


def test_the_default_model_is_not_found_where_it_is_not_listed() -> None:
    assert find_model(MODELS[1:], "default") is None
    assert find_model([], "default") is None
