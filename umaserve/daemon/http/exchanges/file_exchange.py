"""HTTP requests that send a file, or fetch one's content: the disk is read and written by its thread."""

from __future__ import annotations

import logging
from collections.abc import Callable

import orjson

from umaserve.core.errors import RequestError
from umaserve.daemon.services import Services
from umaserve.dialects.batches.files import found, kept_files, told
from umaserve.dialects.batches.stored_file import StoredFile
from umaserve.http.connection import HttpConnection
from umaserve.sessions.caller import Caller
from umaserve.wire.http_head import Request

log = logging.getLogger(__name__)

_BYTES_TYPE = ("Content-Type", "application/octet-stream")


def keep_upload(
    services: Services, caller: Caller, request: Request, answer: Callable[[bytes | RequestError], None]
) -> None:
    """Keep the file of a form, and ``answer`` what is told of it. Raises ``RequestError``."""
    facts, files = services.facts(caller), services.store.files
    kept = kept_files(facts)
    assert files is not None
    # Of its own, since the form is in memory until it is written, whether or not its client stays.
    share = services.input_budget.share(None)
    share.keep(len(request.body))

    def done(result: StoredFile | RequestError) -> None:
        share.keep(0)
        answer(result if isinstance(result, RequestError) else orjson.dumps(told(kept, result)))

    content_type = request.header("content-type") or ""
    files.take(caller.tenant, facts.new_id("file-"), request.body, content_type, done)


class Download:
    """Sends the content of one file, piece by piece, as fast as its client reads."""

    def __init__(self, services: Services, caller: Caller, connection: HttpConnection) -> None:
        self._services = services
        self._caller = caller
        self._connection = connection
        self._file: StoredFile
        self._sent = 0
        self._reading = self._left = False

    def start(self, request: Request) -> None:
        """Raises ``RequestError``."""
        self._file = found(kept_files(self._services.facts(self._caller)), request)
        head = [_BYTES_TYPE, ("Content-Length", str(self._file.length))]
        self._connection.begin(200, head)
        if request.method == "HEAD":
            self._connection.end()
        else:
            self.release()

    def release(self) -> None:
        if self._reading or self._left:
            return
        if self._sent == self._file.length:
            self._connection.end()
            return
        files = self._services.store.files
        assert files is not None
        self._reading = True
        files.folder.read(self._file.id, self._sent, self._send)

    def abandon(self) -> None:
        self._left = True

    def _send(self, piece: object) -> None:
        self._reading = False
        if self._left:
            return
        if not isinstance(piece, bytes) or not piece:
            # It was deleted meanwhile, or is none of ours.
            log.warning("file %s: its content can't be read: %s", self._file.id, piece or "it is too short")
            self._connection.abort()
            return
        piece = piece[: self._file.length - self._sent]
        self._sent += len(piece)
        self._connection.write(piece)
        if not self._connection.congested:
            self.release()
