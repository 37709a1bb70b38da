"""Calls of a running daemon over HTTP, at an address or a Unix socket."""

from __future__ import annotations

import contextlib
import http.client
import socket
import urllib.parse
from collections.abc import Iterator
from typing import Any

import orjson

from umaserve.net.tls import client_context

DEFAULT_URL = "http://127.0.0.1:8080"
TIMEOUT_S = 15.0
SILENT_S = 60.0
"""The longest silence in a stream of events, in seconds: there is at least a comment every 15 s."""
_UNIX = "unix:"
_DATA, _DONE = b"data:", b"[DONE]"


class CallError(Exception):
    """The daemon can't be reached, or refuses; ``status`` is HTTP's, 0 without one."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def call(url: str, key: str | None, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """The object that is answered; raises ``CallError``. ``url`` may be unix:PATH."""
    with _answered(url, key, method, path, body, TIMEOUT_S) as answer:
        return _object(url, answer)


def events(url: str, key: str | None, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The objects in a stream of server-sent events, as they come; raises ``CallError``. ``url`` as for ``call``."""
    with _answered(url, key, "POST", path, body, SILENT_S) as answer:
        if answer.status != 200:
            _object(url, answer)
        for line in answer:
            if line.startswith(_DATA) and (data := line.removeprefix(_DATA).strip()) != _DONE:
                event = orjson.loads(data)
                if "error" in event:
                    raise CallError(_problem(event))
                yield event


@contextlib.contextmanager
def _answered(
    url: str, key: str | None, method: str, path: str, body: dict[str, Any] | None, timeout_s: float
) -> Iterator[http.client.HTTPResponse]:
    """The answer, from its body on; raises what breaks the connection as ``CallError``."""
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    content = None
    if body is not None:
        headers["Content-Type"] = "application/json"
        content = orjson.dumps(body)
    connection = _connection(url, timeout_s)
    try:
        connection.request(method, path, content, headers)
        yield connection.getresponse()
    except (http.client.HTTPException, orjson.JSONDecodeError):
        raise _foreign(url) from None
    except OSError as error:
        advice = "start a daemon with --http, or name its address with --url"
        raise CallError(f"{url}: {error.strerror or error}: {advice}") from None
    finally:
        connection.close()


def _object(url: str, answer: http.client.HTTPResponse) -> dict[str, Any]:
    """The object of an answer of status 200; raises ``CallError`` for what is none."""
    told = orjson.loads(answer.read())
    if not isinstance(told, dict):
        raise _foreign(url)
    if answer.status != 200:
        advice = ": give one with --key" if answer.status == 401 else ""
        raise CallError(_problem(told) + advice, answer.status)
    return told


def _foreign(url: str) -> CallError:
    return CallError(f"{url}: the server there is not umaserve")


def _connection(url: str, timeout_s: float) -> http.client.HTTPConnection:
    if url.startswith(_UNIX):
        return _UnixConnection(url.removeprefix(_UNIX), timeout_s)
    parts = urllib.parse.urlsplit(url)
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if parts.scheme not in ("http", "https") or not host:
        raise CallError(f"--url: expected a URL such as {DEFAULT_URL}, or unix:PATH, got {url}")
    if parts.scheme == "https":
        return http.client.HTTPSConnection(host, port, timeout=timeout_s, context=client_context())
    return http.client.HTTPConnection(host, port, timeout=timeout_s)


def _problem(told: dict[str, Any]) -> str:
    error = told.get("error")
    message = error.get("message") if isinstance(error, dict) else error
    return message if isinstance(message, str) else "it was refused"
