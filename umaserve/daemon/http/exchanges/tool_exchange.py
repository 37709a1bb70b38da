"""An HTTP request for text in which the daemon calls tools of MCP servers on the way."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from umaserve.core.errors import ModelAwaited, RequestError
from umaserve.core.requests import Generate
from umaserve.core.server_tools import CallResult
from umaserve.daemon.http.exchanges.text_exchange import TextExchange
from umaserve.dialects.http import CallingBody
from umaserve.dialects.parameters import with_headers


class ToolExchange(TextExchange):
    """Exchange as ``TextExchange``, whose body may have calls made, whose results the model then gets."""

    _reply: CallingBody
    _request_id = ""
    _n_awaited = 0
    """Calls that have no result yet."""

    def _generate(self, requests: Sequence[Generate]) -> None:
        self._request_id = requests[0].id
        if self._reply.take_calls():
            self._services.models.admit(self._caller, self._loop.now())
            self._make_calls()
        else:
            super()._generate(requests)

    def _end_request(self) -> None:
        super()._end_request()
        if not self.ended:
            self._make_calls()

    def _make_calls(self) -> None:
        """Begin the calls that the body wants."""
        calls = self._reply.take_calls()
        self._n_awaited = len(calls)
        for number, call in calls.items():
            take = self.sink(functools.partial(self._called, number))
            cancel = self._services.tool_servers.call(call, self._caller, self._request_id, take)
            self._parts.append(_Call(cancel))

    def _called(self, number: int, result: CallResult) -> None:
        self._unsent += self._reply.called(number, result)
        if self._reply.streaming:
            self._flush()
        self._n_awaited -= 1
        if self._reply.done:
            self._finish()
        elif not self._n_awaited:
            self._go_on()

    def _go_on(self) -> None:
        """Have the model told what the calls have returned."""
        fail = functools.partial(self._fail, 0)
        try:
            request = with_headers(self._reply.next_request(), self._request_headers)
            self._continue_with(request)
        except RequestError as error:
            fail(error)

    def _continue_with(self, request: Generate) -> None:
        try:
            self.generate(request, functools.partial(self._take, 0), admitted=True)
        except ModelAwaited as awaited:
            again = functools.partial(self._continue_with, request)
            self.when_loaded(awaited.model, again, functools.partial(self._fail, 0))


class _Call:
    """A call that runs, as a part of its exchange."""

    def __init__(self, cancel: Callable[[], None]) -> None:
        self._cancel = cancel

    def hold(self) -> None:
        """Do nothing: a result is short."""

    def release(self) -> None:
        """Do nothing, likewise."""

    def abandon(self) -> None:
        """Cancel it, unless it has ended."""
        self._cancel()
