"""OpenAI's ``POST /v1/responses``: a body in, one response or a stream of events out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson

from umaserve.chat_format.tool_calls import ToolCallParser, parser_for, short_ids
from umaserve.core.errors import Fault, RequestError
from umaserve.core.events import Finished, FinishReason, Output, Placed, Prefilled, Prefilling, Token, Usage
from umaserve.core.requests import Generate, Priority
from umaserve.core.server_tools import CallResult, ServerCall
from umaserve.dialects import sse
from umaserve.dialects.facts import Facts
from umaserve.dialects.http import JSON, ErrorReply, cap_headers
from umaserve.dialects.openai.choices import scored
from umaserve.dialects.openai.errors import error_body
from umaserve.dialects.parameters import json_body
from umaserve.dialects.responses.items import turns
from umaserve.dialects.responses.keeping import Continued
from umaserve.dialects.responses.kept import StoredResponse, TenantsEntries
from umaserve.dialects.responses.output import Event, OutputItems
from umaserve.dialects.responses.requests import response_request
from umaserve.dialects.responses.schemas import ResponseRequest
from umaserve.dialects.timings import RunningTimings, progress, timings, timings_at
from umaserve.dialects.tool_rounds import NO_MORE_CALLS, ToolRounds
from umaserve.wire.fields import Fields

_ENDS: dict[FinishReason, tuple[str, str | None]] = {
    FinishReason.STOP: ("completed", None),
    FinishReason.LENGTH: ("incomplete", "max_output_tokens"),
    FinishReason.CANCELLED: ("cancelled", None),
    FinishReason.CONTENT_FILTER: ("incomplete", "content_filter"),
}
"""``status``, and the reason in ``incomplete_details``."""

_OPENING = ("created", "in_progress")

_LATER = "rate_limit_exceeded"
_CODES = {
    Fault.CONTEXT_EXCEEDED: "context_length_exceeded",
    Fault.RATE_LIMITED: _LATER,
    Fault.TOO_MANY_SESSIONS: _LATER,
    Fault.QUEUE_FULL: _LATER,
    Fault.MEMORY_PRESSURE: _LATER,
    Fault.MODEL_NOT_LOADED: _LATER,
    Fault.BAD_REQUEST: "invalid_prompt",
    Fault.PROMPT_TOO_LARGE: "invalid_prompt",
    Fault.CONTENT_FILTERED: "invalid_prompt",
}
"""``code`` of an error that ends a response; agents try again after all but the first and the last."""


class ResponseBody:
    """One ``POST /v1/responses``."""

    stream_type = sse.CONTENT_TYPE
    whole_type = JSON
    end = None
    """A stream ends with the event that has the whole response; nothing follows."""

    def __init__(self, facts: Facts) -> None:
        self._unique = facts.new_id("")
        self._id = f"resp_{self._unique}"
        self.headers = cap_headers(facts.limits)
        self._facts = facts
        self._created = facts.now()
        self._stream = False
        self._model = ""
        self._shown: Mapping[str, Any] = {}
        self._kept: StoredResponse | None = None
        self._place: TenantsEntries[StoredResponse] | None = None
        self._continued: Continued | None = None
        self._background = False
        self._status = "in_progress"
        self._timed = self._tells_progress = False
        self._running = RunningTimings()
        self._timings: dict[str, Any] = {}
        """Timings of the whole answer, at its end."""
        self._output = OutputItems(None, {}, self._unique)
        self._rounds: ToolRounds | None = None
        self._earlier: list[Event] = []
        """Events that are sent before those of the next output."""
        self._usage = Usage(0, 0)
        self._ended: dict[str, Any] | None = None
        """Fields that the end adds to the response."""
        self._n_events = 0

    @property
    def streaming(self) -> bool:
        return self._stream

    @property
    def done(self) -> bool:
        return self._ended is not None

    def receive(self, body: bytes) -> Sequence[Generate]:
        """The one request in ``body``; raises ``RequestError``."""
        return [self.begin(ResponseRequest.view(json_body(body)), len(body))]

    def begin(
        self, given: ResponseRequest, n_bytes: int, unstored: TenantsEntries[StoredResponse] | None = None
    ) -> Generate:
        """The request in a body of ``n_bytes``; raises ``RequestError``. ``unstored``: as in ``keeping``."""
        limits, server_tools = self._facts.limits, self._facts.server_tools
        asked = response_request(given, n_bytes, limits, self._id, self._facts.kept, unstored, server_tools)
        parser = self._parser(asked.request)
        self._output = OutputItems(parser, asked.tools, self._unique, seals=asked.sealed)
        self._model = asked.request.model
        # Without the request, so as not to keep the prompt's media in memory.
        self._stream, self._shown = asked.stream, {**asked.shown, **self._facts.kept_by_relay}
        self._kept, self._place, self._continued = asked.kept, asked.place, asked.continued
        self._background = asked.background
        self._timed, self._tells_progress = asked.timed, given.return_progress
        mine = [name for name, tool in asked.tools.items() if tool.server is not None]
        self._rounds = ToolRounds(asked.request, mine, asked.max_calls)
        for server, listed in asked.listed.items():
            self._earlier += self._output.list_tools(server, listed)
        for approved in asked.approved:
            self._earlier += self._output.approve(approved)
        self._earlier += self._refuse_calls()
        if asked.background:
            self._status = "queued"
            # Nobody waits for it at a connection.
            return replace(asked.request, priority=Priority.BACKGROUND)
        return asked.request

    def take_calls(self) -> Mapping[int, ServerCall]:
        """Calls to make before the answer begins or goes on, by their numbers."""
        return {} if self.done else {**self._output.awaited}

    def called(self, number: int, result: CallResult) -> list[bytes]:
        """The events for the result of the call of that number; none unless streaming."""
        events = [*self._output.called(number, result)]
        if not self._output.awaited and self._output.asks_client:
            events.append(self._complete())
        return self._told(events)

    def next_request(self) -> Generate:
        """The request with which the answer goes on, once all calls have results. Raises ``RequestError``."""
        assert self._rounds is not None
        self._output.next_round()
        items = [Fields(item, "output.") for item in self._output.whole()]
        return self._rounds.next_request(turns("", items, self._facts.limits))

    @property
    def background(self) -> bool:
        return self._background

    def go_on(self, cancel: Callable[[], None]) -> None:
        """The answer is made in the background, until ``cancel``."""
        kept = self._kept
        assert kept is not None

        def stop() -> None:
            cancel()
            for _event in self._output.finish(whole=False):
                continue
            self._end("cancelled")

        kept.cancel, kept.in_background = stop, True
        self._keep()

    def send(self, _index: int, output: Output) -> list[bytes]:
        """The events for ``output``; none unless streaming."""
        if self.done:
            raise RuntimeError("output after the end of a response")
        match output:
            case Prefilling() if self._tells_progress:
                timed = {"timings": timings_at(output)} if self._timed else {}
                events = [{**self._event("in_progress"), "prompt_progress": progress(output), **timed}]
            case Prefilled():
                self._running.prefilled = output
                events = []
            case Token():
                logprobs = [] if output.logprobs is None else [scored(output.logprobs)]
                events = [*self._output.push(output.thoughts, output.said, logprobs)]
                if self._timed:
                    self._running.take(output)
                    timed = {"timings": self._running.at(output.elapsed_s)}
                    events = [event | timed if event["type"].endswith(".delta") else event for event in events]
            case Finished():
                events = self._finish(output)
            case Placed() if self._background:
                self._status = "in_progress"
                self._keep()
                return []
            case _:
                return []
        return self._told(events)

    def _finish(self, output: Finished) -> list[Event]:
        """The events for the end of what the model writes, which is the answer's unless the daemon calls tools."""
        assert self._rounds is not None
        self._timings = {"timings": timings(output.usage, output.timing)}
        self._usage = self._rounds.count(output.usage)
        status, why = _ENDS[output.reason]
        events = [*self._output.finish(whole=status == "completed"), *self._refuse_calls()]
        if status != "completed":
            self._end(status, incomplete=why, usage=self._usage)
            return [*events, self._event("incomplete")]
        return events if self._output.awaited else [*events, self._complete()]

    def _refuse_calls(self) -> list[Event]:
        """The events for calls that are too many."""
        assert self._rounds is not None
        refused = self._rounds.refused(self._output.awaited)
        return [event for number in refused for event in self._output.called(number, NO_MORE_CALLS)]

    def _complete(self) -> Event:
        self._end("completed", usage=self._usage)
        return self._event("completed")

    def _told(self, events: list[Event]) -> list[bytes]:
        events, self._earlier = [*self._earlier, *events], []
        return [self._data(event) for event in events] if self.streaming else []

    def fail(self, _index: int, error: RequestError) -> list[bytes]:
        """The event for an error; none unless streaming."""
        message = error.message
        if error.retry_after_s is not None:
            message += f"; try again in {max(1, math.ceil(error.retry_after_s))}s"  # Agents read the number.
        self._end("failed", error={"code": _CODES.get(error.fault, "server_error"), "message": message})
        return [self._data(self._event("failed"))] if self.streaming else []

    def error(self, error: RequestError) -> ErrorReply:
        return error_body(error)

    def frame(self, data: bytes) -> bytes:
        """One event with its number. The first one comes after those that open every stream."""
        return b"".join(self.numbered(data))

    def numbered(self, data: bytes) -> list[bytes]:
        """The events that ``frame`` joins."""
        opening = [] if self._n_events else [self._data(self._event(kind)) for kind in _OPENING]
        return [*map(self._numbered, [*opening, data])]

    def ping(self) -> bytes:
        """An event: programs that give up after some minutes without one don't count comments."""
        return self.frame(self._data(self._event("in_progress")))

    def result(self) -> bytes:
        """The whole response, once ``done``."""
        return orjson.dumps({**self._response(), **self._timings})

    def _numbered(self, data: bytes) -> bytes:
        return b'%b,"sequence_number":%d}\n\n' % (data, self._next_number())

    def _next_number(self) -> int:
        self._n_events += 1
        return self._n_events - 1

    @staticmethod
    def _data(event: Event) -> bytes:
        """An event up to its number, which it gets when it is written."""
        return b"event: %b\ndata: %b" % (event["type"].encode(), orjson.dumps(event)[:-1])

    def _event(self, kind: str) -> Event:
        """An event with the response, which goes on in those that open a stream, even if they are sent at its end."""
        ended = kind not in _OPENING
        return {"type": f"response.{kind}", "response": self._response(ended=ended), **(self._timings if ended else {})}

    def _parser(self, request: Generate) -> Callable[[], ToolCallParser] | None:
        if not request.tools:
            return None
        new_id = short_ids(self._unique)
        return lambda: parser_for(request, self._facts.model(request.model), new_id)

    def _end(
        self,
        status: str,
        *,
        incomplete: str | None = None,
        error: dict[str, str] | None = None,
        usage: Usage | None = None,
    ) -> None:
        self._output.give_up()
        self._ended = {
            "status": status,
            "incomplete_details": None if incomplete is None else {"reason": incomplete},
            "error": error,
            "output": self._output.whole(),
            "usage": None if usage is None else usage_fields(usage),
            "completed_at": self._facts.now() if status == "completed" else None,
        }
        output = tuple(map(orjson.dumps, self._output.whole()))
        if self._continued is not None and status in ("completed", "incomplete"):
            self._continued.end(output)
        if self._kept is not None:
            self._kept.cancel = None
            self._kept.output = output
            self._keep()

    def _keep(self) -> None:
        """Keep the response as it is now. One in the background that was deleted meanwhile stays deleted."""
        kept, place = self._kept, self._place
        if kept is None or place is None or kept.deleted:
            return
        kept.response = self.result()
        place.keep(kept)

    def _response(self, *, ended: bool = True) -> dict[str, Any]:
        info = self._facts.model(self._model)
        state = self._ended if ended else None
        begun: dict[str, Any] = {
            "status": self._status,
            **dict.fromkeys(("incomplete_details", "error", "usage", "completed_at")),
            "output": [],
        }
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            **self._shown,
            **({} if info is None else {"model": info.name}),
            **(state or begun),
        }


def usage_fields(usage: Usage) -> dict[str, Any]:
    """``usage`` in the form of this API."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.prefix_reused_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
