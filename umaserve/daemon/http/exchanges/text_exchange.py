"""An HTTP request for text: its sessions, and pings while its stream is silent."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

from umaserve.core.errors import ModelAwaited, RequestError
from umaserve.core.requests import Generate
from umaserve.daemon.http.exchange import PING_S, HttpExchange, Responder
from umaserve.daemon.services import Services
from umaserve.dialects.http import Body
from umaserve.dialects.parameters import with_headers
from umaserve.net.input_budget import InputShare
from umaserve.sessions.caller import Caller


class TextExchange(HttpExchange):
    """Runs the requests of one body."""

    _reply: Body

    def __init__(
        self,
        services: Services,
        responder: Responder,
        body: Body,
        caller: Caller,
        share: InputShare,
        headers: Mapping[str, str],
    ) -> None:
        """``headers``: the request's."""
        super().__init__(services, responder, body, caller, share)
        self._request_headers = headers
        self._arrived_at: float | None = None

    def start(self, content: bytes) -> None:
        """Read the request's body and start what it asks for."""
        self._arrived_at = self._loop.now() if self._arrived_at is None else self._arrived_at
        try:
            self._start(content)
        except ModelAwaited as awaited:
            self._share.keep(len(content))
            self.when_loaded(awaited.model, lambda: self.start(content), functools.partial(self._fail, 0))
        except RequestError as error:
            self._fail(0, error)

    def _start(self, content: bytes) -> None:
        requests = [with_headers(request, self._request_headers) for request in self._reply.receive(content)]
        if not requests:
            self._services.models.admit(self._caller, self._loop.now())
            self.end()
            self._respond()
            return
        self._share.keep(len(content))
        self._generate(requests)
        self._ping_later()

    def _generate(self, requests: Sequence[Generate]) -> None:
        # One request of its sender's, whatever the number of choices that it asks for.
        for index, request in enumerate(requests):
            take = functools.partial(self._take, index)
            self.generate(request, take, admitted=index > 0, arrived_at=self._arrived_at)

    @property
    def streams(self) -> bool:
        """Whether its requests have begun, and are answered by a stream."""
        return bool(self.sessions) and self._reply.streaming

    def _ping_later(self) -> None:
        if self._reply.streaming:
            self._ping = self._loop.call_later(PING_S, self._send_ping)

    def _send_ping(self) -> None:
        self._ping = None
        # A reader that is behind has something to read.
        if not self._responder.congested:
            self._begin()
            self._responder.write(self._reply.ping())
        self._ping_later()
