"""``POST /v1/generate``: a generation over plain HTTP."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import orjson

from umaserve.core.errors import Fault, RequestError
from umaserve.core.events import (
    FeedbackKept,
    Finished,
    ListedModel,
    Metrics,
    ModelInfo,
    Output,
    PromptScores,
    Spoken,
    Steered,
)
from umaserve.core.requests import Generate
from umaserve.dialects import sse
from umaserve.dialects.generate.generation import Generation, error_message
from umaserve.dialects.generate.request import read_body
from umaserve.dialects.http import HTTP_STATUS, JSON, ErrorReply, ErrorShape, cap_headers, error_headers
from umaserve.dialects.parameters import RequestLimits
from umaserve.wire.fields import MAX_VALUES, Fields, bad_request, parse_json

_HTTP_FAULTS = {408: Fault.TIMED_OUT, 500: Fault.DECODE_FAILED}
"""HTTP statuses that don't mean a bad request."""


class GenerateBody:
    """One ``POST /v1/generate``: a stream has the same messages as the WebSocket, else the answer is one JSON
    object."""

    stream_type = sse.CONTENT_TYPE
    whole_type = JSON
    frame = staticmethod(sse.event)
    ping = staticmethod(sse.ping)
    end = None
    """A stream ends with its completion or error; nothing follows."""

    def __init__(
        self,
        limits: RequestLimits,
        model: Callable[[str], ModelInfo | None],
        models: Callable[[], Sequence[ListedModel]],
        new_id: str,
    ) -> None:
        self.headers = cap_headers(limits)
        self._limits = limits
        self._model = model
        self._models = models
        self._new_id = new_id
        self._generation: Generation | None = None
        self._finished: Finished | None = None

    @property
    def streaming(self) -> bool:
        """Whether the answer is a stream of messages; valid after ``receive``."""
        return self._generation is not None and self._generation.options.stream

    @property
    def done(self) -> bool:
        return self._finished is not None

    def receive(self, body: bytes) -> list[Generate]:
        """The one request in ``body``; raises ``RequestError``."""
        values = parse_json(body, MAX_VALUES)
        if not isinstance(values, dict):
            raise bad_request("payload", "an object", values)
        request, options = read_body(Fields(values), self._limits, self._models(), self._new_id)
        self._generation = Generation(request, options, self._model, keep_tokens=False)
        return [request]

    def send(self, _index: int, output: Output) -> list[bytes]:
        """The messages for ``output``; none unless streaming."""
        if self._generation is None:
            raise RuntimeError("output without a request")
        match output:
            case Steered() | FeedbackKept() | Metrics() | Spoken() | PromptScores():
                raise RuntimeError("output that a REST request never asks for")
            case Finished():
                self._finished = output
        messages = self._generation.send(output)
        return list(messages) if self.streaming else []

    def fail(self, _index: int, error: RequestError) -> list[bytes]:
        """The error message, with the text generated so far."""
        if self._generation is None:
            return [error_message(error, error.request_id)]
        return [self._generation.fail(error)]

    def error(self, error: RequestError) -> ErrorReply:
        return _error_reply(error, self.fail(0, error)[0])

    def result(self) -> bytes:
        """The whole answer, after ``Finished``."""
        if self._generation is None or self._finished is None:
            raise RuntimeError("result of a request that hasn't finished")
        generation = self._generation
        named = {"id": generation.request.id, "model": generation.model().name}
        return orjson.dumps({**named, **generation.outcome(self._finished)})


def _error_reply(error: RequestError, message: bytes) -> ErrorReply:
    status = HTTP_STATUS[error.fault]
    return ErrorReply(status, message, error_headers(error, status))


def _http_error(status: int, message: str) -> bytes:
    return error_message(RequestError.of_text(_HTTP_FAULTS.get(status, Fault.BAD_REQUEST), message), None)


ERRORS = ErrorShape(lambda error: _error_reply(error, error_message(error, error.request_id)), _http_error)
