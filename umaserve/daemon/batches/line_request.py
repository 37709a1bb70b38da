"""One line of a batch as a request to its endpoint, which the code answers that answers it over HTTP."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from umaserve.core.errors import Fault, RequestError
from umaserve.daemon.http.exchanges.new_exchange import new_exchange
from umaserve.daemon.http.routes import Found, max_body_bytes
from umaserve.daemon.services import Services
from umaserve.dialects.batches.lines import Line, check_alone
from umaserve.dialects.http import ErrorReply
from umaserve.dialects.routes import Posted
from umaserve.sessions.caller import Caller

_MAY_PASS = (429, 503)
"""Statuses of refusals that have to do with what others ask, or with how much."""


class Answer(NamedTuple):
    """The reply to a line."""

    status: int
    body: bytes
    retry_after_s: float | None = None
    """After how long another attempt may succeed; ``None``: this is the answer."""


class LineRequest:
    """Runs one line; ``answered`` gets the reply, once, also while it is being started."""

    def __init__(
        self, services: Services, found: Found, caller: Caller, line: Line, answered: Callable[[Answer], None]
    ) -> None:
        """``found``: what answers the batch's endpoint."""
        self._services = services
        self._found = found
        self._line = line
        self._answered = answered
        self._ended = False
        endpoint = found.route.endpoint
        assert isinstance(endpoint, Posted)
        share = services.input_budget.share(None)
        self._exchange = new_exchange(
            services, services.facts(caller), endpoint, found.dialect.errors, self, caller, share, {}
        )

    def start(self) -> None:
        try:
            self._check()
        except RequestError as error:
            reply = self._found.dialect.errors.reply(error)
            self.respond(reply.status, reply.headers, reply.body)
        else:
            self._exchange.start(self._line.body)

    def _check(self) -> None:
        most, got = max_body_bytes(self._found.route, self._services.config), len(self._line.body)
        if got > most:
            raise RequestError(Fault.FRAME_TOO_LARGE, "body", f"expected at most {most} bytes, got {got}")
        check_alone(self._line.body)

    def abandon(self) -> None:
        """End it without an answer."""
        self._ended = True
        self._exchange.abandon()

    # -- as the exchange's responder -----------------------------------------------------------------------------

    congested = False

    def respond(self, status: int, headers: Sequence[tuple[str, str]], body: bytes) -> None:
        if self._ended:
            return
        self._ended = True
        after = next((value for name, value in headers if name.lower() == "retry-after"), None)
        may_pass = status in _MAY_PASS and after is not None
        self._answered(Answer(status, body, float(after) if may_pass and after is not None else None))

    def begin(self, status: int, headers: Sequence[tuple[str, str]]) -> None:
        raise RuntimeError("a line of a batch is answered as a whole")

    def write(self, data: bytes) -> None:
        raise RuntimeError("a line of a batch is answered as a whole")

    def end(self) -> None:
        raise RuntimeError("a line of a batch is answered as a whole")

    def abort(self) -> None:
        """Answer with an error, after a bug of ours."""
        error = RequestError(Fault.DECODE_FAILED, "request", "internal error; see the server's log")
        reply: ErrorReply = self._found.dialect.errors.reply(error)
        self.respond(reply.status, reply.headers, reply.body)
