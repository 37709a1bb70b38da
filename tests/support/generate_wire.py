"""A client of the contract websocket-generate."""

from __future__ import annotations

import contextlib
import json
import socket
from typing import Any

import pytest
from daemon import ANSWER_S, Daemon
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

Message = dict[str, Any]

COUNTING = "1, 2, 3,"
"""Goes on as anybody would, the next token far likelier than any other: what shares its batch never shows."""


class Conversation:
    """One connection to ``/generate``."""

    def __init__(self, daemon: Daemon, **options: Any) -> None:
        # An unread message must not keep the goodbye's answer from being read.
        kept: dict[str, Any] = {"ping_interval": None, "max_size": None, "max_queue": None}
        self._connecting = connect(f"ws://{daemon.http}/generate", **kept | options)

    def __enter__(self) -> Conversation:
        self._ws = self._connecting.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._connecting.__exit__(*exception)

    def send(self, kind: str, **fields: Any) -> None:
        self._ws.send(json.dumps({"type": kind, **fields}))

    def send_raw(self, text: str) -> None:
        self._ws.send(text)

    def config(self, prompt: str | list[Message] = COUNTING, options: Message | None = None, **parameters: Any) -> None:
        self.send("config", prompt=prompt, parameters=parameters, options=options or {})

    def control(self, action: str, **fields: Any) -> None:
        self.send("control", action=action, **fields)

    def receive(self) -> Message:
        message: Message = json.loads(self._ws.recv(ANSWER_S))
        return message

    def until(self, *types: str) -> list[Message]:
        """The messages up to the next of these types, or of an operation's status: it is the last."""
        messages = []
        while True:
            messages.append(self.receive())
            if messages[-1]["type"] in types or messages[-1].get("operation") in types:
                return messages

    def tokens(self, n: int) -> list[Message]:
        """The next ``n`` messages, each of them a token."""
        messages = [self.receive() for _ in range(n)]
        assert all(message["type"] == "token" for message in messages), messages
        return messages

    def kill(self) -> None:
        """The connection is lost, without a goodbye."""
        self._ws.socket.shutdown(socket.SHUT_RDWR)

    def go_away(self) -> None:
        """Close as a browser does when it leaves the page."""
        self._ws.close(1001)

    def rest(self) -> tuple[list[Message], int]:
        """The messages up to the server's goodbye, and its close code."""
        messages = []
        with contextlib.suppress(ConnectionClosed):
            while True:
                messages.append(self.receive())
        assert self._ws.close_code is not None
        return messages, self._ws.close_code

    def close_code(self) -> int:
        """The server's, which must come next."""
        with pytest.raises(ConnectionClosed) as closed:
            self._ws.recv(ANSWER_S)
        assert closed.value.rcvd is not None
        return closed.value.rcvd.code


def text_of(messages: list[Message]) -> str:
    return "".join(message["token"] for message in messages if message["type"] == "token")
