"""A stand-in for the Hugging Face Hub on loopback: one revision of each repository, from bytes in memory."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

REVISION = "0123456789abcdef0123456789abcdef01234567"


class StandinHub:
    """``cut``: a file's response ends after so many bytes, once. ``damaged``: files that arrive with another byte.
    ``held``: files whose second half is sent once that is set. ``moved``: files that are at another address."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.repositories: dict[str, Mapping[str, bytes]] = {}
        self.gated: set[str] = set()
        self.cut: dict[str, int] = {}
        self.damaged: set[str] = set()
        self.held: dict[str, threading.Event] = {}
        self.moved: dict[str, str] = {}
        self.told: dict[str, dict[str, Any]] = {}
        """What the list says of files otherwise than is true."""
        self.ranges: list[str] = []
        """Of all requests for a part of a file."""

    def about(self, name: str) -> dict[str, Any]:
        files = self.repositories[name]
        siblings = [
            {
                "rfilename": path,
                "size": len(content),
                "blobId": "0" * 40,
                "lfs": {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134},
                **self.told.get(path, {}),
            }
            for path, content in files.items()
        ]
        return {"id": name, "modelId": name, "sha": REVISION, "siblings": siblings}


@contextmanager
def standin_hub() -> Iterator[StandinHub]:
    """A hub that listens until the end of the block."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None: ...

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def _answer(self, *, body: bool) -> None:
            path = self.path.partition("?")[0]
            if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/[^/]+)?", path):
                self._about(found[1])
            elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", path):
                self._file(found[1], found[2], body=body)
            else:
                self._refuse(404, "EntryNotFound")

        def _about(self, name: str) -> None:
            if name in hub.gated:
                self._refuse(403, "GatedRepo")
            elif name not in hub.repositories:
                self._refuse(404, "RepoNotFound")
            else:
                content = json.dumps(hub.about(name)).encode()
                self._head(200, {"Content-Type": "application/json", "Content-Length": str(len(content))})
                self.wfile.write(content)

        def _file(self, name: str, path: str, *, body: bool) -> None:
            content = hub.repositories[name][path]
            if path in hub.moved and body:
                self._head(302, {"Location": hub.moved[path], "Content-Length": "0"})
                return
            headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": REVISION}
            headers |= {"Accept-Ranges": "bytes", "X-Linked-Size": str(len(content))}
            if path in hub.damaged:
                content = bytes([content[0] ^ 1]) + content[1:]
            start, status = 0, 200
            if wanted := self.headers.get("Range", ""):
                hub.ranges.append(wanted)
                start, status = int(wanted.removeprefix("bytes=").partition("-")[0]), 206
                headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
            self._head(status, {**headers, "Content-Length": str(len(content) - start)})
            if body:
                rest = content[start : hub.cut.pop(path, len(content))]
                if path in hub.held:
                    self.wfile.write(rest[: len(rest) // 2])
                    hub.held[path].wait()
                    rest = rest[len(rest) // 2 :]
                # Whoever has waited may have left.
                with suppress(OSError):
                    self.wfile.write(rest)
                self.close_connection = True

        def _refuse(self, status: int, code: str) -> None:
            self._head(status, {"X-Error-Code": code, "X-Error-Message": code, "Content-Length": "0"})

        def _head(self, status: int, headers: Mapping[str, str]) -> None:
            self.send_response(status)
            for header, value in headers.items():
                self.send_header(header, value)
            self.end_headers()

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        hub = StandinHub(f"http://127.0.0.1:{server.server_address[1]}")
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield hub
        finally:
            for held in hub.held.values():
                held.set()
            server.shutdown()
            thread.join()
