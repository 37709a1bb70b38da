"""A worker's response that the relay keeps, on its way to the client."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any

import orjson

from umaserve.dialects.responses.keeping import Continued
from umaserve.dialects.responses.kept import MAX_BYTES, StoredResponse, TenantsKept
from umaserve.relay.pool.request import Client
from umaserve.wire.event_stream import EventData, is_event_stream
from umaserve.wire.long_texts import as_string

log = logging.getLogger(__name__)

_ENDS = ("response.completed", "response.incomplete", "response.failed")
"""The types of the events that have the whole response."""
_ID = re.compile(r"[A-Za-z0-9_.-]{1,128}")


class Keeper:
    """Keeps one response, with what its worker doesn't know of it."""

    def __init__(
        self,
        all_kept: TenantsKept,
        own: StoredResponse | None,
        continued: Continued | None,
        shown: Mapping[str, Any],
    ) -> None:
        """``own``: what is kept of the request; ``None`` if nothing is. ``continued``: the conversation that it goes on
        with, if any. ``shown``: fields that replace the worker's."""
        self._all = all_kept
        self._own = own
        self._continued = continued
        self._shown = shown

    @property
    def keeps(self) -> bool:
        return self._own is not None or self._continued is not None

    def take(self, body: str | bytes) -> bytes | None:
        """The response in a body, as its client gets it; ``None`` where there is none."""
        try:
            return self.take_parsed(orjson.loads(body))
        except orjson.JSONDecodeError:
            return None

    def take_parsed(self, response: Any) -> bytes | None:
        """Take a parsed response, as ``take``. The response is kept, unless it was deleted meanwhile."""
        if not isinstance(response, dict) or not isinstance(response.get("output"), list):
            return None
        whole = {**response, **self._shown}
        if not isinstance(whole.get("id"), str) or not _ID.fullmatch(whole["id"]):
            return None
        try:
            content = orjson.dumps(whole, default=as_string)
            output = tuple(orjson.dumps(item) for item in whole["output"] if isinstance(item, dict))
        except orjson.JSONEncodeError:
            return None  # orjson reads deeper nesting than it writes.
        if self._continued is not None and whole.get("status") in ("completed", "incomplete"):
            self._continued.end(output)
            self._continued = None
        own = self._own
        if own is not None and not own.deleted:
            own.id, own.response, own.output = whole["id"], content, output
            self._all.responses.keep(own)
        return content


class KeptReply:
    """Implements ``relay.pool.request.Client``: passes all on to another client, and has the response kept.

    A stream passes as it is. Its response is kept before the client gets the end of the event that has all of it: the
    client's next request may come at once.
    """

    def __init__(self, client: Client, keeper: Keeper) -> None:
        self._client = client
        self._keeper = keeper
        self._events: EventData | None = None

    def respond(self, status: int, headers: Mapping[str, str], body: str | bytes) -> None:
        whole = self._keeper.take(body) if status == 200 else None
        self._client.respond(status, headers, body if whole is None else whole)

    def begin(self, status: int, headers: Mapping[str, str]) -> None:
        if status == 200 and self._keeper.keeps and is_event_stream(headers):
            self._events = EventData(MAX_BYTES)
        self._client.begin(status, headers)

    def write(self, chunk: str | bytes) -> None:
        if self._events is not None and isinstance(chunk, str):
            self._look(self._events, chunk)
        self._client.write(chunk)

    def end(self) -> None:
        self._client.end()

    def fail(self, status: int, error: str) -> None:
        self._client.fail(status, error)

    def _look(self, events: EventData, chunk: str) -> None:
        try:
            found = events.feed(chunk)
        except ValueError as error:
            log.info("a streamed response is not stored: %s", error)
            self._events = None
            return
        for data in found:
            # Most events are parts of the answer, and need not be parsed.
            if any(kind in data for kind in _ENDS):
                self._look_at(data)

    def _look_at(self, data: str) -> None:
        try:
            event = orjson.loads(data)
        except orjson.JSONDecodeError:
            return  # The client gets it as it is.
        if isinstance(event, dict) and event.get("type") in _ENDS:
            self._keeper.take_parsed(event.get("response"))
