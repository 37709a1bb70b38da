"""Where the reply to one HTTP request goes: an HTTP connection, or a relay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

JSON_TYPE = ("Content-Type", "application/json")
AS_IT_COMES = (
    ("Cache-Control", "no-store"),
    ("X-Accel-Buffering", "no"),  # or nginx would hold tokens back
)
"""Headers of a reply that comes in parts."""


class Responder(Protocol):
    """Takes one reply, whole or in parts."""

    @property
    def congested(self) -> bool: ...

    def respond(self, status: int, headers: Sequence[tuple[str, str]], body: bytes) -> None: ...

    def begin(self, status: int, headers: Sequence[tuple[str, str]]) -> None: ...

    def write(self, data: bytes) -> None: ...

    def end(self) -> None: ...

    def abort(self) -> None: ...
