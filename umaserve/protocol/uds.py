"""The two dialects of the Unix socket: JSON events in frames, and plain lines (contract: uds-framed-json)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from umaserve.errors import Fault, RequestError
from umaserve.messages import (
    Cancel,
    ChatTurn,
    Command,
    Finished,
    Generate,
    GetMetrics,
    Metrics,
    Output,
    Priority,
    Sampling,
    Token,
)
from umaserve.protocol.fields import Fields, bad_request, number, out_of_range, parse_json, string

CODES = {
    Fault.FRAME_TOO_LARGE: "E_PROTO_FRAME_TOO_LARGE",
    Fault.INVALID_JSON: "E_PROTO_INVALID_JSON",
    Fault.BAD_REQUEST: "E_PROTO_BAD_REQUEST",
    Fault.BUSY: "E_PROTO_BUSY",
    Fault.PROMPT_TOO_LARGE: "E_LIMIT_PROMPT_TOO_LARGE",
    Fault.CONTEXT_EXCEEDED: "E_LIMIT_CONTEXT",
    Fault.TOO_MANY_SESSIONS: "E_LIMIT_SESSIONS",
    Fault.DECODE_FAILED: "E_RUNTIME_DECODE",
    Fault.SHUTTING_DOWN: "E_SHUTDOWN",
}

MAX_ID_BYTES = 256
MAX_METADATA_BYTES = 1024
MAX_GRAMMAR_BYTES = 64 * 1024
MAX_STOPS, MAX_STOP_BYTES = 16, 256
MAX_BIASES = 1024
MAX_TURNS = 1024
MAX_SEED = 2**32 - 2
MAX_SLO_MS = 3_600_000.0
ROLES = {role: role for role in ("system", "user", "assistant", "tool")}
PRIORITIES = {"interactive": Priority.INTERACTIVE, "background": Priority.BACKGROUND}


class Reply(NamedTuple):
    """A payload for the codec, and whether the connection ends with it."""

    payload: bytes
    close: bool


@dataclass(frozen=True, slots=True)
class Limits:
    """The server's caps that a dialect enforces; bytes and tokens."""

    max_prompt_bytes: int
    max_tokens: int


@dataclass(slots=True)
class _Stream:
    """What the dialect remembers of the request that runs."""

    common: dict[str, Any]
    keep_alive: bool
    whole_text: list[str] | None


class JsonDialect:
    """JSON events: one request at a time; ``eos`` ends the connection unless it is kept alive, ``error`` always."""

    ready = True

    def __init__(self, limits: Limits, keep_alive: bool) -> None:
        self._limits = limits
        self._keep_alive = keep_alive
        self._stream: _Stream | None = None

    def receive(self, payload: bytes) -> Command:
        """The command in ``payload``; raises ``RequestError`` with the client's id where it has one."""
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
            raise RequestError(Fault.BUSY, "request: one is running on this connection; wait for its eos, or cancel it")
        kind = fields.choice("type", {"metrics": "metrics", "generate": "generate"}, "generate")
        keep_alive = fields.boolean("keep_alive", self._keep_alive)
        if kind == "metrics":
            self._stream = _Stream({}, keep_alive, None)
            return GetMetrics()
        request = _generate(fields, self._limits)
        metadata = _metadata(fields)
        common = {"id": request.id} if metadata is None else {"id": request.id, "metadata": metadata}
        self._stream = _Stream(common, keep_alive, None if fields.boolean("stream", True) else [])
        return request

    def send(self, output: Output) -> Reply | None:
        """The event for ``output``, or ``None`` where the request asked for its text in one piece."""
        stream = self._stream
        if stream is None:
            raise RuntimeError("output without a request")
        match output:
            case Token():
                if stream.whole_text is not None:
                    stream.whole_text.append(output.text)
                    return None
                return _event("token", False, **stream.common, text=output.text, token_id=output.token_id)
            case Finished():
                self._stream = None
                text = {} if stream.whole_text is None else {"text": "".join(stream.whole_text)}
                usage = {
                    "prompt_tokens": output.usage.prompt_tokens,
                    "completion_tokens": output.usage.completion_tokens,
                    "total_tokens": output.usage.prompt_tokens + output.usage.completion_tokens,
                }
                reason = output.reason.value
                return _event("eos", not stream.keep_alive, **stream.common, reason=reason, **text, usage=usage)
            case Metrics():
                self._stream = None
                return _event("metrics", not stream.keep_alive, **output.values)

    def fail(self, error: RequestError) -> Reply:
        """The error event. It ends the connection, save for a request that came while another runs."""
        common: dict[str, Any] = {} if error.request_id is None else {"id": error.request_id}
        busy = error.fault is Fault.BUSY
        if self._stream is not None and not busy:
            common = self._stream.common or common
            self._stream = None
        return _event("error", not busy, **common, code=CODES[error.fault], message=error.message)


class LineDialect:
    """Lines for people: a line is a prompt, the answer its text and a newline; the next line waits its turn."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._running = False
        self._mid_line = False

    @property
    def ready(self) -> bool:
        """Whether the next line may be taken."""
        return not self._running

    def receive(self, line: bytes) -> Command:
        try:
            prompt = line.decode()
        except UnicodeDecodeError as error:
            raise RequestError(Fault.BAD_REQUEST, f"prompt: expected UTF-8, got {error.reason}") from None
        if prompt == "metrics":
            self._running = True
            return GetMetrics()
        request = Generate("", _prompt(prompt, self._limits))
        self._running = True
        return request

    def send(self, output: Output) -> Reply:
        match output:
            case Token():
                self._mid_line = self._mid_line or bool(output.text)
                return Reply(output.text.encode(), False)
            case Finished():
                self._running = self._mid_line = False
                return Reply(b"\n", False)
            case Metrics():
                self._running = False
                return Reply(orjson.dumps(dict(output.values)) + b"\n", False)

    def fail(self, error: RequestError) -> Reply:
        """One line. The connection goes on unless the next line's start is lost or the server ends."""
        message = " ".join(error.message.split())
        start = "\n" if self._mid_line else ""
        self._running = self._mid_line = False
        final = error.fault in (Fault.FRAME_TOO_LARGE, Fault.TOO_MANY_SESSIONS, Fault.SHUTTING_DOWN)
        return Reply(f"{start}error: {CODES[error.fault]}: {message}\n".encode(), final)


def _event(event: str, close: bool, **values: Any) -> Reply:
    return Reply(orjson.dumps({"event": event, **values}), close)


def _required_id(fields: Fields) -> str:
    value = fields.string("id", max_bytes=MAX_ID_BYTES)
    if value is None:
        raise bad_request(fields.name("id"), "a non-empty string", None)
    return value


def _generate(fields: Fields, limits: Limits) -> Generate:
    slo = fields.object("slo") or Fields({})
    ttft_ms = slo.number("target_ttft_ms", 0.0, MAX_SLO_MS, above_low=True)
    tbt_ms = slo.number("target_tbt_ms", 0.0, MAX_SLO_MS, above_low=True)
    return Generate(
        id=_required_id(fields),
        prompt=_prompt_or_turns(fields, limits),
        max_tokens=fields.integer("max_tokens", 1, limits.max_tokens),
        sampling=_sampling(fields),
        stop=fields.strings("stop", max_items=MAX_STOPS, max_bytes=MAX_STOP_BYTES),
        priority=fields.choice("priority", PRIORITIES, Priority.INTERACTIVE),
        target_ttft_s=None if ttft_ms is None else ttft_ms / 1000,
        target_tbt_s=None if tbt_ms is None else tbt_ms / 1000,
    )


def _sampling(fields: Fields) -> Sampling:
    default = Sampling()

    def number_or(key: str, low: float, high: float, otherwise: float, above_low: bool = False) -> float:
        value = fields.number(key, low, high, above_low=above_low)
        return otherwise if value is None else value

    top_k = fields.integer("top_k", 0, 2**20)
    grammar = fields.string("grammar", max_bytes=MAX_GRAMMAR_BYTES)
    json_schema = _json_schema(fields)
    if grammar is not None and json_schema is not None:
        raise RequestError(Fault.BAD_REQUEST, "grammar: expected to be absent where json_schema is given, got both")
    return Sampling(
        temperature=number_or("temperature", 0.0, 10.0, default.temperature),
        top_p=number_or("top_p", 0.0, 1.0, default.top_p, above_low=True),
        top_k=default.top_k if top_k is None else top_k,
        min_p=number_or("min_p", 0.0, 1.0, default.min_p),
        repeat_penalty=number_or("repeat_penalty", 0.0, 10.0, default.repeat_penalty, above_low=True),
        seed=fields.integer("seed", 0, MAX_SEED),
        logit_bias=_logit_bias(fields),
        grammar=grammar,
        json_schema=json_schema,
        ignore_eos=fields.boolean("ignore_eos", False),
    )


def _json_schema(fields: Fields) -> str | None:
    schema = fields.object("json_schema")
    if schema is None:
        return None
    text = _dump_capped(schema.values, fields.name("json_schema"), MAX_GRAMMAR_BYTES)
    return text.decode()


def _metadata(fields: Fields) -> dict[str, Any] | None:
    metadata = fields.object("metadata")
    if metadata is None:
        return None
    _dump_capped(metadata.values, fields.name("metadata"), MAX_METADATA_BYTES)
    return dict(metadata.values)


def _dump_capped(values: Any, field: str, max_bytes: int) -> bytes:
    expected = f"an object of at most {max_bytes} bytes as JSON, nested less than 200 deep"
    try:
        # orjson reads deeper nesting than it writes, and an event that carries the object nests it once more.
        text = orjson.dumps([values])[1:-1]
    except orjson.JSONEncodeError:
        raise out_of_range(field, expected, "a deeper one") from None
    if len(text) > max_bytes:
        raise out_of_range(field, expected, f"{len(text)} bytes")
    return text


def _logit_bias(fields: Fields) -> tuple[tuple[int, float], ...]:
    biases = fields.object("logit_bias")
    if biases is None:
        return ()
    if len(biases.values) > MAX_BIASES:
        raise out_of_range(fields.name("logit_bias"), f"at most {MAX_BIASES} tokens", len(biases.values))
    pairs = []
    for key, value in biases.values.items():
        if not re.fullmatch("[0-9]{1,9}", key):
            raise out_of_range(fields.name("logit_bias"), "token ids as keys", f'"{key[:32]}"')
        pairs.append((int(key), number(value, biases.name(key), -100.0, 100.0)))
    return tuple(pairs)


def _prompt(value: object, limits: Limits) -> str:
    prompt = string(value, "prompt")
    _check_prompt_bytes(len(prompt.encode()), limits)
    return prompt


def _check_prompt_bytes(n_bytes: int, limits: Limits) -> None:
    if n_bytes > limits.max_prompt_bytes:
        raise RequestError(
            Fault.PROMPT_TOO_LARGE, f"prompt: {n_bytes} bytes, expected at most {limits.max_prompt_bytes}"
        )


def _prompt_or_turns(fields: Fields, limits: Limits) -> str | tuple[ChatTurn, ...]:
    chat = fields.values.get("chat")
    turns: tuple[ChatTurn, ...] = ()
    if isinstance(chat, list):
        if not 1 <= len(chat) <= MAX_TURNS:
            raise out_of_range(fields.name("chat"), f"1 to {MAX_TURNS} messages", len(chat))
        turns = tuple(_turn(item, f"{fields.name('chat')}[{i}]") for i, item in enumerate(chat))
    elif chat is not None and not isinstance(chat, bool):
        raise bad_request(fields.name("chat"), "true, false or an array of messages", chat)
    if turns and fields.values.get("prompt") is None:
        _check_prompt_bytes(sum(len(turn.content.encode()) for turn in turns), limits)
        return turns
    prompt = _prompt(fields.values.get("prompt"), limits)
    if not turns and not chat:
        return prompt
    turns += (ChatTurn("user", prompt),)
    _check_prompt_bytes(sum(len(turn.content.encode()) for turn in turns), limits)
    return turns


def _turn(value: object, path: str) -> ChatTurn:
    fields = Fields.of(value, path)
    if fields.values.get("role") is None:
        raise bad_request(fields.name("role"), " or ".join(f'"{role}"' for role in ROLES), None)
    role = fields.choice("role", ROLES, "user")
    return ChatTurn(role, string(fields.values.get("content"), fields.name("content"), empty=True))
