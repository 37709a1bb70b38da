"""A relay in a thread, and the peers that a test scripts word by word: a worker and an HTTP client."""

from __future__ import annotations

import http.client
import json
import logging
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, cast

from http_wire import Http, Response, encode
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect
from websockets.sync.connection import Connection

from umaserve.relay.http.worker_link import WorkerLink
from umaserve.relay.server import RelayServer
from umaserve.settings.relay import RelayConfig

ANSWER_S = 30.0
SECRET, TOKEN = "a worker's secret", "an administrator's token"
MODEL = "llama3-8b"
CHAT = "/v1/chat/completions"


def wait_until(condition: Callable[[], Any]) -> Any:
    """What ``condition`` returns once that is true; fails if that never comes."""
    deadline = time.monotonic() + ANSWER_S
    while not (found := condition()):
        assert time.monotonic() < deadline, "it never became so"
        time.sleep(0.005)
    return found


class Records(logging.Handler):
    """Keeps what is logged."""

    def __init__(self, records: list[logging.LogRecord]) -> None:
        super().__init__()
        self._records = records

    def emit(self, record: logging.LogRecord) -> None:
        self._records.append(record)


class Relay:
    """One relay at a free port, ended with all its peers by ``end``; ``records`` is its log."""

    def __init__(self, **settings: Any) -> None:
        defaults: dict[str, Any] = {
            "listen": "127.0.0.1:0",
            "worker_secret": SECRET,
            "admin_token": TOKEN,
            "drain_timeout": 0.0,
        }
        self.records: list[logging.LogRecord] = []
        self._server: RelayServer | None = None
        self._status: int | None = None
        self._peers = ExitStack()
        self._log = Records(self.records)
        logger = logging.getLogger("umaserve")
        logger.setLevel(logging.INFO)
        logger.addHandler(self._log)
        config = RelayConfig(**(defaults | settings))
        self._thread = threading.Thread(target=self._run, args=[config], daemon=True)
        self._thread.start()
        wait_until(lambda: self._logged("listening") or not self._thread.is_alive())
        (listening,) = self._logged("listening")
        self.address: str = listening.fields["at"]  # type: ignore[attr-defined]

    def _run(self, config: RelayConfig) -> None:
        # Its database of keys is of the thread that opened it.
        self._server = RelayServer(config)
        self._status = self._server.run()

    def _logged(self, message: str) -> list[logging.LogRecord]:
        # A test may have more than one relay, one after the other.
        return [one for one in self.records if one.getMessage() == message]

    def stop(self) -> None:
        assert self._server is not None
        self._server.stop()

    def wait(self) -> None:
        """Until it has ended by itself."""
        self._thread.join(ANSWER_S)
        assert self._status == 0, self._text()

    def end(self) -> None:
        """Fails for whatever went wrong in it unnoticed."""
        if self._thread.is_alive():
            self.stop()
        self.wait()
        self._peers.close()
        logger = logging.getLogger("umaserve")
        logger.removeHandler(self._log)
        if not logger.handlers:
            # Of the relays in this process it was the last.
            logger.setLevel(logging.NOTSET)
        assert not any(record.exc_info for record in self.records), self._text()

    def _text(self) -> str:
        formatter = logging.Formatter("%(levelname)s %(message)s")
        return "\n".join(formatter.format(record) for record in self.records)

    @property
    def drawn(self) -> int:
        """Bytes of what clients have sent, by the book of their memory."""
        assert self._server is not None
        return self._server._site.input_budget.drawn

    @property
    def queued(self) -> int:
        """Bytes that wait for workers to read them."""
        assert self._server is not None
        return sum(cast("WorkerLink", worker.link).channel.queued for worker in self._server._pool.workers)

    # -- peers ---------------------------------------------------------------------------------------------------

    def client(self, **options: Any) -> Client:
        return self._peers.enter_context(Client(self.address, **options))

    def connect(self, path: str, **headers: str) -> Socket:
        """A WebSocket; ``_`` stands for ``-`` in the names of headers."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection = connect(
            f"ws://{self.address}{path}",
            additional_headers=named,
            open_timeout=ANSWER_S,
            close_timeout=1,
            ping_interval=None,
            max_size=None,
            proxy=None,
        )
        return Socket(self._peers.enter_context(connection))

    def dial(self, query: str = "", **headers: str) -> Worker:
        """A worker that has not registered yet."""
        headers = headers or {"x_worker_secret": SECRET}
        return Worker(self.connect(f"/v1/worker/connect{query}", **headers).connection)

    def worker(self, *models: str, max_concurrent: int = 1, **fields: Any) -> Worker:
        """A worker that has registered, with one place."""
        worker = self.dial()
        worker.send(register(*models, max_concurrent=max_concurrent, **fields))
        worker.ack = worker.receive()
        assert worker.ack["type"] == "register_ack", worker.ack
        return worker

    # -- operators -----------------------------------------------------------------------------------------------

    def admin(self, method: str, path: str, body: Any = None, *, token: str = TOKEN) -> Response:
        with Client(self.address) as client:
            return client.ask(method, f"/admin{path}", body, {"Authorization": f"Bearer {token}"})

    def workers(self) -> list[dict[str, Any]]:
        workers: list[dict[str, Any]] = self.admin("GET", "/workers").json["workers"]
        return workers

    def stat(self, name: str) -> Any:
        return self.admin("GET", "/stats").json[f"relay_{name}"]

    def key(self, name: str = "alice", **terms: Any) -> dict[str, str]:
        """A new key of a client, as the header to send it in."""
        return {"X-Api-Key": self.admin("POST", "/keys", {"name": name, **terms}).json["key"]}

    def ask(self, headers: dict[str, str]) -> Client:
        """Send a request with these, and don't wait for its answer."""
        client = self.client()
        client.send(encode("POST", CHAT, {"model": MODEL, "messages": []}, headers))
        return client

    def wait_for(self, name: str, value: Any) -> None:
        wait_until(lambda: self.stat(name) == value)


class Client(Http):
    """An HTTP client that also reads a reply as it comes."""

    def post(self, path: str = CHAT, body: bytes | None = None, **fields: Any) -> Client:
        """Send a request, by default for a chat's completion with these fields, and don't wait for its answer."""
        content = json.dumps({"model": MODEL, "messages": []} | fields).encode() if body is None else body
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nX-Of-The-Client: yes\r\n"
        self.send(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        return self

    def head(self) -> tuple[int, dict[str, str]]:
        """The status and the headers of a reply, whose body comes in ``chunk`` by ``chunk``."""
        status = int(self.file.readline().split()[1])
        return status, {name.lower(): value for name, value in http.client.parse_headers(self.file).items()}

    def chunk(self) -> bytes:
        """One part of the body as the relay wrote it; empty at its end."""
        data = self.file.read(int(self.file.readline(), 16))
        assert self.file.readline() == b"\r\n"
        return data

    def reset(self) -> None:
        """End the connection at once, as a client that crashed does."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()


class Socket:
    """A WebSocket whose peer is the relay."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def send(self, message: dict[str, Any] | str | bytes) -> None:
        self.connection.send(json.dumps(message) if isinstance(message, dict) else message)

    def text(self) -> str:
        message = self.connection.recv(ANSWER_S)
        assert isinstance(message, str)
        return message

    def receive(self) -> Any:
        """The next message, which is JSON."""
        return json.loads(self.text())

    def closed(self) -> tuple[int, str]:
        """Code and reason of the relay's close; nothing but heartbeats may come before it."""
        while True:
            try:
                message = self.receive()
            except ConnectionClosed as error:
                close = error.rcvd
                break
            assert message.get("type") == "ping", message
        assert close is not None, "the connection ended without a close"
        return close.code, close.reason

    def crash(self) -> None:
        """End without a word."""
        self.connection.socket.shutdown(socket.SHUT_RDWR)


class Worker(Socket):
    """The worker's end of a link, message by message."""

    ack: dict[str, Any]

    @property
    def id(self) -> str:
        return str(self.ack["worker_id"])

    def request(self) -> dict[str, Any]:
        """The next message, which is a request."""
        message: dict[str, Any] = self.receive()
        assert message["type"] == "request", message
        return message

    def chunk(self, request: dict[str, Any], chunk: str, **fields: Any) -> None:
        self.send({"type": "response_chunk", "request_id": request["request_id"], "chunk": chunk} | fields)

    def complete(self, request: dict[str, Any], status: int = 200, **fields: Any) -> None:
        self.send({"type": "response_complete", "request_id": request["request_id"], "status_code": status} | fields)

    def answer(self, body: str = "{}") -> dict[str, Any]:
        """Answer the next request, and return it."""
        request = self.request()
        self.complete(request, headers={"content-type": "application/json"}, body=body)
        return request


def register(*models: str, max_concurrent: int = 1, **fields: Any) -> dict[str, Any]:
    return {
        "type": "register",
        "worker_name": "gpu-box-1",
        "models": list(models or (MODEL,)),
        "max_concurrent": max_concurrent,
        "protocol_version": "1",
        "current_load": 0,
    } | fields
