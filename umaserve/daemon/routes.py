"""The route table: which path is answered how."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import resources

from umaserve.daemon.exchange import Body
from umaserve.daemon.resuming import ResumableConnection
from umaserve.daemon.services import Services
from umaserve.daemon.websocket import Authenticate, WebSocketConnection
from umaserve.dialects.chat.conversation import ChatDialect
from umaserve.dialects.dialect import Dialect
from umaserve.dialects.generate.conversation import GenerateBody, GenerateDialect
from umaserve.dialects.openai import models as openai_models
from umaserve.dialects.openai import queries as openai_queries
from umaserve.dialects.openai.completions import ChatBody, CompletionBody
from umaserve.dialects.parameters import RequestLimits
from umaserve.errors import Fault, RequestError
from umaserve.messages import Answer, Detokenized, Embedded, ModelInfo, Query, Tokenized
from umaserve.metrics import PROMETHEUS
from umaserve.settings.daemon import Config
from umaserve.wire.http_head import Request

JSON = "application/json"
MODEL_PATH = "/v1/models/"

_OPENAPI = resources.files("umaserve.daemon").joinpath("openapi.json").read_bytes()


@dataclass(frozen=True, slots=True)
class Page:
    """Answered at once, with status, content type and body; may raise ``RequestError``."""

    make: Callable[[Services, Request], tuple[int, str, bytes]]


@dataclass(frozen=True, slots=True)
class Question:
    """A query to the engine, and its answer rendered."""

    parse: Callable[[bytes, Services], tuple[Query, Callable[[Answer], bytes]]]


@dataclass(frozen=True, slots=True)
class Stream:
    """Text, in one piece or as a stream of events. ``media``: its bodies may be as large as messages of /ws/chat."""

    new_body: Callable[[Services], Body]
    media: bool = False


@dataclass(frozen=True, slots=True)
class Sound:
    """A text read aloud."""


@dataclass(frozen=True, slots=True)
class Socket:
    """A conversation over a WebSocket. The dialect gets a judge of keys where the client has shown none yet.

    ``max_bytes`` is the largest message that is taken of a client who has shown one, or needs none.
    """

    new_dialect: Callable[[Services, Authenticate | None], Dialect]
    connection: type[WebSocketConnection]
    max_bytes: Callable[[Config], int]


@dataclass(frozen=True, slots=True)
class Echo:
    """A WebSocket that sends everything back."""


@dataclass(frozen=True, slots=True)
class Route:
    """What answers a path. ``dialect`` is its label in metrics and the log; ``public``: no key is needed."""

    method: str
    endpoint: Page | Question | Stream | Sound | Socket | Echo
    dialect: str = "http"
    public: bool = False

    @property
    def methods(self) -> tuple[str, ...]:
        """Those that it answers, besides OPTIONS."""
        return ("GET", "HEAD") if self.method == "GET" else (self.method,)


def find(path: str, config: Config) -> Route | None:
    """The route of a path; ``None`` where there is none."""
    if path == ECHO_PATH and not config.debug_echo:
        return None
    if path.startswith(MODEL_PATH):
        path = MODEL_PATH
    return ROUTES.get(path)


def max_body_bytes(route: Route | None, config: Config) -> int:
    """The largest body, or message of a conversation, that a route takes."""
    match None if route is None else route.endpoint:
        case Socket() as socket:
            return socket.max_bytes(config)
        case Stream(media=True):
            return config.max_chat_bytes
    return config.max_frame_bytes


# -- pages -------------------------------------------------------------------------------------------------------


def _health(services: Services, _request: Request) -> tuple[int, str, bytes]:
    if services.model() is None:
        return 503, JSON, b'{"status":"loading","error":{"message":"model: it is being loaded","code":503}}'
    return 200, JSON, b'{"status":"ok"}'


def _metrics(services: Services, _request: Request) -> tuple[int, str, bytes]:
    return 200, PROMETHEUS, services.prometheus()


def _ref_audio(services: Services, _request: Request) -> tuple[int, str, bytes]:
    if services.ref_audio is None:
        raise RequestError(Fault.NOT_FOUND, "ref_audio: this daemon has none; its flag --ref-audio names one")
    return 200, JSON, services.ref_audio.reply()


def _of_the_model(make: Callable[[ModelInfo, Services], bytes]) -> Page:
    return Page(lambda services, _request: (200, JSON, make(services.loaded()[0], services)))


def _model(services: Services, request: Request) -> tuple[int, str, bytes]:
    info, _questions = services.loaded()
    name = request.path.removeprefix(MODEL_PATH)
    if info.name != name:
        raise RequestError(Fault.NOT_FOUND, f"model: there is no {name[:64]} here")
    return 200, JSON, openai_models.model(info, services.started_at)


# -- questions ---------------------------------------------------------------------------------------------------


def _tokenize(body: bytes, services: Services) -> tuple[Query, Callable[[Answer], bytes]]:
    query, with_pieces = openai_queries.parse_tokenize(body, _limits(services))

    def render(answer: Answer) -> bytes:
        assert isinstance(answer, Tokenized)
        return openai_queries.tokenize_result(answer, with_pieces=with_pieces)

    return query, render


def _detokenize(body: bytes, services: Services) -> tuple[Query, Callable[[Answer], bytes]]:
    def render(answer: Answer) -> bytes:
        assert isinstance(answer, Detokenized)
        return openai_queries.detokenize_result(answer)

    return openai_queries.parse_detokenize(body, _limits(services)), render


def _embeddings(body: bytes, services: Services) -> tuple[Query, Callable[[Answer], bytes]]:
    request = openai_queries.parse_embeddings(body, _limits(services))
    info = services.model()

    def render(answer: Answer) -> bytes:
        assert isinstance(answer, Embedded)
        return openai_queries.embeddings_result(answer, "" if info is None else info.name, as_base64=request.as_base64)

    return request.query, render


# -- streams and conversations -----------------------------------------------------------------------------------


def _limits(services: Services) -> RequestLimits:
    return RequestLimits(services.config.max_prompt_bytes, services.config.max_tokens)


def _new_id(prefix: str) -> str:
    # Whoever knows the id of a lost generation may resume it: it must not be guessed.
    return prefix + secrets.token_hex(12)


def _chat(services: Services) -> Body:
    new_id = _new_id("chatcmpl-")
    return ChatBody(_limits(services), services.speech.voice, services.model, new_id, int(time.time()))


def _completion(services: Services) -> Body:
    return CompletionBody(_limits(services), services.model, _new_id("cmpl-"), int(time.time()))


def _generate(services: Services) -> Body:
    return GenerateBody(_limits(services), services.model, _new_id("gen_"))


def _chat_mode(services: Services, authenticate: Authenticate | None) -> Dialect:
    voice, reference = services.speech.voice, services.ref_audio
    if voice is not None and reference is not None:
        voice = replace(voice, reference=reference.audio, reference_path=reference.path)
    return ChatDialect(
        _limits(services), voice, lambda: _new_id("chat_"), authenticate, recorded=bool(services.config.recordings)
    )


def _conversation(services: Services, authenticate: Authenticate | None) -> Dialect:
    return GenerateDialect(
        _limits(services),
        services.model,
        lambda: _new_id("gen_"),
        resumable=services.detached.enabled,
        authenticate=authenticate,
    )


ECHO_PATH = "/debug/echo"
_HEALTH = Route("GET", Page(_health), public=True)
ROUTES = {
    "/health": _HEALTH,
    "/v1/health": _HEALTH,
    "/metrics": Route("GET", Page(_metrics)),
    "/openapi.json": Route("GET", Page(lambda _services, _request: (200, JSON, _OPENAPI))),
    "/props": Route("GET", _of_the_model(lambda info, services: openai_models.props(info, services.config.parallel))),
    "/v1/models": Route(
        "GET", _of_the_model(lambda info, services: openai_models.models(info, services.started_at)), "openai"
    ),
    MODEL_PATH: Route("GET", Page(_model), "openai"),
    "/v1/chat/completions": Route("POST", Stream(_chat, media=True), "openai"),
    "/v1/completions": Route("POST", Stream(_completion), "openai"),
    "/v1/audio/speech": Route("POST", Sound(), "openai"),
    "/v1/embeddings": Route("POST", Question(_embeddings), "openai"),
    "/v1/generate": Route("POST", Stream(_generate), "rest"),
    "/api/default_ref_audio": Route("GET", Page(_ref_audio)),
    "/tokenize": Route("POST", Question(_tokenize)),
    "/detokenize": Route("POST", Question(_detokenize)),
    "/generate": Route(
        "GET", Socket(_conversation, ResumableConnection, lambda config: config.max_frame_bytes), "generate"
    ),
    "/ws/chat": Route("GET", Socket(_chat_mode, WebSocketConnection, lambda config: config.max_chat_bytes), "chat"),
    ECHO_PATH: Route("GET", Echo()),
}
