"""Calls of a running daemon over HTTP, at an address or a Unix socket."""

from __future__ import annotations

import http.client
import socket
import urllib.parse
from typing import Any

import orjson

from umaserve.net.tls import client_context

DEFAULT_URL = "http://127.0.0.1:8080"
TIMEOUT_S = 15.0
_UNIX = "unix:"


class CallError(Exception):
    """The daemon can't be reached, or refuses; ``status`` is HTTP's, 0 without one."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def call(url: str, key: str | None, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """The object that is answered; raises ``CallError``. ``url`` may be unix:PATH."""
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    content = None
    if body is not None:
        headers["Content-Type"] = "application/json"
        content = orjson.dumps(body)
    connection = _connection(url)
    try:
        connection.request(method, path, content, headers)
        answer = connection.getresponse()
        status, told = answer.status, orjson.loads(answer.read())
    except (http.client.HTTPException, orjson.JSONDecodeError):
        raise CallError(f"{url}: the server there is not umaserve") from None
    except OSError as error:
        advice = "start a daemon with --http, or name its address with --url"
        raise CallError(f"{url}: {error.strerror or error}: {advice}") from None
    finally:
        connection.close()
    if not isinstance(told, dict):
        raise CallError(f"{url}: the server there is not umaserve")
    if status != 200:
        raise CallError(_problem(told) + (": give one with --key" if status == 401 else ""), status)
    return told


def _connection(url: str) -> http.client.HTTPConnection:
    if url.startswith(_UNIX):
        return _UnixConnection(url.removeprefix(_UNIX))
    parts = urllib.parse.urlsplit(url)
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if parts.scheme not in ("http", "https") or not host:
        raise CallError(f"--url: expected a URL such as {DEFAULT_URL}, or unix:PATH, got {url}")
    if parts.scheme == "https":
        return http.client.HTTPSConnection(host, port, timeout=TIMEOUT_S, context=client_context())
    return http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)


def _problem(told: dict[str, Any]) -> str:
    error = told.get("error")
    message = error.get("message") if isinstance(error, dict) else error
    return message if isinstance(message, str) else "it was refused"
