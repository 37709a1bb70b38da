"""What the tests of the worker share: a loop in a thread of its own, and the relay's and the backend's side by hand."""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any, TypeVar

from clock import RunningClock
from hooked_loop import HookedLoop
from websockets.frames import Close, Frame, Opcode
from websockets.http11 import Request
from websockets.server import ServerProtocol

from umaserve.system.threads import JobThread

T = TypeVar("T")

PATIENCE_S = 30.0
"""For what must happen; only a failure waits so long."""


class LoopThread:
    """A loop whose clock the test moves; ``call`` does something on its thread."""

    def __init__(self) -> None:
        self._clock = RunningClock()
        self.loop = HookedLoop(self._clock)
        self.resolving = JobThread("resolving", self.loop.wake)
        self.loop.after_poll = self.resolving.collect
        self._thread = threading.Thread(target=self.loop.run, daemon=True)
        self._thread.start()

    def call(self, do: Callable[[], T]) -> T:
        """What ``do`` returns between two callbacks of the loop; before it, what can be read by now is read."""
        done: Future[T] = Future()

        def run() -> None:
            try:
                done.set_result(do())
            except Exception as error:
                done.set_exception(error)

        self.loop.call_soon(run)
        self.loop.wake()
        return done.result(PATIENCE_S)

    def turn(self) -> None:
        for _ in range(4):
            self.call(lambda: None)

    def until(self, condition: Callable[[], bool]) -> None:
        """Turn the loop until ``condition`` holds on its thread."""
        deadline = time.monotonic() + PATIENCE_S
        while not self.call(condition):
            assert time.monotonic() < deadline

    def pass_time(self, seconds: float) -> None:
        def move() -> None:
            self._clock.ahead += seconds

        self.call(move)
        self.turn()

    def close(self) -> None:
        self.call(self.loop.stop)
        self._thread.join(PATIENCE_S)
        self.resolving.stop(PATIENCE_S)
        self.loop.close()


class Server:
    """A listener on loopback that gives its connections to the test one by one."""

    def __init__(self, stack: ExitStack, context: ssl.SSLContext | None = None) -> None:
        self._stack = stack
        self._context = context
        self._listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        self._listener.settimeout(PATIENCE_S)
        self.port = int(self._listener.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}"

    def accept(self) -> socket.socket:
        sock, _ = self._listener.accept()
        self._stack.callback(sock.close)
        sock.settimeout(PATIENCE_S)
        if self._context is not None:
            sock = self._context.wrap_socket(sock, server_side=True)
            self._stack.callback(sock.close)
        return sock

    def narrow(self) -> None:
        """Let little lie unread in the kernel."""
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)

    def stop(self) -> None:
        self._listener.close()


class RelayPeer:
    """The relay's side of one connection."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._protocol = ServerProtocol(max_size=None)
        self._events: list[Any] = []
        self.pinged = 0
        self.request: Request = self._next()
        self._protocol.send_response(self._protocol.accept(self.request))
        self._flush()

    def _next(self) -> Any:
        while not self._events:
            data = self.sock.recv(65536)
            if not data:
                return None
            self._protocol.receive_data(data)
            self._flush()
            self._events += self._protocol.events_received()
        return self._events.pop(0)

    def _flush(self) -> None:
        for data in self._protocol.data_to_send():
            if data:
                self.sock.sendall(data)

    def receive(self) -> Any:
        """The next message; for a close frame its code and reason, for the connection's end ``None``."""
        frame = self._next()
        while isinstance(frame, Frame) and frame.opcode is Opcode.PING:
            # What answers it is the protocol's.
            self.pinged += 1
            frame = self._next()
        if frame is None:
            return None
        assert isinstance(frame, Frame)
        if frame.opcode is Opcode.CLOSE:
            close = Close.parse(bytes(frame.data))
            return close.code, close.reason
        assert frame.opcode is Opcode.TEXT
        return json.loads(bytes(frame.data))

    def until(self, kind: str) -> Any:
        """The next message of this type; those before it are dropped."""
        while True:
            message = self.receive()
            assert isinstance(message, dict), message
            if message["type"] == kind:
                return message

    def until_close(self) -> Any:
        """The code and reason of the close frame; the messages before it are dropped."""
        while isinstance(message := self.receive(), dict):
            pass
        return message

    def send(self, kind: str, **fields: Any) -> None:
        self.send_text(json.dumps({"type": kind, **fields}))

    def send_text(self, text: str) -> None:
        self._protocol.send_text(text.encode())
        self._flush()

    def close(self, code: int, reason: str = "") -> None:
        self._protocol.send_close(code, reason)
        self._flush()
        while self._next() is not None:
            pass
        self.sock.close()

    def welcome(self, **fields: Any) -> Any:
        """Acknowledge the registration, and take the ``models_update`` that follows; the former."""
        register = self.receive()
        assert register["type"] == "register"
        version = register.get("protocol_version")
        ack = {"worker_id": "w-1", "models": register["models"], "protocol_version": version, "features": ["flow"]}
        self.send("register_ack", **{**ack, **fields})
        assert self.receive()["type"] == "models_update"
        return register

    def ask(self, request_id: str, body: str = "{}", path: str = "/v1/chat/completions", **fields: Any) -> None:
        about = {"request_id": request_id, "model": "m", "endpoint_path": path, "is_streaming": False}
        self.send("request", **{**about, "body": body, **fields})


class BackendPeer:
    """The backend's side of one connection: its request is read, the answer is written by hand."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        data = b""
        while b"\r\n\r\n" not in data:
            data += self._read()
        head, _, body = data.partition(b"\r\n\r\n")
        self.line, *fields = head.decode().split("\r\n")
        self.headers = [(name.lower(), value.strip()) for name, _, value in (field.partition(":") for field in fields)]
        length = int(dict(self.headers).get("content-length", "0"))
        while len(body) < length:
            body += self._read()
        self.body = body

    def _read(self) -> bytes:
        data = self.sock.recv(65536)
        assert data, "the request is not whole"
        return data

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def answer(self, body: bytes, status: str = "200 OK", kind: str = "application/json", *more: str) -> None:
        lines = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", f"Content-Length: {len(body)}", *more, "", ""]
        self.send("\r\n".join(lines).encode() + body)

    def begin(self, kind: str = "text/event-stream") -> None:
        """The head of an answer in chunks."""
        self.send(f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n".encode())

    def chunk(self, data: bytes) -> None:
        """Some of the body; nothing is its end."""
        self.send(b"%x\r\n%b\r\n" % (len(data), data))

    def ended(self) -> bool:
        """Whether the worker ends the connection, which it must."""
        try:
            return self.sock.recv(1) == b""
        except ConnectionResetError:
            return True


def listing(*models: str) -> bytes:
    return json.dumps({"object": "list", "data": [{"id": model} for model in models]}).encode()
