"""The interface between a link to a relay and the backend that answers the relay's requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from umaserve.wire.relay_messages import Request, TokenCounts

_BINARY_TYPES = ("audio", "image", "video")


def is_text(headers: Mapping[str, str]) -> bool:
    """Whether a body with these headers is text: all but sounds, images, videos and unspecified bytes."""
    kind = next((value for name, value in headers.items() if name.lower() == "content-type"), "")
    kind = kind.partition(";")[0].strip().lower()
    return kind.partition("/")[0] not in _BINARY_TYPES and kind != "application/octet-stream"


class Reply(Protocol):
    """The receiver of one request's answer: any number of chunks, then exactly one ``complete``, unless the job is
    aborted."""

    def chunk(self, data: str | bytes, status: int, headers: Mapping[str, str]) -> None:
        """The next part of a streamed body, with the same status and headers each time; for a WebSocket, one message to
        the client. Bytes where the body is not text."""

    def complete(
        self, status: int, headers: Mapping[str, str], body: str | bytes, token_counts: TokenCounts | None = None
    ) -> None:
        """The end. Without earlier chunks ``body`` is the whole answer. After chunks it is empty, and a status of 400
        or more means that the answer is incomplete."""


class Job(Protocol):
    """One request in progress."""

    def abort(self) -> None:
        """Cancel the request; its reply is not called any more."""

    def pause(self, paused: bool) -> None:
        """Pause or resume the output, for a slow reader; output in flight may still follow a pause."""

    def frame(self, text: str) -> None:
        """One more message from a WebSocket's client."""

    def leave(self) -> None:
        """End once nothing is being answered, as the worker leaves the relay."""


class Backend(Protocol):
    """Answers the requests of relays."""

    @property
    def features(self) -> Sequence[str]:
        """Features that it has beyond the contract, by their names in ``relay_messages``."""

    @property
    def models(self) -> Sequence[str]:
        """The names of the models that it has now."""

    @property
    def contexts(self) -> Mapping[str, int]:
        """Tokens of prompt and answer together by the names of models, where they are known."""

    @property
    def load(self) -> int:
        """The number of requests that run or wait, from all sources."""

    def start(self, request: Request, reply: Reply) -> Job | None:
        """Start a request. ``reply`` may be called before this returns; ``None`` if it is already complete."""

    def refresh(self, done: Callable[[], None]) -> None:
        """Look up the models again; ``done`` is called once ``models`` is current, possibly before this returns."""
