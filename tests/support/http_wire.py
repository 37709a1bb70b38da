"""An HTTP client that sends the very bytes it is told to."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol, Self

ANSWER_S = 120


class Server(Protocol):
    @property
    def http(self) -> str:
        """HOST:PORT."""


def encode(method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> bytes:
    """A whole request; ``body`` goes as JSON."""
    fields = {"Host": "localhost"}
    content = b""
    if body is not None:
        content = json.dumps(body).encode()
        fields |= {"Content-Type": "application/json", "Content-Length": str(len(content))}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in (fields | (headers or {})).items())]
    return "\r\n".join([*lines, "", ""]).encode() + content


WEBSOCKET = {
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}
"""The headers of a handshake (RFC 6455, section 1.3)."""


class Response(NamedTuple):
    """Header names are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        assert self.headers["content-type"] == "application/json"
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """OpenAI's error object, or llama-server's."""
        error: dict[str, Any]
        (error,) = self.json.values()
        assert list(error) in (["message", "type", "param", "code"], ["code", "message", "type"])
        return error


class Http:
    """One connection to HOST:PORT, or to the Unix socket at a path."""

    def __init__(self, address: str, *, receive_buffer: int | None = None):
        family = socket.AF_UNIX if "/" in address else socket.AF_INET
        self.sock = socket.socket(family, socket.SOCK_STREAM)
        self.sock.settimeout(ANSWER_S)
        if receive_buffer is not None:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        host, _, port = address.rpartition(":")
        self.sock.connect(address if family == socket.AF_UNIX else (host, int(port)))
        self.file = self.sock.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.file.close()
        self.sock.close()

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def ask(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Response:
        self.send(encode(method, path, body, headers))
        return self.receive(to_head=method == "HEAD")

    def receive(self, *, to_head: bool = False) -> Response:
        """The next response, and not a byte more."""
        line = self.file.readline()
        assert line.startswith(b"HTTP/1.1 "), line
        status = int(line.split()[1])
        headers: dict[str, str] = {}
        while (field := self.file.readline()) != b"\r\n":
            name, _, value = field.decode("latin-1").partition(":")
            if name.lower() == "vary" and "vary" in headers:
                # A list, which may come in parts (RFC 9110, section 5.3).
                value = f"{headers['vary']}, {value.strip()}"
            else:
                assert name.lower() not in headers, f"{name} twice"
            headers[name.lower()] = value.strip()
        if to_head or status in (100, 101, 204):
            body = b""
        elif headers.get("transfer-encoding") == "chunked":
            body = b"".join(self._chunks())
        else:
            body = self.file.read(int(headers["content-length"]))
        return Response(status, headers, body)

    def _chunks(self) -> Iterator[bytes]:
        while size := int(self.file.readline(), 16):
            yield self.file.read(size)
            assert self.file.readline() == b"\r\n"
        assert self.file.readline() == b"\r\n"

    def event(self) -> bytes:
        """The data of the next server-sent event of a response that is still coming."""
        while not (line := self.file.readline()).startswith(b"data: "):
            assert line, "the stream ended before an event"
        return line.removeprefix(b"data: ").rstrip()

    def rest(self) -> bytes:
        """All until the end of the connection."""
        return self.file.read()


def ask(server: Server, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Response:
    """The response on a connection of its own."""
    with Http(server.http) as http:
        return http.ask(method, path, body, headers)


def events(body: bytes) -> list[bytes]:
    """The data of each event in a whole stream."""
    return [event.removeprefix(b"data: ") for event in body.removesuffix(b"\n\n").split(b"\n\n")]
