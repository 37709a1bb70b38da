"""A dialect of a message connection: payloads to commands, and outputs to payloads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from umaserve.core.commands import Command
from umaserve.core.errors import RequestError
from umaserve.core.events import FinishReason, Output
from umaserve.wire.websocket import CloseCode

FINISH_REASONS: Mapping[FinishReason, str] = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.CANCELLED: "stop",
    FinishReason.CONTENT_FILTER: "content_filter",
}
"""Names of finish reasons in OpenAI's API and the contract of ``/generate``; neither has one for a cancelled stream."""


class Reply(NamedTuple):
    """A payload to send, whether to close the connection after it, and payloads to send before it.

    ``code`` is the WebSocket's close code.
    """

    payload: bytes
    close: bool = False
    before: Sequence[bytes] = ()
    code: int = CloseCode.NORMAL_CLOSURE


class Dialect(Protocol):
    """One connection's dialect, with at most one request at a time."""

    @property
    def ready(self) -> bool:
        """Whether the next payload may be received."""

    def receive(self, payload: bytes) -> Command | None:
        """The command in ``payload``, ``None`` if there is nothing to do; raises ``RequestError``."""

    def send(self, output: Output) -> Reply | None:
        """The payload for ``output``; ``None`` if the contract has no message for it."""

    def refuse(self, error: RequestError) -> Reply:
        """The payload for an error in a received payload."""

    def fail(self, error: RequestError) -> Reply:
        """The payload for the error that ended the running request."""
