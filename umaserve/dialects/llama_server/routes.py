"""The paths of llama-server."""

from __future__ import annotations

from collections.abc import Callable

from umaserve.core.errors import Fault, RequestError
from umaserve.core.events import ModelInfo
from umaserve.dialects.facts import Facts
from umaserve.dialects.http import JSON
from umaserve.dialects.llama_server import streams
from umaserve.dialects.llama_server.absent import ABSENT
from umaserve.dialects.llama_server.adapters import lora_adapters, read_scales
from umaserve.dialects.llama_server.completions import NativeBody
from umaserve.dialects.llama_server.control import control
from umaserve.dialects.llama_server.embeddings import embedding_result, parse_embedding
from umaserve.dialects.llama_server.errors import ERRORS
from umaserve.dialects.llama_server.models import (
    SUCCESS,
    listing,
    model_to_delete,
    model_to_download,
    model_to_move,
)
from umaserve.dialects.llama_server.props import props
from umaserve.dialects.llama_server.reference import REFERENCE
from umaserve.dialects.llama_server.requests import infill_request
from umaserve.dialects.llama_server.rerank import parse_rerank, rerank_result
from umaserve.dialects.llama_server.schemas import DetokenizeRequest, NativeEmbeddingRequest, TokenizeRequest
from umaserve.dialects.llama_server.slots import slot_action, slots
from umaserve.dialects.llama_server.template import apply_template_result, parse_apply_template
from umaserve.dialects.llama_server.tokens import detokenize_result, parse_detokenize, parse_tokenize, tokenize_result
from umaserve.dialects.parameters import json_body, model_name
from umaserve.dialects.routes import (
    Asked,
    EngineQuestion,
    HttpDialect,
    KeptEvents,
    LaterPage,
    OperatorsPage,
    Page,
    Route,
    TextReply,
    WatchModels,
    ask,
)
from umaserve.wire.fields import Fields
from umaserve.wire.http_head import Request


def _tokenize(body: bytes, facts: Facts) -> Asked:
    given = TokenizeRequest.view(json_body(body))
    query, with_pieces = parse_tokenize(given, facts.limits)
    return ask(query, lambda answer: tokenize_result(answer, with_pieces=with_pieces), given.model or "")


def _detokenize(body: bytes, facts: Facts) -> Asked:
    given = DetokenizeRequest.view(json_body(body))
    return ask(parse_detokenize(given, facts.limits), detokenize_result, given.model or "")


def _embedding(body: bytes, facts: Facts) -> Asked:
    given = NativeEmbeddingRequest.view(json_body(body))

    query, norm = parse_embedding(given, facts.limits)
    return ask(query, lambda answer: embedding_result(answer, norm), given.model or "")


def _rerank(body: bytes, facts: Facts) -> Asked:
    asked = parse_rerank(json_body(body), facts.limits)
    name = facts.loaded(asked.model).name
    return ask(asked.query, lambda answer: rerank_result(answer, asked, name), asked.model)


def _slots(info: ModelInfo, facts: Facts, request: Request) -> bytes:
    running = [answer for answer in facts.running() if answer.model == info.name]
    return slots(info, running, wants_idle=bool(request.query.get("fail_on_no_slot")))


def _slot_action(facts: Facts, request: Request, answered: Callable[[bytes | RequestError], None]) -> None:
    slot_action(_model_of(facts, request), facts, request, answered)


def _set_adapters(info: ModelInfo, facts: Facts, request: Request) -> bytes:
    facts.set_adapters(info.name, read_scales(request.body, info))
    return SUCCESS


def _set_props(_facts: Facts, _request: Request) -> tuple[int, str, bytes]:
    problem = "no property can be changed: say with each request what it needs"
    raise RequestError(Fault.NOT_SUPPORTED, "props", problem)


def _list(facts: Facts, request: Request) -> tuple[int, str, bytes]:
    return 200, JSON, listing(facts, request)


def _download(facts: Facts, request: Request) -> tuple[int, str, bytes]:
    facts.download(model_to_download(request.body))
    return 200, JSON, SUCCESS


def _delete(facts: Facts, request: Request, answered: Callable[[bytes | RequestError], None]) -> None:
    facts.delete(model_to_delete(request), lambda error: answered(SUCCESS if error is None else error))


def _load(facts: Facts, request: Request) -> tuple[int, str, bytes]:
    facts.load(model_to_move(request.body))
    return 200, JSON, SUCCESS


def _unload(facts: Facts, request: Request) -> tuple[int, str, bytes]:
    facts.unload(model_to_move(request.body))
    return 200, JSON, SUCCESS


def _control(facts: Facts, request: Request) -> tuple[int, str, bytes]:
    return 200, JSON, control(request.body, facts)


def _stop_stream(facts: Facts, request: Request) -> tuple[int, str, bytes]:
    streams.stop(facts, request)
    return 204, JSON, b""


def _find_streams(facts: Facts, request: Request) -> tuple[int, str, bytes]:
    return 200, JSON, streams.found(request.body, facts)


def _apply_template(body: bytes, facts: Facts) -> Asked:
    query = parse_apply_template(body, facts.limits)
    return ask(query, apply_template_result, query.request.model)


def _page_of_model(make: Callable[[ModelInfo, Facts, Request], bytes]) -> Page:
    """A JSON page about the model that the query's ``model`` means, the default one without it; an error until that has
    been loaded."""

    def page(facts: Facts, request: Request) -> tuple[int, str, bytes]:
        return 200, JSON, make(_model_of(facts, request), facts, request)

    return Page(page)


def _model_of(facts: Facts, request: Request) -> ModelInfo:
    name = model_name(Fields(request.query))
    info = facts.model(name)
    if info is None and name:
        # Nobody may be loading it.
        problem = "it has not been loaded yet: a request that names it loads it"
        raise RequestError(Fault.MODEL_NOT_LOADED, "model", problem, retry_after_s=1.0)
    return facts.loaded() if info is None else info


def _operators_page_of_model(make: Callable[[ModelInfo, Facts, Request], bytes]) -> OperatorsPage:
    return OperatorsPage(_page_of_model(make).make)


DIALECT = HttpDialect(
    "llama-server",
    {
        "/completion": Route("POST", TextReply(NativeBody)),
        "/infill": Route("POST", TextReply(lambda facts: NativeBody(facts, infill_request))),
        "/tokenize": Route("POST", EngineQuestion(_tokenize)),
        "/detokenize": Route("POST", EngineQuestion(_detokenize)),
        "/apply-template": Route("POST", EngineQuestion(_apply_template)),
        "/embedding": Route("POST", EngineQuestion(_embedding)),
        "/rerank": Route("POST", EngineQuestion(_rerank)),
        "/v1/chat/completions/control": Route("POST", Page(_control)),
        "/v1/stream": Route("GET", KeptEvents(streams.place), also=Route("DELETE", Page(_stop_stream))),
        "/v1/streams/lookup": Route("POST", Page(_find_streams)),
        "/models": Route(
            "GET",
            Page(_list),
            also=Route(
                "POST",
                OperatorsPage(_download),
                operators=True,
                also=Route("DELETE", LaterPage(_delete), operators=True),
            ),
        ),
        "/models/load": Route("POST", OperatorsPage(_load), operators=True),
        "/models/unload": Route("POST", OperatorsPage(_unload), operators=True),
        "/models/sse": Route("GET", WatchModels(), operators=True),
        "/slots": Route("GET", _page_of_model(_slots), operators=True),
        "/slots/{id}": Route("POST", LaterPage(_slot_action), operators=True),
        "/lora-adapters": Route(
            "GET",
            _page_of_model(lambda info, facts, _request: lora_adapters(info, facts.adapters(info.name))),
            also=Route("POST", _operators_page_of_model(_set_adapters), operators=True),
        ),
        "/props": Route(
            "GET",
            _page_of_model(lambda info, *_about: props(info)),
            also=Route("POST", OperatorsPage(_set_props), operators=True),
        ),
    },
    ERRORS,
    REFERENCE,
    {
        "/completions": "/completion",
        "/embeddings": "/embedding",
        "/chat/completions/control": "/v1/chat/completions/control",
        "/v1/rerank": "/rerank",
        "/v2/rerank": "/rerank",
        "/reranking": "/rerank",
        "/v1/reranking": "/rerank",
    },
    absent=ABSENT,
)
