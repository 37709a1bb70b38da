"""The seam between a link to a relay and what answers the relay's requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from umaserve.wire.relay_messages import Request, TokenCounts


class Reply(Protocol):
    """Where one request's answer goes: chunks or none, then exactly one ``complete``, unless the job is aborted."""

    def chunk(self, text: str, status: int, headers: Mapping[str, str]) -> None:
        """Some more of the body of an answer that comes in parts, whose head is the same with each of them; for a
        WebSocket one frame to the client."""

    def complete(
        self, status: int, headers: Mapping[str, str], body: str, token_counts: TokenCounts | None = None
    ) -> None:
        """The end. Without chunks before it, ``body`` is the whole answer; after chunks it is empty, and a status of
        400 or more says that the answer has broken off."""


class Job(Protocol):
    """One request at work."""

    def abort(self) -> None:
        """Nobody wants the answer any more; its reply hears nothing from here on."""

    def pause(self, paused: bool) -> None:
        """Whether to hold the output, since the reader is behind; what is under way may still come."""

    def frame(self, text: str) -> None:
        """One more message of a WebSocket's client."""


class Backend(Protocol):
    """What answers."""

    @property
    def features(self) -> Sequence[str]:
        """What it can do beyond the contract, by the names in ``relay_messages``."""

    @property
    def models(self) -> Sequence[str]:
        """The names of those that it has now."""

    @property
    def load(self) -> int:
        """Requests that it is at work on or that wait for it, whoever sent them."""

    def start(self, request: Request, reply: Reply) -> Job | None:
        """``None`` where ``reply`` has its end already, which it may have before this returns."""

    def refresh(self, done: Callable[[], None]) -> None:
        """Look anew which models there are; ``done`` is called when ``models`` has them, maybe before this returns."""
