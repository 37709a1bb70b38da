"""The messages between a relay and its workers, in both directions (contract: relay-wire-traces)."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

FEATURES = FLOW, WEBSOCKET, BYTES, FORMS, MCP, REALTIME = "flow", "websocket", "bytes", "forms", "mcp", "realtime"
"""Features that a relay and a worker may agree on at registration beyond the contract: ``Flow``, WebSocket messages,
bodies of replies and of requests that are not text, calls of tools by the Model Context Protocol, and sessions of
OpenAI's Realtime API: WebSockets whose worker speaks first."""
WEBSOCKETS = (WEBSOCKET, REALTIME)
"""The features of requests that are WebSockets."""

# -- from the worker ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Register:
    """The first message. ``models`` is unfiltered (see ``accepted_models``); ``*`` means any model."""

    worker_name: str
    models: tuple[str, ...]
    max_concurrent: int
    protocol_version: str | None = None
    current_load: int = 0
    features: tuple[str, ...] = ()
    instance: str | None = None
    """Id of the worker, the same at all relays that it is connected to, and no other worker's; beyond the contract."""
    contexts: Mapping[str, int] | None = None
    """Tokens of prompt and answer together by the names of models, where they are known; beyond the contract."""


@dataclass(frozen=True, slots=True)
class ModelsUpdate:
    models: tuple[str, ...]
    current_load: int
    contexts: Mapping[str, int] | None = None
    """Tokens of each model's context, as in ``Register``."""


@dataclass(frozen=True, slots=True)
class ResponseChunk:
    """A part of a response's body, or one WebSocket message; a stream's first chunk may carry status and headers."""

    request_id: str
    chunk: str | bytes
    status_code: int | None = None
    headers: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class TokenCounts:
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class ResponseComplete:
    """The end of a response; ``body`` is the whole body of one that was not streamed."""

    request_id: str
    status_code: int
    headers: Mapping[str, str] | None = None
    body: str | bytes | None = None
    token_counts: TokenCounts | None = None


@dataclass(frozen=True, slots=True)
class Pong:
    current_load: int
    timestamp_unix_ms: int | None = None


@dataclass(frozen=True, slots=True)
class WorkerError:
    """A failure of one request; without ``request_id``, of the link."""

    code: str
    message: str
    request_id: str | None = None


FromWorker = Register | ModelsUpdate | ResponseChunk | ResponseComplete | Pong | WorkerError

# -- from the proxy ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RegisterAck:
    worker_id: str
    models: tuple[str, ...]
    protocol_version: str | None = None
    warnings: tuple[str, ...] = ()
    features: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Request:
    """A request for the backend; with the id of an open WebSocket, one more message from its client."""

    request_id: str
    model: str
    endpoint_path: str
    is_streaming: bool
    body: str | bytes
    headers: Mapping[str, str] | None = None


class CancelReason(enum.Enum):
    CLIENT_DISCONNECT = "client_disconnect"
    TIMEOUT = "timeout"
    GRACEFUL_SHUTDOWN = "graceful_shutdown"
    WORKER_DISCONNECT = "worker_disconnect"
    REQUEUE_EXHAUSTED = "requeue_exhausted"
    SERVER_SHUTDOWN = "server_shutdown"


@dataclass(frozen=True, slots=True)
class OtherReason:
    """A cancel reason that the contract doesn't list."""

    other: str


@dataclass(frozen=True, slots=True)
class Cancel:
    request_id: str
    reason: CancelReason | OtherReason


@dataclass(frozen=True, slots=True)
class Ping:
    timestamp_unix_ms: int | None = None


@dataclass(frozen=True, slots=True)
class GracefulShutdown:
    reason: str | None = None
    drain_timeout_secs: int | None = None


@dataclass(frozen=True, slots=True)
class ModelsRefresh:
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Flow:
    """Pause or resume one request's output, whose client reads slowly."""

    request_id: str
    paused: bool


FromProxy = RegisterAck | Request | Cancel | Ping | GracefulShutdown | ModelsRefresh | Flow
