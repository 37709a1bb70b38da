"""llama-server's ``/v1/stream`` and ``/v1/streams/lookup``: streams that are kept for their clients to come back."""

from __future__ import annotations

import orjson

from umaserve.dialects.facts import Facts, StreamState
from umaserve.dialects.llama_server.schemas import StreamPlace, StreamsToFind
from umaserve.dialects.parameters import json_body
from umaserve.wire.http_head import Request


def place(request: Request) -> tuple[str, int]:
    """The stream that a request names, and the byte to read it from; raises ``RequestError``."""
    query = StreamPlace(request.query)
    return query.conv_id, query.from_ or 0


def stop(facts: Facts, request: Request) -> None:
    """``DELETE /v1/stream``: that there is no such stream is no error, as in llama-server. Raises ``RequestError``."""
    facts.stop_stream(StreamPlace(request.query).conv_id)


def found(body: bytes, facts: Facts) -> bytes:
    """The answer to a body of ``POST /v1/streams/lookup``; raises ``RequestError``."""
    wanted = StreamsToFind.view(json_body(body)).conversation_ids
    return orjson.dumps([_told(state) for state in facts.streams(wanted)])


def _told(state: StreamState) -> dict[str, str | int]:
    return {
        "conversation_id": state.conversation,
        "is_done": state.done,
        "total_bytes": state.total_bytes,
        "started_at": state.started_at,
        "completed_at": state.completed_at,
    }
