"""The three kinds of failure: the client's request, the operator's set-up, and the model's file."""

from __future__ import annotations

import enum


class Fault(enum.Enum):
    """Why a request failed, in no dialect's words; each dialect maps these to its contract's own."""

    FRAME_TOO_LARGE = enum.auto()
    INVALID_JSON = enum.auto()
    BAD_REQUEST = enum.auto()
    BUSY = enum.auto()
    PROMPT_TOO_LARGE = enum.auto()
    CONTEXT_EXCEEDED = enum.auto()
    TOO_MANY_SESSIONS = enum.auto()
    CONTENT_FILTERED = enum.auto()
    NOT_FOUND = enum.auto()
    UNAUTHORIZED = enum.auto()
    RATE_LIMITED = enum.auto()
    MEMORY_PRESSURE = enum.auto()
    QUEUE_FULL = enum.auto()
    TIMED_OUT = enum.auto()
    MODEL_NOT_LOADED = enum.auto()
    DECODE_FAILED = enum.auto()
    SHUTTING_DOWN = enum.auto()


class RequestError(Exception):
    """What a client gets as its error reply.

    ``message`` names the field, the value's kind and what was expected. ``request_id`` is the client's own id where
    the request was read far enough to know it, ``retry_after_s`` the seconds until another try may succeed.
    """

    def __init__(
        self, fault: Fault, message: str, request_id: str | None = None, *, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.fault = fault
        self.message = message
        self.request_id = request_id
        self.retry_after_s = retry_after_s


class ConfigError(Exception):
    """The operator's flags, environment, file or socket can't be used: one line, exit status 2."""


class ModelError(Exception):
    """The model can't be loaded: one line, exit status 1."""
