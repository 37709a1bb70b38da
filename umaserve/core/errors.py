"""The three kinds of failure: the client's request, the operator's set-up, and the model's file."""

from __future__ import annotations

import enum


class Fault(enum.Enum):
    """Why a request failed, in no dialect's words; each dialect maps these to its contract's own."""

    FRAME_TOO_LARGE = enum.auto()
    INVALID_JSON = enum.auto()
    BAD_REQUEST = enum.auto()
    NOT_SUPPORTED = enum.auto()
    """The model can't do it, whatever the request's values."""
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
    MODEL_NOT_FOUND = enum.auto()
    """The daemon has no model of that name."""
    MODEL_NOT_LOADED = enum.auto()
    DECODE_FAILED = enum.auto()
    SHUTTING_DOWN = enum.auto()
    ENDED = enum.auto()
    """The operator has ended it."""


class RequestError(Exception):
    """An error that a client gets as its reply: ``problem`` says of ``field`` what was expected and what came.

    ``field`` is a request's field by its path ("messages[0].content"), or "request", "payload" and the like where it is
    none; it is empty where the problem is in somebody else's words. ``request_id`` is the client's own id where the
    request was read far enough to know it, ``retry_after_s`` the seconds until another try may succeed.
    """

    def __init__(
        self,
        fault: Fault,
        field: str,
        problem: str,
        request_id: str | None = None,
        *,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(field, problem)
        self.fault = fault
        self.field = field
        self.problem = problem
        self.request_id = request_id
        self.retry_after_s = retry_after_s

    @classmethod
    def of_text(cls, fault: Fault, message: str) -> RequestError:
        """Make an error from a text that may name its field before a colon."""
        field, colon, problem = message.partition(": ")
        return cls(fault, field, problem) if colon and " " not in field else cls(fault, "", message)

    @property
    def message(self) -> str:
        """The field and the problem in one line."""
        return f"{self.field}: {self.problem}" if self.field else self.problem

    def copy(self) -> RequestError:
        """Copy for another request, which has an id of its own."""
        return RequestError(self.fault, self.field, self.problem, retry_after_s=self.retry_after_s)

    def __str__(self) -> str:
        return self.message


class ContextExceeded(RequestError):
    """A prompt that leaves no room for an answer in a context of ``context_tokens``.

    Agents shorten a conversation where they find words of OpenAI's, vLLM's or llama.cpp's server in the message.
    """

    def __init__(self, prompt_tokens: int, context_tokens: int) -> None:
        got = f"expected at most {context_tokens - 1} tokens, got {prompt_tokens}"
        why = f"This model's maximum context length is {context_tokens} tokens, and an answer takes at least one"
        problem = f"{got}. {why}: the request exceeds the available context size"
        super().__init__(Fault.CONTEXT_EXCEEDED, "prompt", problem)
        self.prompt_tokens = prompt_tokens
        self.context_tokens = context_tokens

    def copy(self) -> ContextExceeded:
        return ContextExceeded(self.prompt_tokens, self.context_tokens)


class PreviousNotFound(RequestError):
    """The response that another one was to follow is not there, or no longer."""

    def __init__(self, problem: str) -> None:
        super().__init__(Fault.BAD_REQUEST, "previous_response_id", problem)


def shutting_down() -> RequestError:
    """The daemon drains: another one may take the request."""
    return RequestError(Fault.SHUTTING_DOWN, "request", "the server is shutting down; try again later")


class ModelNotFound(RequestError):
    """The daemon has no model with the name ``model``."""

    def __init__(self, model: str) -> None:
        known = "/v1/models lists the models, and the operator can add this name as an alias of one"
        problem = f'the model "{model[:64]}" does not exist: {known}'
        super().__init__(Fault.MODEL_NOT_FOUND, "model", problem)
        self.model = model

    def copy(self) -> ModelNotFound:
        return ModelNotFound(self.model)


def model_not_granted(model: str) -> RequestError:
    """The error for a model that the client's key may not use."""
    expected = "expected a model that GET /v1/models lists for this key"
    return RequestError(Fault.MODEL_NOT_FOUND, "model", f"{expected}, got {model[:64]}")


class ModelAwaited(RequestError):
    """A request that can't be read before the model that it names is loaded; ``model`` is that name."""

    def __init__(self, model: str) -> None:
        super().__init__(Fault.MODEL_NOT_LOADED, "model", "still loading; try again later", retry_after_s=1.0)
        self.model = model

    def copy(self) -> ModelAwaited:
        return ModelAwaited(self.model)


class ConfigError(Exception):
    """The operator's flags, environment, file or socket can't be used: one line, exit status 2."""


class ModelError(Exception):
    """The model can't be loaded: one line, exit status 1."""


class TooLarge(ModelError):
    """The model takes more memory than is available."""

    def __init__(self, message: str, needed_bytes: int) -> None:
        super().__init__(message)
        self.needed_bytes = needed_bytes
