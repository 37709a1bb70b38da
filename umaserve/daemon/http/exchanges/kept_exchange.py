"""An HTTP request for a response that may go on in the background, where its client comes back for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from umaserve.core.errors import Fault, RequestError
from umaserve.daemon.http.exchanges.tool_exchange import ToolExchange
from umaserve.dialects.http import KeptBody


class KeptExchange(ToolExchange):
    """Exchange for a response that is kept, as ``ToolExchange``. A body that goes on in the background is replied to at
    once, and a lost connection is none of its concerns."""

    _reply: KeptBody

    def start(self, content: bytes) -> None:
        super().start(content)
        if self.ended or not self._reply.background:
            return
        self._reply.go_on(self.abandon)
        self._respond()
        self._responder = _Nobody(self._reply.fail)
        # What fails from now on is told by the response itself.
        self._begun = True
        # The connection is free for other requests, which have its share of the budget.
        self._share.keep(0)
        self._share = self._services.input_budget.share(None)
        self._share.keep(len(content))


class _Nobody:
    """Takes what the client of a response in the background isn't there for."""

    congested = False

    def __init__(self, fail: Callable[[int, RequestError], object]) -> None:
        self._fail = fail

    def respond(self, status: int, headers: Sequence[tuple[str, str]], body: bytes) -> None:
        """Do nothing: the body is kept."""

    def begin(self, status: int, headers: Sequence[tuple[str, str]]) -> None:
        """Do nothing: a response in the background isn't streamed."""

    def write(self, data: bytes) -> None:
        """Do nothing: nothing is streamed."""

    def end(self) -> None:
        """Do nothing: nothing was begun."""

    def abort(self) -> None:
        """Fail the response, after a bug of ours."""
        self._fail(0, RequestError(Fault.DECODE_FAILED, "request", "internal error; see the server's log"))
