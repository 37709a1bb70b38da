"""The messages of ``/generate`` about one generation, kept so that a lost connection can be resumed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from umaserve.chat_format.tool_calls import parser_for, short_ids
from umaserve.core.errors import Fault, RequestError
from umaserve.core.events import (
    Finished,
    Loading,
    Logprobs,
    ModelInfo,
    Placed,
    Prefill,
    Prefilled,
    Prefilling,
    Scored,
    Started,
    Token,
    Waiting,
)
from umaserve.core.requests import Generate
from umaserve.dialects.dialect import FINISH_REASONS
from umaserve.dialects.generate.calls import Calls
from umaserve.dialects.generate.request import Options

ERRORS = {
    Fault.FRAME_TOO_LARGE: ("invalid_request", True, "modify_request"),
    Fault.INVALID_JSON: ("invalid_request", True, "modify_request"),
    Fault.BAD_REQUEST: ("invalid_request", True, "modify_request"),
    Fault.NOT_SUPPORTED: ("invalid_request", True, "modify_request"),
    Fault.BUSY: ("invalid_request", True, "wait"),
    Fault.NOT_FOUND: ("invalid_request", True, "restart"),
    Fault.UNAUTHORIZED: ("invalid_request", False, "authenticate"),
    Fault.PROMPT_TOO_LARGE: ("context_length_exceeded", True, "reduce_prompt"),
    Fault.CONTEXT_EXCEEDED: ("context_length_exceeded", True, "reduce_prompt"),
    Fault.CONTENT_FILTERED: ("content_filter", True, "modify_request"),
    Fault.MEMORY_PRESSURE: ("memory_pressure", True, "retry"),
    Fault.QUEUE_FULL: ("rate_limited", True, "retry"),
    Fault.TOO_MANY_SESSIONS: ("rate_limited", True, "retry"),
    Fault.RATE_LIMITED: ("rate_limited", True, "retry"),
    Fault.TIMED_OUT: ("timeout", True, "retry"),
    Fault.MODEL_NOT_FOUND: ("invalid_request", True, "modify_request"),
    Fault.MODEL_NOT_LOADED: ("model_loading_error", False, "none"),
    Fault.DECODE_FAILED: ("internal_error", False, "none"),
    Fault.SHUTTING_DOWN: ("internal_error", True, "reconnect"),
    Fault.ENDED: ("internal_error", False, "ask_operator"),
}
"""The contract's error type, whether the client can recover, and how: change the request ("modify_request",
"reduce_prompt"); send it again later ("retry"), when the running one has ended ("wait"), on a new connection
("reconnect") or with a key ("authenticate"); start over with a ``config`` ("restart"); ask whoever ended it
("ask_operator"); or not at all ("none")."""

MIN_LOGPROB = -9999.0
"""Stands for minus infinity, the logarithm of a probability of 0, which JSON lacks."""

TOKEN_BYTES, SCORED_BYTES, BIAS_BYTES = 256, 192, 128
"""Estimates of CPython's memory for each one that is kept."""


@dataclass(frozen=True, slots=True)
class Kept:
    """State of a generation that another process needs to replay it, and to go on with it."""

    request: Generate
    options: Options
    text: str
    """The text, without the echoed prompt."""
    thoughts: str
    tokens: tuple[Token, ...] | None
    """The tokens; ``None``: the generation's messages need none."""
    ending: tuple[bytes, ...]
    """The last messages of the generation, if it has ended."""


class Generation:
    """One generation: its request, its text so far, and its messages.

    With ``keep_tokens`` its stream can be replayed.
    """

    def __init__(
        self, request: Generate, options: Options, model: Callable[[str], ModelInfo | None], *, keep_tokens: bool
    ) -> None:
        self.request = request.with_small_media()
        """The request as received, with the modifications that are in effect."""
        self.lacks_media = request.has_media and not self.request.has_media
        """Whether it can't be asked for again, since its media were too large to be kept."""
        self.options = options
        self._model = model
        self._echo = request.prompt if options.echo_prompt and isinstance(request.prompt, str) else ""
        self._text = self._echo
        self._thoughts = ""
        self._calls = self._new_calls() if request.tools else None
        # Without a stream they go into the last message.
        whole = not options.stream and (options.include_token_ids or request.logprobs is not None)
        self._kept: list[Token] | None = [] if whole or (options.stream and keep_tokens) else None
        self._sent = 0
        self._ending: tuple[bytes, ...] = ()
        self._progress = b""
        """The latest status while it waits."""

    @classmethod
    def again(cls, kept: Kept, model: Callable[[str], ModelInfo | None]) -> Generation:
        """Make a generation that another process kept."""
        generation = cls(kept.request, kept.options, model, keep_tokens=kept.tokens is not None)
        generation._text += kept.text
        generation._calls = generation._new_calls(kept.text) if kept.request.tools else None
        generation._thoughts = kept.thoughts
        generation._ending = kept.ending
        if generation._kept is not None:
            generation._kept += kept.tokens or ()
            generation._sent = len(generation._kept)
        return generation

    @property
    def kept(self) -> Kept | None:
        """``None`` where it can't go on in another process, since its media were too large to be kept."""
        if self.lacks_media:
            return None
        tokens = None if self._kept is None else tuple(self._kept)
        text = self._text.removeprefix(self._echo)
        return Kept(self.request, self.options, text, self._thoughts, tokens, self._ending)

    @property
    def text(self) -> str:
        """The text generated so far, after the prompt if that is echoed."""
        return self._text

    @property
    def ended(self) -> bool:
        return bool(self._ending)

    @property
    def held_bytes(self) -> int:
        """An estimate of the memory that this takes, in bytes."""
        sampling, prompt = self.request.sampling, self.request.prompt
        prompts = [turn.content for turn in prompt] if isinstance(prompt, tuple) else [str(prompt)]
        if isinstance(prompt, tuple):
            prompts += [call.name + call.arguments for turn in prompt for call in turn.tool_calls]
        texts = [self._text, self._thoughts, *prompts, "" if sampling.grammar is None else sampling.grammar.text]
        texts += [tool.description + tool.parameters for tool in self.request.tools]
        texts.append(str(self.request.chat_template_kwargs))
        media = [one.media.data for turn in prompt for one in turn.attachments] if isinstance(prompt, tuple) else []
        scored = 0 if self.request.logprobs is None else 1 + self.request.logprobs
        return (
            4 * sum(map(len, texts))
            + sum(map(len, media))
            + len(self._kept or ()) * (TOKEN_BYTES + scored * SCORED_BYTES)
            + len(sampling.logit_bias) * BIAS_BYTES
            + sum(map(len, self._ending))
        )

    def send(self, output: Started | Loading | Waiting | Prefill | Token | Finished) -> tuple[bytes, ...]:
        """The messages for ``output``, at most two, in the order of sending."""
        if self.ended:
            raise RuntimeError("output of a generation that has ended")
        match output:
            case Token():
                self._text += output.said
                self._thoughts += output.thoughts
                if self._calls is not None:
                    self._calls.push(output.said)
                if self._kept is not None:
                    self._kept.append(output)
                if not self.options.stream:
                    return ()
                self._sent += 1
                return (self._token(output, self._text, self._sent - 1),)
            case Started():
                return (
                    (self._init(), self._piece(self._echo)) if self._echo and self.options.stream else (self._init(),)
                )
            case Loading():
                progress = int(100 * min(max(output.fraction, 0.0), 1.0))
                return self._news(status("model_loading", progress, "loading the model", **_eta(output.eta_s)))
            case Waiting():
                place = f"position {output.position} of {output.length}"
                return self._news(status("queued", 0, place, position=output.position, **_eta(output.eta_s)))
            case Placed() | Prefilling() | Prefilled():
                return ()
            case Finished():
                if self._calls is not None:
                    self._calls.finish()
                completion = _dump("completion", request_id=self.request.id, **self.outcome(output))
                last = self._piece("", FINISH_REASONS[output.reason])
                self._ending = (last, completion) if self.options.stream else (completion,)
                return self._ending

    def _news(self, message: bytes) -> tuple[bytes, ...]:
        """``message``, unless the client was told that last."""
        told, self._progress = self._progress, message
        return () if message == told else (message,)

    def fail(self, error: RequestError) -> bytes:
        """The message of the error that ends this, with the text generated so far."""
        message = error_message(error, self.request.id, self._text)
        self._ending = (message,)
        return message

    def replay(self, position: int) -> Iterator[bytes]:
        """The messages from token number ``position`` (from 0) on; raises ``RequestError`` if fewer were sent.

        The echoed prompt and the empty token at the end are not counted.
        """
        kept = self._kept if self.options.stream and self._kept is not None else []
        sent = len(kept)
        if position > sent:
            problem = f"expected at most {sent}, the number of tokens sent so far, got {position}"
            raise RequestError(Fault.BAD_REQUEST, "position", problem, self.request.id)
        return self._replay(kept, position, sent)

    def _replay(self, kept: list[Token], position: int, sent: int) -> Iterator[bytes]:
        text = self._echo + "".join(token.said for token in kept[:position])
        # Another connection has not heard it.
        self._progress = b""
        yield status("resume", 100, f"from token {position} of {sent} so far", request_id=self.request.id)
        # The list may grow during the iteration.
        while position < len(kept):
            token = kept[position]
            text += token.said
            yield self._token(token, text, position)
            position += 1
        yield from self._ending

    def outcome(self, finished: Finished) -> dict[str, Any]:
        """The fields of the last message, be it ``completion`` or the answer to a REST request."""
        usage = finished.usage
        outcome: dict[str, Any] = {
            "generated_text": self._text,
            "finish_reason": FINISH_REASONS[finished.reason],
            "usage": {
                "prompt_tokens": usage.prompt_tokens,
                "completion_tokens": usage.completion_tokens,
                "total_tokens": usage.prompt_tokens + usage.completion_tokens,
                "prefix_reused_tokens": usage.prefix_reused_tokens,
            },
        }
        if self._calls is not None:
            outcome |= self._calls.fields
        if self.options.reasoning == "separate":
            outcome["reasoning"] = self._thoughts
        if self.options.reasoning != "inline":
            outcome["usage"]["reasoning_tokens"] = usage.reasoning_tokens
        if self._kept is not None and not self.options.stream:
            if self.options.include_token_ids:
                outcome["token_ids"] = [token.token_id for token in self._kept if token.sampled]
            if self.request.logprobs is not None:
                outcome["logprobs"] = [self._logprobs(token.logprobs) for token in self._kept if token.logprobs]
        if self.options.include_timing:
            timing = finished.timing
            outcome["timing"] = {"first_token_ms": _ms(timing.first_token_s), "total_ms": _ms(timing.total_s)}
        return outcome

    def model(self) -> ModelInfo:
        info = self._model(self.request.model)
        if info is None:
            raise RuntimeError("a generation without a model")
        return info

    def _new_calls(self, text: str = "") -> Calls:
        request, new_id = self.request, short_ids(self.request.id)
        return Calls(lambda: parser_for(request, self._model(request.model), new_id), text)

    def _init(self) -> bytes:
        info = self.model()
        model_info = {
            "version": info.architecture,
            "max_tokens": info.context_tokens,
            "quantization": info.quantization,
            "parameters": info.parameters,
        }
        return _dump("init", request_id=self.request.id, model=info.name, model_info=model_info)

    def _token(self, token: Token, text: str, position: int) -> bytes:
        options = self.options
        message: dict[str, Any] = {"type": "token", "token": token.said, "position": position}
        if options.reasoning == "separate":
            message["reasoning"] = token.thoughts
        if options.include_token_ids:
            message["token_id"] = token.token_id
        if options.include_generated_text:
            message["generated_text"] = text
        if token.logprobs is not None:
            message["logprobs"] = self._logprobs(token.logprobs)
        if options.include_timing:
            message["timing"] = {"token_ms": _ms(token.since_last_s), "total_ms": _ms(token.elapsed_s)}
        message["finish_reason"] = None
        message["finished"] = False
        return orjson.dumps(message)

    def _piece(self, text: str, finish_reason: str | None = None) -> bytes:
        """A token message without a generated token: the echoed prompt, or the end."""
        cumulative = {"generated_text": self._text} if self.options.include_generated_text else {}
        finished = finish_reason is not None
        return _dump("token", token=text, **cumulative, finish_reason=finish_reason, finished=finished)

    def _logprobs(self, logprobs: Logprobs) -> list[dict[str, Any]]:
        chosen = logprobs.chosen
        return [
            self._scored(scored)
            for scored in (chosen, *(other for other in logprobs.top if other.token_id != chosen.token_id))
        ]

    def _scored(self, scored: Scored) -> dict[str, Any]:
        token_id = {"token_id": scored.token_id} if self.options.include_token_ids else {}
        piece = scored.piece.decode(errors="replace")
        return {"token": piece, **token_id, "logprob": max(scored.logprob, MIN_LOGPROB)}


def status(operation: str, progress: int, message: str, **more: Any) -> bytes:
    """A status message; ``progress`` in percent."""
    return _dump("status", operation=operation, progress=progress, message=message, **more)


def error_message(error: RequestError, request_id: str | None, partial_text: str | None = None) -> bytes:
    name, recoverable, action = ERRORS[error.fault]
    more: dict[str, Any] = {}
    if request_id is not None:
        more["request_id"] = request_id
    if partial_text is not None:
        more["partial_text"] = partial_text
    if error.retry_after_s is not None:
        more["retry_after_ms"] = math.ceil(error.retry_after_s * 1000)
    return _dump("error", error=name, message=error.message, recoverable=recoverable, recovery_action=action, **more)


def _dump(kind: str, **values: Any) -> bytes:
    return orjson.dumps({"type": kind, **values})


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)


def _eta(seconds: float | None) -> dict[str, float]:
    return {} if seconds is None else {"eta_seconds": round(seconds, 3)}
