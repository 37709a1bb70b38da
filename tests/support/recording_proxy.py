"""A proxy on loopback that notes each request and its status: what an unmodified program asks of the daemon."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

ANSWER_S = 120
_HOP = {"connection", "transfer-encoding", "keep-alive", "content-length"}
"""Headers of one connection, which are not passed on."""


@dataclass(frozen=True)
class Recorded:
    """One request, and what the daemon answered."""

    request: str
    """Method and path."""
    body: bytes = field(repr=False)
    status: int
    problem: str = ""
    """The daemon's words where it refused."""


class RecordingProxy:
    """Passes requests on to the daemon at ``address`` (HOST:PORT). Where the client leaves, so does the proxy."""

    def __init__(self, address: str) -> None:
        self.recorded: list[Recorded] = []
        proxy = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _pass_on(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"] or 0))
                headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP}
                daemon = http.client.HTTPConnection(address, timeout=ANSWER_S)
                with contextlib.closing(daemon):
                    daemon.request(self.command, self.path, body or None, headers)
                    answer = daemon.getresponse()
                    problem = answer.read().decode() if answer.status >= 300 else ""
                    proxy.recorded.append(Recorded(f"{self.command} {self.path}", body, answer.status, problem))
                    self.send_response(answer.status)
                    for name, value in answer.getheaders():
                        if name.lower() not in _HOP:
                            self.send_header(name, value)
                    self.send_header("Transfer-Encoding", "chunked")
                    self.end_headers()
                    self._chunk(problem.encode())
                    while piece := answer.read1():
                        self._chunk(piece)
                    self.wfile.write(b"0\r\n\r\n")

            def _chunk(self, piece: bytes) -> None:
                if piece:
                    self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))

            do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = _pass_on

            def log_message(self, *_: Any) -> None:
                """Nothing: ``recorded`` has it."""

            def handle(self) -> None:
                # A client that leaves while it is answered.
                with contextlib.suppress(ConnectionError):
                    super().handle()

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@contextlib.contextmanager
def recording(address: str) -> Iterator[RecordingProxy]:
    """A proxy that is closed at the end."""
    proxy = RecordingProxy(address)
    try:
        yield proxy
    finally:
        proxy.close()
