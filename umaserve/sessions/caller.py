"""The caller: who sends a request."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from umaserve.core.requests import Priority
from umaserve.sessions.rates import RateLimits


@dataclass(frozen=True, slots=True)
class Caller:
    """Sender of a request, for logs and metrics, and what this caller is granted."""

    dialect: str
    peer: str
    key: str = ""
    priority: Priority = Priority.INTERACTIVE
    """The best class that its requests get."""
    limits: RateLimits | None = None
    """Rate limits of its own; ``None``: the server's."""
    models: tuple[str, ...] = ()
    """The models that it may use, by a name or alias of each; empty: all."""
    several: bool = False
    """Whether these are several clients that can't be told apart, and may not read each other's prompts."""
    operator: bool = False
    """Whether it may see and end what others run."""
    traceparent: str = ""
    """The trace that its requests are part of, unchecked (W3C Trace Context); empty: none."""

    def may_use(self, model: str, aliases: Collection[str] = ()) -> bool:
        """Whether it may use the model of this name."""
        return not self.models or not {model, *aliases}.isdisjoint(self.models)

    @property
    def tenant(self) -> str:
        return f"key:{self.key}" if self.key else self.peer
