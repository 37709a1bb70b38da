"""The two client classes against the real daemon, and against one that misbehaves."""

from __future__ import annotations

import asyncio
import socket
import threading
from pathlib import Path

import pytest
import uvloop
from daemon import Daemon
from frames import uds_frame

from umaserve import client
from umaserve.client import AsyncClient, Client, ServerError


def test_a_stream_and_its_end(daemon: Daemon):
    with Client(daemon.path).generate("Once upon a time", max_tokens=5) as stream:
        text = "".join(event["text"] for event in stream)
    assert text == daemon.text("Once upon a time", max_tokens=5)
    assert stream.end is not None
    assert stream.end["usage"]["completion_tokens"] == 5


def test_a_whole_answer_and_a_chat_without_a_prompt(daemon: Daemon):
    client = Client(daemon.path)
    assert client.complete("Once upon a time", max_tokens=5)["text"] == daemon.text("Once upon a time", max_tokens=5)
    assert client.complete(chat=[{"role": "user", "content": "Hi"}], max_tokens=2)["reason"] == "length"


def test_cancel_and_leave(daemon: Daemon):
    with Client(daemon.path).generate("Once", max_tokens=500, ignore_eos=True) as stream:
        for index, _ in enumerate(stream):
            if index == 2:
                stream.cancel()
    assert stream.end is not None
    assert stream.end["reason"] == "cancelled"
    with Client(daemon.path).generate("Once", max_tokens=500, ignore_eos=True) as stream:
        next(iter(stream))
    daemon.wait_until_quiet()


def test_metrics_and_errors(daemon: Daemon):
    client = Client(daemon.path)
    assert client.metrics()["state"] == "ready"
    with pytest.raises(ServerError, match="max_tokens: expected") as caught:
        client.complete("Hi", max_tokens=0)
    assert caught.value.code == "E_PROTO_BAD_REQUEST"


def test_asyncio_on_uvloop(daemon: Daemon):
    async def main() -> list[str]:
        assert isinstance(asyncio.get_running_loop(), uvloop.Loop)
        client = AsyncClient(daemon.path)
        assert (await client.metrics())["state"] == "ready"
        with pytest.raises(ServerError, match="E_PROTO_BAD_REQUEST"):
            await client.complete("")
        async with await client.generate("Once", max_tokens=500, ignore_eos=True) as stream:
            async for _ in stream:
                await stream.cancel()
        assert stream.end is not None
        assert stream.end["reason"] == "cancelled"
        answers = await asyncio.gather(*(client.complete("Once upon a time", max_tokens=5) for _ in range(4)))
        return [answer["text"] for answer in answers]

    assert set(client.run(main())) == {daemon.text("Once upon a time", max_tokens=5)}


@pytest.fixture
def broken_server(tmp_path: Path):
    """A server that sends some bytes to each client and leaves."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(tmp_path / "broken.sock"))
    listener.listen()
    reply = uds_frame({"event": "token", "id": "c", "text": "a", "token_id": 1}) + b"\x10\0\0\0half"

    def serve() -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            with sock:
                sock.recv(4096)
                sock.sendall(reply)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield str(tmp_path / "broken.sock")
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


def test_a_server_that_leaves_too_early_is_an_error(broken_server: str):
    with pytest.raises(ConnectionError, match="before the end"):
        Client(broken_server).complete("Hi")
    with pytest.raises(ConnectionError, match="before the end"):
        asyncio.run(AsyncClient(broken_server).complete("Hi"))
