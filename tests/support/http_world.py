"""A client's socket and the HTTP connection of a daemon that serves it, on a loop whose clock the test moves."""

from __future__ import annotations

import json
import re
import socket
from typing import Any

from standin import StandInVoice
from world import DaemonWorld

from umaserve.access.gate import Gate, Names
from umaserve.daemon.http.site import DaemonSite
from umaserve.http.connection import Client, HttpConnection
from umaserve.net.channel import Channel
from umaserve.settings.daemon import Config
from umaserve.wire.websocket import WebSocketCodec

PAGE = "https://a.example"
CONFIG = Config(
    header_timeout=10.0,
    body_timeout=20.0,
    idle_timeout=60.0,
    resume_window=0.0,
    max_queue=4,
    max_prompt_bytes=1000,
    max_frame_bytes=2000,
    max_chat_bytes=5000,
)
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


def post(path: str, body: Any = None, *headers: str) -> bytes:
    content = json.dumps({} if body is None else body).encode()
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
    return "\r\n".join([*lines, f"Content-Length: {len(content)}", *headers, "", ""]).encode() + content


class HttpWorld(DaemonWorld):
    """One client with its connection; others may join."""

    def __init__(self, peer: str = "ip:127.0.0.1", voice: StandInVoice | None = None, config: Config = CONFIG) -> None:
        super().__init__(config, voice=voice)
        self.lost: list[Client] = []
        self.site = DaemonSite(self.services, Gate(Names("", (), (), (PAGE,)), None))
        self.client, self.connection = self.join(peer)

    def join(self, peer: str = "ip:127.0.0.1") -> tuple[socket.socket, HttpConnection]:
        ours, client = self.sockets()
        client.setblocking(False)
        channel = Channel(self.loop, ours, high_water=CONFIG.tx_high_water, stall_timeout=60.0)
        connection = HttpConnection(self.loop, self.site, channel, peer, lambda _old, _new: None, self.lost.append)
        return client, connection

    def sockets(self) -> tuple[socket.socket, socket.socket]:
        """The server's and the client's."""
        return socket.socketpair()

    def turn(self, seconds: float = 0.0, count: int = 4) -> None:
        super().turn(seconds, count)

    def send(self, data: bytes) -> None:
        self.client.sendall(data)
        self.turn()

    def deliver(self) -> None:
        super().deliver()
        self.turn()

    def speak(self) -> None:
        """One sentence."""
        self.speaking.step()
        self.turn()

    def received(self) -> bytes:
        """What has come; ends with ``<closed>`` if no more will."""
        data = b""
        while True:
            try:
                part = self.client.recv(65536)
            except BlockingIOError:
                return data
            if not part:
                return data + b"<closed>"
            data += part

    def statuses(self) -> list[int]:
        return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d+) ", self.received())]

    def close(self) -> None:
        self.connection.channel.abort()
        self.client.close()
        super().close()


def upgraded(world: HttpWorld, path: str) -> WebSocketCodec:
    """The client's end of a WebSocket."""
    head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    world.send(f"{head}Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {'A' * 22}==\r\n\r\n".encode())
    assert world.received().startswith(b"HTTP/1.1 101 ")
    return WebSocketCodec(1 << 20, client=True)


def last_words(world: HttpWorld, codec: WebSocketCodec) -> list[Any]:
    """The messages that came, and the code of the close frame after them."""
    codec.receive_data(world.received().removesuffix(b"<closed>"))
    words: list[Any] = []
    while (payload := codec.next_payload()) is not None:
        words.append(json.loads(payload))
    return [*words, codec.close_code]
