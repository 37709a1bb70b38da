"""A reply that comes later, to a request that nothing else is asked of."""

from __future__ import annotations

from umaserve.core.errors import RequestError
from umaserve.dialects.http import JSON, ErrorShape
from umaserve.http.connection import HttpConnection


class LaterReply:
    """Waits for a page's body: a ``Pending``. What was begun goes on where its client leaves."""

    def __init__(self, connection: HttpConnection, errors: ErrorShape) -> None:
        self._connection: HttpConnection | None = connection
        self._errors = errors

    def answer(self, answer: bytes | RequestError) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if isinstance(answer, RequestError):
            status, body, headers = self._errors.reply(answer)
            connection.respond(status, [("Content-Type", JSON), *headers], body)
        else:
            connection.respond(200, [("Content-Type", JSON)], answer)

    def release(self) -> None:
        """Do nothing: the reply is whole."""

    def abandon(self) -> None:
        self._connection = None
