"""llama-server's ``/completion`` and ``/infill``: a body in, one answer, an array of several, or a stream out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from umaserve.core.errors import RequestError
from umaserve.core.events import (
    Finished,
    FinishReason,
    Logprobs,
    Output,
    Prefilled,
    Prefilling,
    Scored,
    Token,
)
from umaserve.core.requests import Generate, Infill, MixedText, TokenIds
from umaserve.dialects import sse
from umaserve.dialects.facts import Facts
from umaserve.dialects.http import JSON, ErrorReply, cap_headers
from umaserve.dialects.llama_server.errors import error_body
from umaserve.dialects.llama_server.requests import NativeRequest, native_request
from umaserve.dialects.llama_server.schemas import NativeOptions
from umaserve.dialects.llama_server.settings import generation_settings
from umaserve.dialects.parameters import RequestLimits, json_body
from umaserve.dialects.timings import RunningTimings, progress, timings, timings_at
from umaserve.wire.fields import Fields

MIN_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON lacks."""
Parse = Callable[[Fields, RequestLimits, str, Sequence[str]], NativeRequest]
NO_SLOT = -1
"""Slots belong to the scheduler, which moves answers between them."""


@dataclass(slots=True)
class _Answer:
    """The parts of one answer that have come so far."""

    request: Generate
    text: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    scores: list[Logprobs] = field(default_factory=list)
    timings: RunningTimings = field(default_factory=RunningTimings)
    finished: Finished | None = None

    def take(self, token: Token) -> None:
        self.timings.take(token)
        if token.sampled:
            self.tokens.append(token.token_id)
        self.text.append(token.text)
        if token.logprobs is not None:
            self.scores.append(token.logprobs)


class NativeBody:
    """One ``POST /completion``, or ``/infill`` with that one's ``parse``."""

    stream_type = sse.CONTENT_TYPE
    whole_type = JSON
    frame = staticmethod(sse.event)
    ping = staticmethod(sse.ping)
    end = None
    """A stream ends with the last answer's last event."""

    def __init__(self, facts: Facts, parse: Parse = native_request) -> None:
        self.headers = cap_headers(facts.limits)
        self._facts = facts
        self._parse = parse
        self._asked = NativeRequest((), -1)
        self._answers: Sequence[_Answer] = ()
        self._failed: set[int] = set()

    @property
    def streaming(self) -> bool:
        return self._asked.stream

    @property
    def done(self) -> bool:
        """Whether all answers have finished or failed."""
        ended = len(self._failed) + sum(answer.finished is not None for answer in self._answers)
        return 0 < len(self._answers) == ended

    def receive(self, body: bytes) -> Sequence[Generate]:
        """The answers asked for, each a request of its own; raises ``RequestError``."""
        fields = json_body(body)
        info = self._facts.model(NativeOptions.view(fields).model or "")
        adapters = () if info is None else info.adapters
        asked = self._parse(fields, self._facts.limits, self._facts.new_id("cmpl-"), adapters)
        self._asked = replace(asked, choices=())
        self._answers = [_Answer(choice) for choice in asked.choices]
        return asked.choices

    def send(self, index: int, output: Output) -> list[bytes]:
        """The events for an output of answer ``index``; none unless streaming."""
        answer = self._running(index)
        match output:
            case Prefilling():
                event = _progress(index, output)
                if self._asked.timings_per_token:
                    event["timings"] = timings_at(output)
                return [orjson.dumps(event)]
            case Prefilled():
                answer.timings.prefilled = output
                return []
            case Token():
                answer.take(output)
                return [orjson.dumps(self._partial(index, answer, output))] if self.streaming else []
            case Finished():
                answer.finished = output
                return [orjson.dumps(self._whole(index, answer, output))] if self.streaming else []
            case _:
                return []

    def fail(self, index: int, error: RequestError) -> list[bytes]:
        """The event for the error that ended answer ``index``; none unless streaming."""
        self._failed.add(index)
        return [error_body(error).body] if self.streaming else []

    def error(self, error: RequestError) -> ErrorReply:
        return error_body(error)

    def result(self) -> bytes:
        """The whole reply: an object for one answer, an array for several."""
        ended = [(index, answer, answer.finished) for index, answer in enumerate(self._answers)]
        whole = [self._whole(index, answer, end) for index, answer, end in ended if end is not None]
        if self.streaming or len(whole) != len(ended):
            raise RuntimeError("no whole answer to give")
        return orjson.dumps(whole[0] if len(whole) == 1 else whole)

    def _running(self, index: int) -> _Answer:
        answer = self._answers[index]
        if index in self._failed or answer.finished is not None:
            raise RuntimeError(f"answer {index} isn't running")
        return answer

    def _partial(self, index: int, answer: _Answer, token: Token) -> dict[str, Any]:
        """One token's event."""
        partial: dict[str, Any] = {
            "index": index,
            "content": token.text,
            "tokens": [token.token_id] if token.sampled else [],
            "stop": False,
            "id_slot": NO_SLOT,
            "tokens_predicted": len(answer.tokens),
            "tokens_evaluated": answer.timings.prefilled.input_tokens,
        }
        if self._asked.timings_per_token:
            partial["timings"] = answer.timings.at(token.elapsed_s)
        if token.logprobs is not None:
            partial["completion_probabilities"] = [_scores(token.logprobs, answer.request)]
        return partial

    def _whole(self, index: int, answer: _Answer, end: Finished) -> dict[str, Any]:
        """The whole answer; in a stream its last event, without what was sent."""
        usage, streaming = end.usage, self.streaming
        info = self._facts.loaded(answer.request.model)
        text = "".join(answer.text)
        whole: dict[str, Any] = {
            "index": index,
            "content": "" if streaming else text,
            "tokens": answer.tokens if self._asked.return_tokens and not streaming else [],
            "id_slot": NO_SLOT,
            "stop": True,
            "model": info.name,
            "tokens_predicted": usage.completion_tokens,
            "tokens_evaluated": usage.prompt_tokens,
            "generation_settings": generation_settings(answer.request, self._asked, info.end_tokens),
            "prompt": _shown(answer.request.prompt),
            "has_new_line": "\n" in text,
            "truncated": _is_truncated(answer.request, end),
            "stop_type": _stop_type(end),
            "stopping_word": end.stop_string or "",
            # The last token was sampled and not computed.
            "tokens_cached": usage.prompt_tokens + max(0, usage.completion_tokens - 1),
            "timings": timings(usage, end.timing),
        }
        if answer.scores and not streaming:
            whole["completion_probabilities"] = [_scores(scores, answer.request) for scores in answer.scores]
        return _only(whole, self._asked.response_fields) if self._asked.response_fields else whole


def _progress(index: int, at: Prefilling) -> dict[str, Any]:
    """The event of a part of the prompt; only streams ask for it."""
    return {
        "index": index,
        "content": "",
        "tokens": [],
        "stop": False,
        "id_slot": NO_SLOT,
        "tokens_predicted": 0,
        "tokens_evaluated": at.input_tokens,
        "prompt_progress": progress(at),
    }


def _shown(prompt: object) -> object:
    """A prompt as the client sent it."""
    match prompt:
        case TokenIds(ids):
            return list(ids)
        case MixedText(parts):
            return [item for part in parts for item in ([part] if isinstance(part, str) else part.ids)]
        case Infill():
            return prompt.beginning
        case _:
            return prompt if isinstance(prompt, str) else ""


def _stop_type(end: Finished) -> str:
    if end.reason is FinishReason.STOP:
        return "word" if end.stop_string is not None else "eos"
    return "limit" if end.reason is FinishReason.LENGTH else "none"


def _is_truncated(request: Generate, end: Finished) -> bool:
    """Whether the context's end came before the wanted length."""
    wanted = request.max_tokens
    return end.reason is FinishReason.LENGTH and (wanted is None or end.usage.completion_tokens < wanted)


def _scores(scores: Logprobs, request: Generate) -> dict[str, Any]:
    after = request.sampling.scores_after
    top = [_scored(top, after) for top in scores.top]
    return {**_scored(scores.chosen, after), "top_probs" if after else "top_logprobs": top}


def _scored(scored: Scored, after: bool) -> dict[str, Any]:
    """Convert a scored token; ``after``: with its probability, else with the logarithm."""
    return {
        "id": scored.token_id,
        "token": scored.piece.decode(errors="ignore"),
        "bytes": list(scored.piece),
        **({"prob": math.exp(scored.logprob)} if after else {"logprob": max(scored.logprob, MIN_LOGPROB)}),
    }


def _only(whole: dict[str, Any], paths: Sequence[str]) -> dict[str, Any]:
    """The values at ``paths``, by their paths; those that are not there are left out."""
    found: dict[str, Any] = {}
    for path in paths:
        value: Any = whole
        for name in path.split("/"):
            if not isinstance(value, dict) or name not in value:
                break
            value = value[name]
        else:
            found[path] = value
    return found
