"""Ollama's answers: one JSON object, or a stream of them, one a line, of which the last one is ``done``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson

from umaserve.chat_format.tool_calls import CallPiece, ToolCallParser, parser_for, short_ids
from umaserve.core.errors import RequestError
from umaserve.core.events import Finished, Logprobs, Output, Scored, Token
from umaserve.core.requests import Generate
from umaserve.dialects.dialect import FINISH_REASONS
from umaserve.dialects.facts import Facts
from umaserve.dialects.http import JSON, ErrorReply, cap_headers
from umaserve.dialects.ollama.errors import error_body
from umaserve.dialects.ollama.models import full_name
from umaserve.dialects.ollama.requests import TextRequest, chat_request, generate_request

LINES = "application/x-ndjson"
MIN_LOGPROB = -9999.0
"""Stands for "very unlikely"; JSON has no infinity."""

Call = dict[str, Any]


def line(data: bytes) -> bytes:
    """``data`` as one line of a stream."""
    return data + b"\n"


@dataclass(frozen=True, slots=True)
class Piece:
    """The part that one output adds to an answer."""

    text: str = ""
    thoughts: str = ""
    calls: Sequence[Call] = ()
    logprobs: Sequence[Logprobs] = ()


class _TextBody(ABC):
    """Base of chats and generations: the pieces of one answer, its end, and the objects around them."""

    stream_type = LINES
    whole_type = JSON
    frame = staticmethod(line)
    end = None
    """A stream ends with the line that is ``done``, or with an error."""

    def __init__(self, facts: Facts, new_id: str) -> None:
        self.headers = cap_headers(facts.limits)
        self._facts = facts
        self._new_id = new_id
        self._created = datetime.fromtimestamp(facts.now(), UTC)
        self._asked_at = facts.clock()
        self._asked = TextRequest(None, "", stream=False, unloads=False)
        self._calls = Calls()
        self._parser: ToolCallParser | None = None
        self._model = ""
        """The model's full name, once it is loaded."""
        self._pieces: list[Piece] = []
        self._finished: Finished | None = None
        self._failed = False

    @property
    def streaming(self) -> bool:
        return self._asked.stream

    @property
    def done(self) -> bool:
        return self._finished is not None or self._failed

    def receive(self, body: bytes) -> Sequence[Generate]:
        """The one request in ``body``, or none if it only loads the model; raises ``RequestError``."""
        asked = self._parse(body)
        if asked.request is None:
            self._model = full_name(self._facts.loaded(asked.model))
            self._asked = replace(asked, stream=False)
            return ()
        # Without the prompt, so as not to keep its images in memory.
        self._asked = replace(asked, request=replace(asked.request, prompt=""))
        return (asked.request,)

    def send(self, _index: int, output: Output) -> list[bytes]:
        """The lines for ``output``; none unless streaming."""
        match output:
            case Token():
                return self._say(self._piece(output), output.elapsed_s)
            case Finished():
                self._finished = output
                lines = self._say(self._rest(), output.timing.total_s)
                return [*lines, self._last(Piece(), output)] if self.streaming else []
        return []

    def ping(self) -> bytes:
        """A line without text: lines of JSON have no comments."""
        elapsed_s = self._facts.clock() - self._asked_at
        return line(orjson.dumps({**self._around(Piece(), elapsed_s), "done": False}))

    def fail(self, _index: int, error: RequestError) -> list[bytes]:
        """The line for an error; none unless streaming."""
        self._failed = True
        return [error_body(error).body] if self.streaming else []

    def error(self, error: RequestError) -> ErrorReply:
        return error_body(error)

    def result(self) -> bytes:
        """The whole answer."""
        if self._finished is not None:
            return self._last(_joined(self._pieces), self._finished)
        if self._asked.request is not None:
            raise RuntimeError("no whole answer to give")
        reason = "unload" if self._asked.unloads else "load"
        return orjson.dumps({**self._around(Piece(), 0.0), "done": True, "done_reason": reason})

    def _piece(self, token: Token) -> Piece:
        if not self._model:
            self._begin()
        text, calls = (token.said, []) if self._parser is None else self._parser.push(token.said)
        logprobs = () if token.logprobs is None else (token.logprobs,)
        return Piece(text, token.thoughts, self._calls.take(calls), logprobs)

    def _rest(self) -> Piece:
        if not self._model:
            self._begin()
        text, calls = ("", []) if self._parser is None else self._parser.finish()
        # A call that was cut off is text: as a call, a program would run what is there of it.
        return Piece(text + "".join(piece.cut for piece in calls), calls=self._calls.take(calls))

    def _begin(self) -> None:
        """The model is loaded: its name and its way to write calls are known."""
        info = self._facts.loaded(self._asked.model)
        self._model = full_name(info)
        assert self._asked.request is not None
        if self._asked.request.tools:
            self._parser = parser_for(self._asked.request, info, short_ids(self._new_id))

    def _say(self, piece: Piece, elapsed_s: float) -> list[bytes]:
        if not (piece.text or piece.thoughts or piece.calls or piece.logprobs):
            return []
        if not self.streaming:
            self._pieces.append(piece)
            return []
        return [orjson.dumps({**self._around(piece, elapsed_s), "done": False})]

    def _last(self, piece: Piece, end: Finished) -> bytes:
        """The object that ends the answer and has the whole of it, or of a stream nothing more."""
        timing, n_tokens = end.timing, end.usage.completion_tokens
        # Without a first token, all the time was spent on the prompt.
        first_token_s = timing.first_token_s if n_tokens else timing.total_s
        return orjson.dumps(
            {
                **self._around(piece, timing.total_s),
                "done": True,
                "done_reason": FINISH_REASONS[end.reason],
                "total_duration": nanoseconds(timing.total_s),
                # Until the model could begin: its loading, and the queue.
                "load_duration": nanoseconds(timing.started_s),
                "prompt_eval_count": end.usage.prompt_tokens,
                "prompt_eval_duration": nanoseconds(first_token_s - timing.started_s),
                "eval_count": n_tokens,
                "eval_duration": nanoseconds(timing.total_s - first_token_s),
                **({"context": end.tokens} if end.tokens else {}),
            }
        )

    def _around(self, piece: Piece, elapsed_s: float) -> dict[str, Any]:
        at = (self._created + timedelta(seconds=elapsed_s)).isoformat(timespec="microseconds")
        model = self._model or self._asked.model
        shaped = {"model": model, "created_at": at.replace("+00:00", "Z"), **self._shape(piece)}
        if piece.logprobs:
            shaped["logprobs"] = [_scores(scores) for scores in piece.logprobs]
        return shaped

    @abstractmethod
    def _parse(self, body: bytes) -> TextRequest: ...

    @abstractmethod
    def _shape(self, piece: Piece) -> dict[str, Any]:
        """The fields of an object that say ``piece``."""


class ChatBody(_TextBody):
    """One ``POST /api/chat``."""

    def _parse(self, body: bytes) -> TextRequest:
        return chat_request(body, self._facts.limits, self._facts.model, self._new_id)

    def _shape(self, piece: Piece) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": piece.text}
        if piece.thoughts:
            message["thinking"] = piece.thoughts
        if piece.calls:
            message["tool_calls"] = piece.calls
        return {"message": message}


class GenerateBody(_TextBody):
    """One ``POST /api/generate``."""

    def _parse(self, body: bytes) -> TextRequest:
        return generate_request(body, self._facts.limits, self._facts.model, self._new_id)

    def _shape(self, piece: Piece) -> dict[str, Any]:
        return {"response": piece.text} | ({"thinking": piece.thoughts} if piece.thoughts else {})


class Calls:
    """Puts calls together, since Ollama's clients take a call in one piece, with its arguments as an object."""

    def __init__(self) -> None:
        self._begun: dict[int, CallPiece] = {}

    def take(self, pieces: Sequence[CallPiece]) -> list[Call]:
        """The calls that ``pieces`` make whole."""
        whole = []
        for piece in pieces:
            begun = self._begun.setdefault(piece.index, piece)
            if begun is not piece:
                self._begun[piece.index] = replace(begun, arguments=begun.arguments + piece.arguments)
            if piece.whole:
                whole.append(_call(self._begun.pop(piece.index)))
        return whole


def _call(piece: CallPiece) -> Call:
    # Line breaks between values would end the line of the stream; those within strings are escaped.
    arguments = orjson.Fragment(piece.arguments.replace("\n", " ").replace("\r", " "))
    return {"id": piece.id, "function": {"index": piece.index, "name": piece.name, "arguments": arguments}}


def _joined(pieces: Sequence[Piece]) -> Piece:
    return Piece(
        "".join(piece.text for piece in pieces),
        "".join(piece.thoughts for piece in pieces),
        [call for piece in pieces for call in piece.calls],
        [scores for piece in pieces for scores in piece.logprobs],
    )


def _scores(scores: Logprobs) -> dict[str, Any]:
    top = [_scored(scored) for scored in scores.top]
    return _scored(scores.chosen) | ({"top_logprobs": top} if top else {})


def _scored(scored: Scored) -> dict[str, Any]:
    logprob = max(scored.logprob, MIN_LOGPROB)
    return {"token": scored.piece.decode(errors="replace"), "logprob": logprob, "bytes": list(scored.piece)}


def nanoseconds(seconds: float) -> int:
    return max(0, round(seconds * 1e9))
