"""Exceptions as values, so that they cross from one process to the other."""

from __future__ import annotations

from dataclasses import dataclass

from umaserve.core.errors import ContextExceeded, Fault, ModelError, RequestError, TooLarge
from umaserve.remote.values import Codec, Coder, Malformed


class EngineFailed(Exception):
    """Raised where the engine failed; the log says why, in lines of the engine's process."""


class CallbackFailed(Exception):
    """Raised where what the engine called back failed, in the daemon."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A ``RequestError`` as a value."""

    fault: Fault
    field: str
    problem: str
    retry_after_s: float | None


@dataclass(frozen=True, slots=True)
class TooLong:
    """A ``ContextExceeded`` as a value."""

    prompt_tokens: int
    context_tokens: int


@dataclass(frozen=True, slots=True)
class Unloadable:
    """A ``ModelError`` as a value."""

    message: str
    needed_bytes: int | None
    """Bytes that the model takes, if the error is ``TooLarge``; else ``None``."""


@dataclass(frozen=True, slots=True)
class Bug:
    """Any other exception, in the engine or in a callback."""

    in_callback: bool


Failure = Refused | TooLong | Unloadable | Bug


def failure_of(error: BaseException) -> Failure:
    match error:
        case ContextExceeded():
            return TooLong(error.prompt_tokens, error.context_tokens)
        case RequestError():
            return Refused(error.fault, error.field, error.problem, error.retry_after_s)
        case TooLarge():
            return Unloadable(str(error), error.needed_bytes)
        case ModelError():
            return Unloadable(str(error), None)
    return Bug(isinstance(error, CallbackFailed))


def error_of(failure: Failure) -> Exception:
    match failure:
        case Refused(fault, field, problem, retry_after_s):
            return RequestError(fault, field, problem, retry_after_s=retry_after_s)
        case TooLong(prompt_tokens, context_tokens):
            return ContextExceeded(prompt_tokens, context_tokens)
        case Unloadable(message, needed_bytes):
            return ModelError(message) if needed_bytes is None else TooLarge(message, needed_bytes)
        case Bug(in_callback):
            return CallbackFailed() if in_callback else EngineFailed("the engine failed: its log says why")


FAILURES = Codec({}).of(Failure)


def _read_request_error(value: object, tail: object) -> RequestError:
    error = error_of(FAILURES.read(value, tail))  # type: ignore[arg-type]
    if not isinstance(error, RequestError):
        raise Malformed(f"expected a request's error, got {error!r:.40}")
    return error


REQUEST_ERRORS = Coder(lambda error, tail: FAILURES.write(failure_of(error), tail), _read_request_error)
