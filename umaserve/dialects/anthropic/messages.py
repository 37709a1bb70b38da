"""Anthropic's ``POST /v1/messages``: a body in, one message or a stream of events out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import orjson

from umaserve.chat_format.tool_calls import ToolCallParser, parser_for, short_ids
from umaserve.core.errors import RequestError
from umaserve.core.events import Finished, FinishReason, ModelInfo, Output, Prefilled, Token, Usage
from umaserve.core.requests import Generate
from umaserve.dialects import sse
from umaserve.dialects.anthropic.blocks import Blocks, Event
from umaserve.dialects.anthropic.errors import error_body
from umaserve.dialects.anthropic.requests import message_request
from umaserve.dialects.http import JSON, ErrorReply, cap_headers
from umaserve.dialects.parameters import RequestLimits

_STOP_REASONS = {
    FinishReason.STOP: "end_turn",
    FinishReason.LENGTH: "max_tokens",
    FinishReason.CANCELLED: "end_turn",
    FinishReason.CONTENT_FILTER: "refusal",
}


class MessageBody:
    """One ``POST /v1/messages``."""

    stream_type = sse.CONTENT_TYPE
    whole_type = JSON
    end = None
    """A stream ends with ``message_stop`` or an error; nothing follows."""

    def __init__(self, limits: RequestLimits, model: Callable[[str], ModelInfo | None], unique: str) -> None:
        """``unique`` makes the ids of the message and the request."""
        self._id, self._request_id = f"msg_{unique}", f"req_{unique}"
        self.headers = [("request-id", self._request_id), *cap_headers(limits)]
        self._limits = limits
        self._model = model
        self._unique = unique
        self._asked_model = ""
        self._stream = False
        self._max_tokens: int | None = None
        self._blocks = Blocks(None)
        self._begun = False
        self._finished: Finished | None = None
        self._failed = False

    @property
    def streaming(self) -> bool:
        return self._stream

    @property
    def done(self) -> bool:
        return self._finished is not None or self._failed

    def receive(self, body: bytes) -> Sequence[Generate]:
        """The one request in ``body``; raises ``RequestError``."""
        asked = message_request(body, self._limits, self._id)
        self._stream, self._max_tokens = asked.stream, asked.request.max_tokens
        self._asked_model = asked.request.model
        self._blocks = Blocks(self._parser(asked.request), thoughts=asked.request.enable_thinking is True)
        return [asked.request]

    def send(self, _index: int, output: Output) -> list[bytes]:
        """The events for ``output``, framed; none unless streaming."""
        if self.done:
            raise RuntimeError("output after the end of a message")
        match output:
            case Prefilled():
                events = [*self._begin(Usage(output.input_tokens, 0, output.reused_tokens))]
            case Token():
                events = [*self._blocks.push(output.thoughts, output.said)]
            case Finished():
                self._finished = output
                # Without a token, an answer may have been cancelled before its prompt was computed.
                events = [*self._begin(output.usage), *self._blocks.finish(), *self._end(output)]
            case _:
                return []
        return [_framed(event) for event in events] if self._stream else []

    def fail(self, _index: int, error: RequestError) -> list[bytes]:
        """The event for an error; none unless streaming."""
        self._failed = True
        return [sse.event(self.error(error).body, "error")] if self._stream else []

    def error(self, error: RequestError) -> ErrorReply:
        return error_body(error, self._request_id, self._max_tokens)

    @staticmethod
    def frame(data: bytes) -> bytes:
        """``send`` frames its events itself, since they have names."""
        return data

    @staticmethod
    def ping() -> bytes:
        return sse.event(b'{"type":"ping"}', "ping")

    def result(self) -> bytes:
        """The whole message, after ``Finished``."""
        if self._finished is None:
            raise RuntimeError("no whole message to give")
        end = self._finished
        message = self._message(end.usage)
        return orjson.dumps({**message, "content": self._blocks.whole(), **self._stopped(end)})

    def _parser(self, request: Generate) -> Callable[[], ToolCallParser] | None:
        if not request.tools:
            return None
        new_id = short_ids(self._unique)
        return lambda: parser_for(request, self._model(request.model), new_id)

    def _begin(self, usage: Usage) -> Iterator[Event]:
        if not self._begun:
            self._begun = True
            yield {"type": "message_start", "message": self._message(usage)}

    def _end(self, end: Finished) -> Iterator[Event]:
        yield {"type": "message_delta", "delta": self._stopped(end), "usage": _usage(end.usage)}
        yield {"type": "message_stop"}

    def _stopped(self, end: Finished) -> dict[str, str | None]:
        reason = _STOP_REASONS[end.reason]
        if end.reason is FinishReason.STOP and self._blocks.called:
            reason = "tool_use"
        elif end.reason is FinishReason.STOP and end.stop_string is not None:
            reason = "stop_sequence"
        return {"stop_reason": reason, "stop_sequence": end.stop_string if reason == "stop_sequence" else None}

    def _message(self, usage: Usage) -> dict[str, Any]:
        """A message without content."""
        info = self._model(self._asked_model)
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": "" if info is None else info.name,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(usage),
        }


def _usage(usage: Usage) -> dict[str, int]:
    """Usage as in Anthropic's API: the input's tokens are those that were neither read from a cache nor written to
    one."""
    return {
        "input_tokens": usage.prompt_tokens - usage.prefix_reused_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.prefix_reused_tokens,
        "output_tokens": usage.completion_tokens,
    }


def _framed(event: Event) -> bytes:
    return sse.event(orjson.dumps(event), event["type"])
