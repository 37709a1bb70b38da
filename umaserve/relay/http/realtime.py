"""A client's session of OpenAI's Realtime API: a conversation that its worker begins, and whose answers are counted."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable

import orjson

from umaserve.core.errors import Fault, RequestError
from umaserve.dialects.openai.errors import error_fields
from umaserve.relay.http.conversation import Conversation
from umaserve.wire.fields import MAX_VALUES, parse_json
from umaserve.wire.websocket import CloseCode

MAX_EVENT_BYTES = 4 << 20
"""The largest event of a client's, and the most that is kept of them until the session begins."""
_CREATED = '{"type":"response.created"'
"""How the event begins by which a worker says that it answers, asked to or because the user has ended to speak."""


class RealtimeConversation(Conversation):
    """A session stays with one worker: what was said lies there. Its events pass unchanged both ways."""

    _max_frames = math.inf
    """A microphone's packets are many and small: only their bytes are limited."""

    def start(self, admit: Callable[[], None]) -> None:
        """Ask for a worker, which opens the session. ``admit`` counts an answer, or raises ``RequestError``."""
        self._admit = admit
        self._submit("")

    def write(self, chunk: str | bytes) -> None:
        super().write(chunk)
        if isinstance(chunk, str) and chunk.startswith(_CREATED):
            self._count(chunk)

    def _count(self, created: str) -> None:
        """Count the answer that has begun; one which the key's rates don't allow is cancelled."""
        try:
            self._admit()
        except RequestError as error:
            if error.fault is Fault.UNAUTHORIZED:
                self._say_and_close(error, CloseCode.POLICY_VIOLATION)
            elif self._request is not None:
                self.channel.write(self._codec.send(self._error(error)))
                cancel = {"type": "response.cancel", "response_id": _id_in(created)}
                self._pool.frame(self._request, orjson.dumps(cancel).decode())

    def _error(self, error: RequestError) -> bytes:
        told = {**error_fields(error), "event_id": None}
        return orjson.dumps({"type": "error", "event_id": f"event_{secrets.token_hex(8)}", "error": told})


def _id_in(created: str) -> str | None:
    """The id of the response that an event tells of; ``None``, which means the conversation's, where it has none."""
    try:
        event = parse_json(created.encode(), MAX_VALUES)
    except RequestError:
        return None
    match event:
        case {"response": {"id": str(id_)}}:
            return id_
    return None
