"""An OpenAI-compatible HTTP server as the backend: posts requests to it, and looks up its models."""

from __future__ import annotations

import codecs
import functools
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import orjson

from umaserve.core.errors import RequestError
from umaserve.net.loop import Loop
from umaserve.wire.event_stream import end_of_events, is_event_stream
from umaserve.wire.fields import Fields, bad_request, parse_json, string
from umaserve.wire.forwarding import end_to_end, joined
from umaserve.wire.http_head import Headers, shown
from umaserve.wire.relay_codec import MAX_COUNT, MAX_MODELS, MAX_NAME_BYTES, accepted_models
from umaserve.wire.relay_messages import BYTES, FLOW, FORMS, Request, TokenCounts
from umaserve.worker.backend import Job, Reply, is_text
from umaserve.worker.dialer import CONNECT_S, Dialer, ServerUrl
from umaserve.worker.http_call import HttpCall
from umaserve.worker.places import Places

log = logging.getLogger(__name__)

MODELS_PATH = "/v1/models"
MAX_LISTING_BYTES = 1024 * 1024
MAX_COUNTED_BYTES = 256 * 1024
"""The token counts of a longer answer are not parsed."""
MAX_EVENT = 1024 * 1024
"""The longest event, in characters, that is held until it is complete; a longer one is passed on in parts."""
CONVERSATIONS = ("/generate", "/ws/chat")
"""The endpoints that are WebSockets."""
JSON = {"content-type": "application/json"}

_NOT_PASSED = frozenset(("host", "expect", "accept-encoding", "proxy-authorization"))
_KEYS = frozenset(("authorization", "x-api-key"))
# No empty or dot segments, escapes or queries, so that a relay's path can't lead elsewhere at the backend.
_PATH = re.compile(r"(?:/[A-Za-z0-9_~-][A-Za-z0-9._~:-]*)+/?")


@dataclass(slots=True)
class HttpSettings:
    """Times are in seconds. ``key`` replaces the clients' keys, and may be changed later. ``models`` replaces the list
    that the server gives."""

    url: str
    key: str
    models: tuple[str, ...]
    max_concurrent: int
    request_timeout: float
    max_response_bytes: int


class HttpBackend:
    """Implements ``backend.Backend``."""

    features = (FLOW, BYTES, FORMS)

    def __init__(self, loop: Loop, dialer: Dialer, settings: HttpSettings) -> None:
        self.models: Sequence[str] = settings.models
        self.contexts: Mapping[str, int] = {}
        self._loop = loop
        self._dialer = dialer
        self._settings = settings
        self._url = ServerUrl.parse(settings.url)
        self._places = Places(loop, settings.max_concurrent)
        self._asking: list[Callable[[], None]] = []
        """The callbacks that wait for the list of models that is being fetched."""
        self._trouble = ""
        """Why there is no list, as last logged."""

    @property
    def load(self) -> int:
        return self._places.load

    # -- requests ------------------------------------------------------------------------------------------------

    def start(self, request: Request, reply: Reply) -> Job | None:
        refusal = self._refusal(request)
        if refusal is not None:
            status, error = refusal
            reply.complete(status, JSON, _error(error))
            return None
        return self._places.take(functools.partial(self._post, request), reply)

    def _refusal(self, request: Request) -> tuple[int, str] | None:
        path = request.endpoint_path
        if path in CONVERSATIONS:
            return 404, f"endpoint_path: this worker has no WebSocket {path}"
        if not _PATH.fullmatch(path) or ".." in path:
            return 400, f"endpoint_path: expected a plain path without escapes and .., got {shown(path)}"
        if self._places.full:
            return 503, "too many requests wait for the backend"
        return None

    def _post(self, request: Request, reply: Reply) -> Job:
        exchange = _BackendRequest(reply, request.is_streaming, self._settings.max_response_bytes)
        timeout = self._settings.request_timeout
        headers = self._headers(request.headers or {})
        return exchange.begin(self._call("POST", request.endpoint_path, headers, request.body, exchange, timeout))

    def _headers(self, given: Mapping[str, str]) -> Headers:
        dropped = _NOT_PASSED | _KEYS if self._settings.key else _NOT_PASSED
        passed = [(name, value) for name, value in end_to_end(given.items()) if name.lower() not in dropped]
        if not any(name.lower() == "content-type" for name, _ in passed):
            passed.append(("Content-Type", "application/json"))
        return [*passed, *self._authorization()]

    def _authorization(self) -> Headers:
        return [("Authorization", f"Bearer {self._settings.key}")] if self._settings.key else []

    def _call(
        self, method: str, path: str, headers: Headers, body: str | bytes, answer: _BackendRequest, timeout: float
    ) -> HttpCall:
        return HttpCall(
            self._loop,
            self._dialer,
            self._url,
            method,
            path,
            [*headers, ("Accept-Encoding", "identity")],
            body.encode() if isinstance(body, str) else body,
            answer,
            timeout=timeout,
        )

    # -- models --------------------------------------------------------------------------------------------------

    def refresh(self, done: Callable[[], None]) -> None:
        if self._settings.models:
            done()
            return
        self._asking.append(done)
        if len(self._asking) == 1:
            exchange = _BackendRequest(_Listing(self._listed), False, MAX_LISTING_BYTES)
            exchange.begin(self._call("GET", MODELS_PATH, self._authorization(), "", exchange, CONNECT_S))

    def _listed(self, status: int, body: str) -> None:
        try:
            if status != 200:
                raise ValueError(f"status {status}: {shown(body)}")
            self._have(_models_of(body))
            self.contexts = _contexts_of(body)
        except (ValueError, RequestError) as error:
            # A server that times out is busy, and keeps its models; any other failure means that it serves none.
            if status != 504:
                self.models, self.contexts = (), {}
            self._note(str(error))
        asking, self._asking = self._asking, []
        for done in asking:
            done()

    def _have(self, models: Sequence[str]) -> None:
        if tuple(models) != tuple(self.models) or self._trouble:
            log.info("models of the backend", extra={"fields": {"url": self._url.text, "models": ",".join(models)}})
        self.models, self._trouble = models, ""

    def _note(self, trouble: str) -> None:
        if trouble != self._trouble:
            self._trouble = trouble
            fields = {"url": self._url.text, "models": ",".join(self.models)}
            log.warning("the backend doesn't list its models: %s", trouble, extra={"fields": fields})


class _BackendRequest:
    """One call and its reply: a ``backend.Job`` for the link, an ``http_call.Answer`` for the call."""

    def __init__(self, reply: Reply, is_streaming: bool, max_bytes: int) -> None:
        self._reply = reply
        self._is_streaming = is_streaming
        self._max_bytes = max_bytes
        self._call: HttpCall
        self._status = 0
        self._headers: dict[str, str] = {}
        self._text, self._in_parts, self._events, self._begun = True, False, False, False
        self._unfinished = ""
        """The incomplete event at the end of a stream so far."""
        self._collected = bytearray()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        """Holds an incomplete character until it is whole."""

    def begin(self, call: HttpCall) -> _BackendRequest:
        self._call = call
        return self

    # -- from the link -------------------------------------------------------------------------------------------

    def abort(self) -> None:
        self._call.abort()

    def pause(self, paused: bool) -> None:
        self._call.pause(paused)

    def frame(self, text: str) -> None:
        """Ignored: this backend has no WebSockets."""

    def leave(self) -> None:
        """Do nothing: it ends with its answer."""

    # -- from the call -------------------------------------------------------------------------------------------

    def head(self, status: int, headers: Headers) -> None:
        self._status = status
        # The relay would close the connection for a longer name.
        self._headers = joined(field for field in end_to_end(headers) if len(field[0]) <= MAX_NAME_BYTES)
        cookies = sum(name == "set-cookie" for name, _ in headers)
        if cookies > 1:
            log.info(
                "the backend set %d cookies: only the first is sent to the relay, whose protocol has room for one",
                cookies,
            )
        encoding = self._headers.get("content-encoding", "identity")
        if encoding.lower() != "identity":
            self._give_up(f"content-encoding: expected none, got {shown(encoding)}")
            return
        kind = self._headers.get("content-type", "").partition(";")[0].strip().lower()
        self._events = is_event_stream(self._headers)
        self._text = is_text(self._headers)
        # Bytes are larger as a message than they are, and as one message may be too large for a relay.
        streams = self._events or not self._text or (self._is_streaming and kind != "application/json")
        self._in_parts = 200 <= status < 300 and streams

    def body(self, data: bytes) -> None:
        if self._in_parts and not self._text:
            self._pass(data)
            return
        if self._in_parts:
            text = self._decoder.decode(data)
            self._pass(self._whole_events(text) if self._events else text)
            return
        if len(self._collected) + len(data) > self._max_bytes:
            self._give_up(f"response: expected at most {self._max_bytes} bytes, got more")
            return
        self._collected += data

    def end(self) -> None:
        if self._in_parts:
            self._pass(self._unfinished + self._decoder.decode(b"", True))
            self._reply.complete(self._status, self._headers, "")
            return
        if not self._text:
            self._reply.complete(self._status, self._headers, bytes(self._collected))
            return
        body = self._collected.decode(errors="replace")
        self._reply.complete(self._status, self._headers, body, token_counts(body))

    def failed(self, reason: str, *, timed_out: bool) -> None:
        if self._begun:
            # After chunks the reply has no body for the reason.
            log.warning("the backend's answer ended early: %s", reason)
            self._reply.complete(502, {}, "")
        else:
            self._reply.complete(504 if timed_out else 502, JSON, _error(f"backend: {reason}"))

    def _whole_events(self, text: str) -> str:
        """The whole events so far. An incomplete one is held: a client can't tell it from a malformed one."""
        text = self._unfinished + text
        end = len(text) if len(text) > MAX_EVENT else end_of_events(text)
        self._unfinished = text[end:]
        return text[:end]

    def _pass(self, data: str | bytes) -> None:
        if data:
            self._begun = True
            self._reply.chunk(data, self._status, self._headers)

    def _give_up(self, reason: str) -> None:
        self._call.abort()
        self.failed(reason, timed_out=False)


class _Listing:
    """The reply to our own request for the models."""

    def __init__(self, done: Callable[[int, str], None]) -> None:
        self._done = done

    def chunk(self, data: str | bytes, status: int, headers: Mapping[str, str]) -> None:
        """Ignored: a stream of events is not a list, and its end, without a body, is then not valid JSON."""

    def complete(
        self, status: int, headers: Mapping[str, str], body: str | bytes, token_counts: TokenCounts | None = None
    ) -> None:
        self._done(status, body if isinstance(body, str) else "")


def _models_of(body: str) -> Sequence[str]:
    """The ids in OpenAI's list of models. Raises ``RequestError``."""
    names = [string(item.values.get("id"), "id") for item in _listed_in(body)]
    return accepted_models(names, MAX_MODELS)[0]


def _contexts_of(body: str) -> Mapping[str, int]:
    """Tokens of the context by the models' ids, where their list has them, by the names of OpenRouter, vLLM and
    llama.cpp's server. A server's own words for it are no reason to refuse its list."""
    contexts: dict[str, int] = {}
    for item in _listed_in(body)[:MAX_MODELS]:
        meta = item.values.get("meta")
        told = [item.values.get("context_length"), item.values.get("max_model_len")]
        told += [meta.get("n_ctx")] if isinstance(meta, dict) else []
        known = [tokens for tokens in told if type(tokens) is int and 1 <= tokens <= MAX_COUNT]
        if known:
            contexts[str(item.values["id"]).strip()] = known[0]
    return contexts


def _listed_in(body: str) -> Sequence[Fields]:
    values = Fields.of(parse_json(body.encode()), "models").values
    data = values.get("data")
    if data is None and "data" in values:
        return ()  # Ollama sends null for an empty list.
    if not isinstance(data, list):
        raise bad_request("data", "an array", data)
    return [Fields.of(item, f"data[{index}]") for index, item in enumerate(data)]


def token_counts(body: str) -> TokenCounts | None:
    """OpenAI's ``usage`` in a JSON answer; ``None`` if there is none, or the answer is long."""
    if len(body) > MAX_COUNTED_BYTES or '"usage"' not in body:
        return None
    try:
        usage = Fields.of(parse_json(body.encode()), "body").object("usage")
        if usage is None:
            return None
        names = ("prompt_tokens", "completion_tokens", "total_tokens")
        return TokenCounts(*(usage.integer(name, 0, MAX_COUNT) for name in names))
    except RequestError:
        return None  # The answer is passed on unchanged all the same.


def _error(message: str) -> str:
    return orjson.dumps({"error": message}).decode()
