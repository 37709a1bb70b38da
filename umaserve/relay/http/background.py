"""A response in the background: no client waits for it while it is made, and its client comes back for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from umaserve.dialects.responses.keeping import Continued
from umaserve.dialects.responses.kept import MAX_BYTES, StoredResponse, TenantsKept
from umaserve.net.input_budget import InputShare
from umaserve.net.loop import Loop
from umaserve.relay.http.kept_reply import Keeper
from umaserve.relay.pool.pool import Pool
from umaserve.relay.pool.request import RelayedRequest

_REPEATED = ("instructions", "metadata", "model", "tools", "tool_choice", "temperature", "top_p", "max_output_tokens")
"""Fields that a response repeats of its request."""
_DEFAULTS: Mapping[str, Any] = {"metadata": {}, "tools": [], "tool_choice": "auto", "parallel_tool_calls": True}
_NOTHING: Mapping[str, Any] = {"error": None, "incomplete_details": None, "usage": None, "output": []}
_FAILED = "server_error"


class BackgroundReply:
    """Implements ``relay.pool.request.Client``. Where a request can't even be queued, ``refuse`` is called with a
    status and an error, and nothing is kept; all later errors are the response's."""

    def __init__(
        self,
        loop: Loop,
        pool: Pool,
        all_kept: TenantsKept,
        own: StoredResponse,
        continued: Continued | None,
        shown: Mapping[str, Any],
        memory: InputShare,
        refuse: Callable[[int, str], object],
    ) -> None:
        self._loop = loop
        self._pool = pool
        self._own = own
        # The worker's response has an id and a time of its own.
        self._keeper = Keeper(all_kept, own, continued, {**shown, "id": own.id, "created_at": int(time.time())})
        self._memory = memory
        self._refuse: Callable[[int, str], object] | None = refuse
        self._begun: Mapping[str, Any] = {}
        """The response, up to its status, until its worker's comes."""
        self._request: RelayedRequest
        self._in_flight = False
        self._over = False
        self._status = 0
        self._parts: list[str | bytes] = []
        """Received parts of a body that comes in parts."""
        self._n_parts = 0

    def start(self, request: RelayedRequest, fields: Mapping[str, Any]) -> bytes | None:
        """Have the response made. ``fields``: those of its body. Returns the response; ``None`` where it was
        refused."""
        self._request = request
        # A worker that is lost gives its requests back.
        self._memory.keep(len(request.body))
        self._pool.submit(request)
        self._refuse = None
        if self._over:
            return None
        repeated = {key: value for key in _REPEATED if (value := fields.get(key)) is not None}
        self._begun = {"object": "response", **_DEFAULTS, **repeated, "model": request.model, **_NOTHING}
        own = self._own
        own.in_background, own.cancel, own.refresh = True, self._cancel, self._refresh
        self._in_flight = request.in_flight
        return self._keep_begun()

    # -- from the pool -------------------------------------------------------------------------------------------

    def respond(self, status: int, headers: Mapping[str, str], body: str | bytes) -> None:
        """Take the whole reply."""
        if not self._finish():
            return
        if status != 200:
            self._end("failed", _error_in(body, status))
        elif self._keeper.take(body) is None:
            self._end("failed", {"code": _FAILED, "message": "the worker's answer is no response"})

    def begin(self, status: int, headers: Mapping[str, str]) -> None:
        self._status = status

    def write(self, chunk: str | bytes) -> None:
        self._n_parts += len(chunk)
        if self._n_parts <= MAX_BYTES and not self._over:
            self._parts.append(chunk)

    def end(self) -> None:
        if self._n_parts > MAX_BYTES:
            self.fail(502, f"response: larger than {MAX_BYTES} bytes")
            return
        whole = b"".join(part.encode() if isinstance(part, str) else part for part in self._parts)
        self.respond(self._status, {}, whole)

    def fail(self, status: int, error: str) -> None:
        if not self._finish():
            return
        if self._refuse is not None:
            self._refuse(status, error)
        else:
            self._end("failed", {"code": _FAILED, "message": error})

    # -- from its client -----------------------------------------------------------------------------------------

    def _cancel(self) -> None:
        if self._finish():
            # Later: it may be another response's end that ends this one, for its room.
            self._loop.call_soon(self._leave)
            self._end("cancelled")

    def _leave(self) -> None:
        if not self._request.over:
            self._pool.leave(self._request)

    def _refresh(self) -> None:
        if self._in_flight != self._request.in_flight:
            self._in_flight = self._request.in_flight
            self._keep_begun()

    def _keep_begun(self) -> bytes | None:
        return self._end("in_progress" if self._in_flight else "queued")

    # -- both ----------------------------------------------------------------------------------------------------

    def _finish(self) -> bool:
        """Let go of all that is for its end; returns whether this is its end."""
        first, self._over = not self._over, True
        self._own.cancel = self._own.refresh = None
        self._parts.clear()
        self._memory.close()
        return first

    def _end(self, status: str, error: Mapping[str, Any] | None = None) -> bytes | None:
        return self._keeper.take_parsed({**self._begun, "status": status, "error": error})


def _error_in(body: str | bytes, status: int) -> dict[str, Any]:
    """The error in a worker's reply, as a response has it."""
    try:
        error = orjson.loads(body)["error"]
        if isinstance(error, str):
            return {"code": _FAILED, "message": error}
        code, message = error.get("code"), error["message"]
        return {"code": code if isinstance(code, str) else _FAILED, "message": str(message)}
    except (orjson.JSONDecodeError, LookupError, TypeError, AttributeError):
        return {"code": _FAILED, "message": f"the worker answered with status {status}"}
