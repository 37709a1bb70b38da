"""Connections by URL: whoever dials hears of each end, also where TLS can't even begin."""

from __future__ import annotations

import socket
import ssl
from contextlib import closing

import pytest

from umaserve.net.channel import Channel
from umaserve.net.dial import DialError
from umaserve.net.loop import Loop
from umaserve.worker import dialer as dialer_module
from umaserve.worker.dialer import Dialer, ServerUrl


def impossible(_ca_file: str) -> ssl.SSLContext:
    """No version is allowed, as a box's configuration of OpenSSL may have it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


def test_tls_that_cannot_begin_is_a_failure_to_connect(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(dialer_module, "client_context", impossible)
    ends: list[Channel | DialError] = []
    with closing(Loop()) as loop, socket.create_server(("127.0.0.1", 0)) as listener:
        dialer = Dialer(loop, lambda _job, _done: None)
        url = ServerUrl.parse(f"https://127.0.0.1:{listener.getsockname()[1]}")
        dialer.connect(url, ends.append, high_water=1, stall_timeout=1.0)
        loop.call_later(20.0, lambda: ends.append(DialError("it never ended")))
        while not ends:
            loop.turn()
        (end,) = ends
        assert isinstance(end, DialError)
        assert str(end).startswith(f"can't connect to {url.text}: TLS handshake failed: ")
        assert caplog.records == []
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.recv(1) == b"", "the connection was closed"
