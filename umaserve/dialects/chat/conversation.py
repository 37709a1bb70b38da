"""The dialect of ``/ws/chat`` (contract: chat-mode): one request, and its messages in a fixed order."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import orjson

from umaserve.core.errors import Fault, RequestError
from umaserve.core.events import Finished, Output, Placed, Prefilled, Spoken, Token, VoiceInfo, Waiting
from umaserve.core.requests import Generate
from umaserve.dialects.chat.request import ChatRequest, read_request
from umaserve.dialects.dialect import Reply
from umaserve.dialects.parameters import RequestLimits, check_key, with_model
from umaserve.wire.fields import MAX_VALUES, Fields, bad_request, parse_json
from umaserve.wire.long_texts import as_string
from umaserve.wire.websocket import CloseCode

OURS = frozenset(
    (
        Fault.MEMORY_PRESSURE,
        Fault.QUEUE_FULL,
        Fault.TIMED_OUT,
        Fault.MODEL_NOT_LOADED,
        Fault.DECODE_FAILED,
        Fault.SHUTTING_DOWN,
        Fault.ENDED,
    )
)
"""Faults that the client didn't cause."""


class ChatDialect:
    """One conversation: one message from the client; then messages about the queue, ``prefill_done``, chunks, ``done``.

    An ``error`` may replace any of them. ``done`` and ``error`` end the connection. ``prefill_done`` has
    ``"voice": "default"`` if the daemon's voice speaks instead of the requested one.
    ``voice`` is the daemon's, if it has one. ``recorded``: requests carry their payload, to be kept. With
    ``authenticate``, which says whether a key is valid, the message must have a valid key in ``auth``.
    """

    ready = True

    def __init__(
        self,
        limits: RequestLimits,
        voice: VoiceInfo | None,
        new_id: Callable[[], str],
        authenticate: Callable[[str], bool] | None = None,
        *,
        recorded: bool = False,
        asked_model: str = "",
    ) -> None:
        self._limits = limits
        self._voice = voice
        self._new_id = new_id
        self._authenticate = authenticate
        self._recorded = recorded
        self._asked_model = asked_model
        self._answer: _Answer | None = None
        self._ended = False

    def receive(self, payload: bytes) -> Generate:
        """The request in ``payload``; raises ``RequestError``, also for every payload after the first."""
        if self._answer is not None or self._ended:
            raise RequestError(Fault.BUSY, "payload", "expected one message per connection, got another")
        values = parse_json(payload, MAX_VALUES)
        if not isinstance(values, dict):
            raise bad_request("payload", "an object", values)
        if self._authenticate is not None:
            check_key(values.get("auth"), self._authenticate, '{"auth":"KEY","messages":[…]}')
        asked = read_request(with_model(Fields(values), self._asked_model), self._limits, self._voice, self._new_id())
        self._answer = _Answer(asked)
        if not self._recorded:
            return asked.request
        # Keys must not be recorded.
        without = {k: v for k, v in values.items() if k != "auth"}
        kept = payload if "auth" not in values else orjson.dumps(without, default=as_string)
        return replace(asked.request, recorded=kept)

    def send(self, output: Output) -> Reply | None:
        """The message for ``output``; ``None`` if the contract or the request wants none."""
        if self._answer is None or self._ended:
            raise RuntimeError("output without a request that runs")
        self._ended = isinstance(output, Finished)
        return self._answer.send(output)

    def refuse(self, error: RequestError) -> Reply:
        """The error message, as ``fail``: the error also ends a running request."""
        return self.fail(error)

    def fail(self, error: RequestError) -> Reply:
        """The error message, which ends the connection."""
        self._ended = True
        code = CloseCode.INTERNAL_ERROR if error.fault in OURS else CloseCode.POLICY_VIOLATION
        return Reply(_dump("error", error=error.message), close=True, code=code)


class _Answer:
    """The messages that answer one request."""

    def __init__(self, asked: ChatRequest) -> None:
        self._ticket = asked.request.id
        self._streaming = asked.streaming
        self._spoken = asked.request.spoken is not None
        self._voice = {"voice": "default"} if asked.ignores_recording else {}
        self._shows_thoughts = asked.request.enable_thinking
        self._waiting: Waiting | None = None
        self._placed = False
        self._text: list[str] = []
        self._pcm: list[bytes] = []

    def send(self, output: Output) -> Reply | None:
        match output:
            case Waiting() if not self._placed and output != self._waiting:
                return self._queued(output)
            case Placed():
                self._placed = True
                return None if self._waiting is None else Reply(_dump("queue_done"))
            case Prefilled():
                return Reply(_dump("prefill_done", input_tokens=output.input_tokens, **self._voice))
            case Token():
                chunk = self._chunk(output.text if self._shows_thoughts else output.said)
                return None if chunk is None else Reply(chunk)
            case Spoken():
                return self._heard(output.sound)
            case Finished():
                return self._done(output)
            case _:
                return None

    def _queued(self, waiting: Waiting) -> Reply:
        kind, ticket = ("queued", {"ticket_id": self._ticket}) if self._waiting is None else ("queue_update", {})
        self._waiting = waiting
        place = {"position": waiting.position, "estimated_wait_s": waiting.eta_s, "queue_length": waiting.length}
        return Reply(_dump(kind, **place, **ticket))

    def _chunk(self, text: str) -> bytes | None:
        if not text:
            return None
        self._text.append(text)
        return _dump("chunk", text_delta=text, audio_data=None) if self._streaming else None

    def _heard(self, pcm: bytes) -> Reply | None:
        if self._streaming:
            # Without text, which was sent earlier: a segment of speech is a sentence, complete only at its last token.
            return Reply(_dump("chunk", text_delta="", audio_data=_base64(pcm)))
        self._pcm.append(pcm)
        return None

    def _done(self, finished: Finished) -> Reply:
        # All segments of a stream are sent as chunks: with the last one in ``done`` clients would play it twice.
        audio = _base64(b"".join(self._pcm)) if self._spoken and not self._streaming else None
        usage = finished.usage
        done = _dump(
            "done",
            text="".join(self._text),
            generated_tokens=usage.completion_tokens,
            input_tokens=usage.prompt_tokens,
            audio_data=audio,
            recording_session_id=finished.recording,
        )
        return Reply(done, close=True)


def _base64(pcm: bytes) -> str:
    return base64.b64encode(pcm).decode()


def _dump(kind: str, **values: Any) -> bytes:
    return orjson.dumps({"type": kind, **values})
