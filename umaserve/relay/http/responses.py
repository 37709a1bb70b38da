"""OpenAI's responses and conversations at a relay, which keeps them: its workers don't.

A worker gets all items of a conversation with each request. So each one may go to any worker, of whatever make, and one
that is lost takes none with it.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import orjson

from umaserve.core.errors import RequestError
from umaserve.dialects.parameters import PRIORITY_HEADER
from umaserve.dialects.responses import conversations, pages
from umaserve.dialects.responses.keeping import RELAY_HEADER, Keeping, compacting, keeping
from umaserve.dialects.responses.kept import MAX_BYTES_IN_ALL, AllKept, TenantsKept
from umaserve.dialects.routes import path_pattern
from umaserve.http.connection import JSON, HttpConnection, Serve
from umaserve.net.input_budget import InputBudget
from umaserve.net.loop import Loop
from umaserve.relay.http.background import BackgroundReply
from umaserve.relay.http.bodies import read_json
from umaserve.relay.http.exchange import RelayExchange
from umaserve.relay.http.intake import Intake
from umaserve.relay.http.kept_reply import Keeper, KeptReply
from umaserve.relay.pool.pool import Pool
from umaserve.relay.pool.request import Client, RelayedRequest
from umaserve.wire.http_head import Request

COUNT = f"{pages.PATH}/input_tokens"
COMPACT = f"{pages.PATH}/compact"
RESPONSES = frozenset((pages.PATH, "/responses", COUNT, COMPACT))
"""The paths whose bodies are relayed; the relay answers those below by itself."""
FORGET_S = 60.0
_OURS = ("previous_response_id", "conversation", "background")
"""Fields that mean something to the relay only."""

_Make = Callable[[TenantsKept, Request], pages.Reply]

_PAGES: Mapping[str, Mapping[str, _Make]] = {
    "": {"GET": pages.retrieve, "DELETE": pages.delete},
    "/input_items": {"GET": pages.input_items},
    "/cancel": {"POST": pages.cancel},
}
"""Handlers of a response's pages, by what follows its id in the path, then by method."""


def _of_conversation(make: Callable[[conversations.Asked], pages.Reply]) -> _Make:
    return lambda kept, request: make(
        conversations.Asked(kept, request, secrets.token_hex(16), int(time.time())),
    )


_CONVERSATIONS: Mapping[re.Pattern[str], Mapping[str, _Make]] = {
    path_pattern(path): {method: _of_conversation(make) for method, make in methods.items()}
    for path, methods in sorted(conversations.METHODS.items(), reverse=True)
}
"""Handlers of conversations' pages, as ``_PAGES``, by what matches a whole path: the longest first, which says most."""


class Responses:
    """Responses of all clients."""

    def __init__(self, loop: Loop, pool: Pool, intake: Intake, budget: InputBudget) -> None:
        self._kept = AllKept(loop.now, MAX_BYTES_IN_ALL)
        self._loop = loop
        self._pool = pool
        self._intake = intake
        self._budget = budget
        self._forget_old()

    def find(self, path: str, tenant: Callable[[HttpConnection, Request], str]) -> tuple[Sequence[str], Serve] | None:
        """The methods and the handler of a path of a response or of conversations; ``None`` where it is none.
        ``tenant``: whose a request may see; it may raise ``RequestError``."""
        by_method = next((methods for known, methods in _CONVERSATIONS.items() if known.fullmatch(path)), None)
        if by_method is None:
            response_id, slash, rest = path.removeprefix(f"{pages.PATH}/").partition("/")
            by_method = _PAGES.get(slash + rest)
            if not path.startswith(f"{pages.PATH}/") or not response_id or by_method is None:
                return None

        def show(connection: HttpConnection, request: Request) -> None:
            make = by_method["GET" if request.method == "HEAD" else request.method]
            status, content_type, body = make(self._kept.of(tenant(connection, request)), request)
            connection.respond(status, [("Content-Type", content_type)], body)

        return (*by_method, "HEAD") if "GET" in by_method else tuple(by_method), show

    def relay(self, connection: HttpConnection, request: Request, client_name: str, tenant: str) -> None:
        """Relay a request to one of ``RESPONSES``; raises ``RequestError``."""
        body, all_kept = read_json(request.body), self._kept.of(tenant)
        fields = body.fields
        exchange = RelayExchange(connection, self._pool)
        try:
            asked = (compacting if request.path == COMPACT else keeping)(fields, all_kept)
            new_id = f"resp_{secrets.token_hex(16)}"
            counts = request.path == COUNT
            own = None if counts else asked.own(new_id, len(request.body))
            continued = None if counts else asked.continued(new_id)
        except RequestError:
            if any(map(fields.values.get, _OURS)):
                raise
            # The worker says what is wrong with it.
            self._send(connection, exchange, self._intake.of_json(request, body, client_name, exchange))
            return
        shown = asked.shown(own)

        def new_request(client: Client) -> RelayedRequest:
            changed = _for_worker(fields.values, asked)
            relayed = self._intake.of_json(request, body, client_name, client, changed, _turns(asked))
            told = {RELAY_HEADER: orjson.dumps(shown).decode()}
            # Nobody waits for it at a connection.
            default = {PRIORITY_HEADER: "background"} if asked.background else {}
            relayed.headers = {**default, **relayed.headers, **told}
            return relayed

        if request.path in (COUNT, COMPACT):
            self._send(connection, exchange, new_request(exchange))
        elif own is not None and asked.background:
            memory = self._budget.share(None)
            background = BackgroundReply(self._loop, self._pool, all_kept, own, continued, shown, memory, exchange.fail)
            response = background.start(new_request(background), fields.values)
            if response is not None:
                connection.respond(200, [JSON], response)
        else:
            self._send(connection, exchange, new_request(KeptReply(exchange, Keeper(all_kept, own, continued, shown))))

    @staticmethod
    def _send(connection: HttpConnection, exchange: RelayExchange, request: RelayedRequest) -> None:
        connection.pending = exchange
        exchange.start(request)

    def _forget_old(self) -> None:
        self._kept.expire()
        self._loop.call_later(FORGET_S, self._forget_old)


def _turns(asked: Keeping) -> Iterator[Mapping[str, Any]]:
    for item in asked.earlier:
        yield orjson.loads(item)
    for own in asked.items:
        yield own.values


def _for_worker(values: Mapping[str, Any], asked: Keeping) -> Mapping[str, Any] | None:
    """A body's fields without those that a worker can't know of; ``None`` where it has none of them."""
    if asked.previous is None and asked.conversation is None and not asked.background:
        return None
    rest = {key: value for key, value in values.items() if key not in _OURS}
    return {**rest, "input": [*map(orjson.Fragment, asked.earlier), *(item.values for item in asked.items)]}
