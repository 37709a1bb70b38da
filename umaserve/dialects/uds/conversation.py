"""The two dialects of the Unix socket: JSON events in frames, and plain lines (contract: uds-framed-json)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import orjson

from umaserve.core.commands import Cancel, Command, GetMetrics
from umaserve.core.errors import Fault, RequestError
from umaserve.core.events import Finished, Metrics, Output, Token
from umaserve.core.requests import ChatTurn, Generate, Sampling
from umaserve.dialects.dialect import Reply
from umaserve.dialects.parameters import (
    RequestLimits,
    check_prompt_bytes,
    lora,
    max_tokens,
    model_name,
    sampling,
    stops,
    turn,
    with_targets,
    with_template_kwargs,
    with_thoughts,
)
from umaserve.dialects.parameters import prompt as read_prompt
from umaserve.dialects.schemas import MAX_ID_BYTES, MAX_TURNS, REASONING
from umaserve.wire.fields import Fields, bad_request, dump_capped, out_of_range, parse_json

CODES = {
    Fault.FRAME_TOO_LARGE: "E_PROTO_FRAME_TOO_LARGE",
    Fault.INVALID_JSON: "E_PROTO_INVALID_JSON",
    Fault.BAD_REQUEST: "E_PROTO_BAD_REQUEST",
    Fault.NOT_SUPPORTED: "E_PROTO_BAD_REQUEST",
    Fault.BUSY: "E_PROTO_BUSY",
    Fault.PROMPT_TOO_LARGE: "E_LIMIT_PROMPT_TOO_LARGE",
    Fault.CONTEXT_EXCEEDED: "E_LIMIT_PROMPT_TOO_LARGE",
    Fault.TOO_MANY_SESSIONS: "E_LIMIT_SESSIONS",
    Fault.CONTENT_FILTERED: "E_CONTENT_FILTER",
    Fault.NOT_FOUND: "E_PROTO_BAD_REQUEST",
    Fault.UNAUTHORIZED: "E_UNAUTHORIZED",
    Fault.RATE_LIMITED: "E_LIMIT_RATE",
    Fault.MEMORY_PRESSURE: "E_LIMIT_MEMORY",
    Fault.QUEUE_FULL: "E_LIMIT_SESSIONS",
    Fault.TIMED_OUT: "E_RUNTIME_TIMEOUT",
    Fault.MODEL_NOT_FOUND: "E_PROTO_BAD_REQUEST",
    Fault.MODEL_NOT_LOADED: "E_RUNTIME_MODEL",
    Fault.DECODE_FAILED: "E_RUNTIME_DECODE",
    Fault.SHUTTING_DOWN: "E_SHUTDOWN",
    Fault.ENDED: "E_RUNTIME_ENDED",
}

MAX_METADATA_BYTES = 1024
DEFAULT_MAX_TOKENS = 512


@dataclass(slots=True)
class _Stream:
    """State of the running request that the dialect remembers."""

    common: dict[str, Any]
    keep_alive: bool
    whole_text: list[str] | None
    reasoning: str = "inline"
    """Form of the thoughts, one of ``REASONING``."""
    whole_thoughts: list[str] = field(default_factory=list)


class JsonDialect:
    """JSON events: one request at a time. ``error`` ends the connection, and so does ``eos`` unless it is kept
    alive."""

    ready = True

    def __init__(self, limits: RequestLimits, keep_alive: bool) -> None:
        self._limits = limits
        self._keep_alive = keep_alive
        self._stream: _Stream | None = None

    def receive(self, payload: bytes) -> Command:
        """The command in ``payload``; raises ``RequestError``, with the client's id if it sent one."""
        values = parse_json(payload)
        if not isinstance(values, dict):
            raise bad_request("payload", "an object", values)
        request_id = values.get("id")
        try:
            return self._command(Fields(values))
        except RequestError as error:
            if isinstance(request_id, str) and len(request_id.encode()) <= MAX_ID_BYTES:
                error.request_id = request_id
            raise

    def _command(self, fields: Fields) -> Command:
        if fields.choice("event", {"cancel": True}, False):
            return Cancel(_required_id(fields))
        if self._stream is not None:
            raise RequestError(
                Fault.BUSY, "request", "another request is running on this connection; wait for its eos, or cancel it"
            )
        kind = fields.choice("type", {"metrics": "metrics", "generate": "generate"}, "generate")
        wish = fields.boolean("keep_alive", None)
        if kind == "metrics":
            # By the contract they end the session, whatever the server does after other requests.
            self._stream = _Stream({}, bool(wish), None)
            return GetMetrics()
        request = with_template_kwargs(_generate(fields, self._limits), fields)
        metadata = _metadata(fields)
        common = {"id": request.id} if metadata is None else {"id": request.id, "metadata": metadata}
        reasoning = fields.one_of("reasoning", REASONING) or "inline"
        keep_alive = self._keep_alive if wish is None else wish
        self._stream = _Stream(common, keep_alive, None if fields.boolean("stream", True) else [], reasoning)
        return with_thoughts(request, fields, split=reasoning != "inline")

    def send(self, output: Output) -> Reply | None:
        """The event for ``output``; ``None`` for outputs without one, such as tokens of a request that doesn't
        stream."""
        stream = self._stream
        if stream is None:
            raise RuntimeError("output without a request")
        match output:
            case Token():
                if stream.whole_text is not None:
                    stream.whole_text.append(output.said)
                    stream.whole_thoughts.append(output.thoughts)
                    return None
                thoughts = {"reasoning": output.thoughts} if stream.reasoning == "separate" else {}
                return _event("token", False, **stream.common, text=output.said, **thoughts, token_id=output.token_id)
            case Finished():
                self._stream = None
                text = {} if stream.whole_text is None else {"text": "".join(stream.whole_text)}
                if text and stream.reasoning == "separate":
                    text["reasoning"] = "".join(stream.whole_thoughts)
                usage = {
                    "prompt_tokens": output.usage.prompt_tokens,
                    "completion_tokens": output.usage.completion_tokens,
                    "total_tokens": output.usage.prompt_tokens + output.usage.completion_tokens,
                    "prefix_reused_tokens": output.usage.prefix_reused_tokens,
                }
                if stream.reasoning != "inline":
                    usage["reasoning_tokens"] = output.usage.reasoning_tokens
                reason = output.reason.value
                return _event("eos", not stream.keep_alive, **stream.common, reason=reason, **text, usage=usage)
            case Metrics():
                self._stream = None
                return _event("metrics", not stream.keep_alive, **_told(output))
            case _:
                return None

    def refuse(self, error: RequestError) -> Reply:
        return self.fail(error)

    def fail(self, error: RequestError) -> Reply:
        """The error event. It ends the connection, except for a request sent while another one runs."""
        common: dict[str, Any] = {} if error.request_id is None else {"id": error.request_id}
        busy = error.fault is Fault.BUSY
        if self._stream is not None and not busy:
            common = self._stream.common or common
            self._stream = None
        return _event("error", not busy, **common, code=CODES[error.fault], message=error.message)


class LineDialect:
    """Lines for people: a line is a prompt, the answer is its text and a newline; the next line waits until then."""

    def __init__(self, limits: RequestLimits) -> None:
        self._limits = limits
        self._running = False
        self._mid_line = False

    @property
    def ready(self) -> bool:
        """Whether the next line may be received."""
        return not self._running

    def receive(self, line: bytes) -> Command:
        try:
            prompt = line.decode()
        except UnicodeDecodeError as error:
            raise RequestError(Fault.BAD_REQUEST, "prompt", f"expected UTF-8, got {error.reason}") from None
        if prompt == "metrics":
            self._running = True
            return GetMetrics()
        request = Generate("", read_prompt(prompt, self._limits), _default_tokens(self._limits))
        self._running = True
        return request

    def send(self, output: Output) -> Reply | None:
        match output:
            case Token():
                self._mid_line = self._mid_line or bool(output.text)
                return Reply(output.text.encode(), False)
            case Finished():
                self._running = self._mid_line = False
                return Reply(b"\n", False)
            case Metrics():
                self._running = False
                return Reply(orjson.dumps(_told(output)) + b"\n", False)
            case _:
                return None

    def refuse(self, error: RequestError) -> Reply:
        return self.fail(error)

    def fail(self, error: RequestError) -> Reply:
        """One line with the error. It ends the connection after an oversized line, when full, and on shutdown."""
        message = " ".join(error.message.split())
        start = "\n" if self._mid_line else ""
        self._running = self._mid_line = False
        final = error.fault in (Fault.FRAME_TOO_LARGE, Fault.TOO_MANY_SESSIONS, Fault.SHUTTING_DOWN)
        return Reply(f"{start}error: {CODES[error.fault]}: {message}\n".encode(), final)


def _told(metrics: Metrics) -> dict[str, Any]:
    """The flat names, and one object more where there are models."""
    models = {
        name: {**values, "aliases": metrics.aliases[name]} if name in metrics.aliases else values
        for name, values in metrics.models.items()
    }
    return {**metrics.values, "models": models} if models else {**metrics.values}


def _event(event: str, close: bool, **values: Any) -> Reply:
    return Reply(orjson.dumps({"event": event, **values}), close)


def _required_id(fields: Fields) -> str:
    value = fields.string("id", max_bytes=MAX_ID_BYTES)
    if value is None:
        raise bad_request(fields.name("id"), "a non-empty string", None)
    return value


def _generate(fields: Fields, limits: RequestLimits) -> Generate:
    request = Generate(
        id=_required_id(fields),
        prompt=_prompt_or_turns(fields, limits),
        max_tokens=max_tokens(fields, "max_tokens", limits, _default_tokens(limits)),
        sampling=sampling(fields, Sampling()),
        stop=stops(fields),
        cache_prompt=fields.boolean("cache_prompt", True),
        lora=lora(fields),
        model=model_name(fields),
    )
    return with_targets(request, fields)


def _default_tokens(limits: RequestLimits) -> int:
    """The contract's "server limit": the operator's cap if there is one, else our default."""
    return limits.max_tokens or DEFAULT_MAX_TOKENS


def _metadata(fields: Fields) -> dict[str, Any] | None:
    metadata = fields.object("metadata")
    if metadata is None:
        return None
    dump_capped(metadata.values, fields.name("metadata"), MAX_METADATA_BYTES)
    return dict(metadata.values)


def _prompt_or_turns(fields: Fields, limits: RequestLimits) -> str | tuple[ChatTurn, ...]:
    chat = fields.values.get("chat")
    turns: tuple[ChatTurn, ...] = ()
    if isinstance(chat, list):
        if not 1 <= len(chat) <= MAX_TURNS:
            raise out_of_range(fields.name("chat"), f"1 to {MAX_TURNS} messages", len(chat))
        turns = tuple(turn(item, f"{fields.name('chat')}[{i}]") for i, item in enumerate(chat))
    elif chat is not None and not isinstance(chat, bool):
        raise bad_request(fields.name("chat"), "true, false or an array of messages", chat)
    if turns and fields.values.get("prompt") is None:
        check_prompt_bytes(sum(len(turn.content.encode()) for turn in turns), limits)
        return turns
    prompt = read_prompt(fields.values.get("prompt"), limits)
    if not turns and not chat:
        return prompt
    turns += (ChatTurn("user", prompt),)
    check_prompt_bytes(sum(len(turn.content.encode()) for turn in turns), limits)
    return turns
