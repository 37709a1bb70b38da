"""What a realtime session has computed before it asks for an answer."""

from __future__ import annotations

from collections.abc import Callable

from umaserve.core.errors import RequestError
from umaserve.core.events import Finished, Output, Placed
from umaserve.core.requests import Generate
from umaserve.daemon.exchange import Exchange
from umaserve.daemon.services import Services
from umaserve.sessions.caller import Caller


class WarmUpExchange(Exchange):
    """Computes one prompt, of which nothing is sent: the answer finds it cached."""

    def __init__(
        self, services: Services, caller: Caller, over: Callable[[], None], broken: Callable[[], None]
    ) -> None:
        """``over`` is called at the end."""
        super().__init__(services, caller, services.input_budget.share(None), broken)
        self._over = over
        self._answering = False

    def start(self, request: Generate) -> None:
        """Begin; raises ``RequestError`` where the request is refused."""
        self.generate(request, self._take)

    def drop(self, *, answering: bool) -> None:
        """Stop; where the answer is begun, only once this has its slot. Its cells are then what the answer goes on
        from. Before, its sound may be in work, which would end, since the answer isn't yet one that waits for it."""
        self._answering = True
        if self._unplaced <= 0 or not answering:
            self._end()

    def _take(self, output: Output | RequestError) -> None:
        match output:
            case Finished() | RequestError():
                self._end()
            case Placed() if self._answering:
                self._end()

    def _end(self) -> None:
        self.abandon()
        self._over()
