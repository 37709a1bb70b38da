"""The page for browsers: the files of ``umaserve/page``, and the headers that they are served with."""

from __future__ import annotations

import functools
import gzip
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable

import orjson

from umaserve.wire.http_head import Headers, Refusal, Request

_TYPES = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "json": "application/json",
    "mjs": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "woff2": "font/woff2",
}
_HEADERS = (
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    # A browser asks each time, and an unchanged file costs a 304: modules of two versions never mix.
    ("Cache-Control", "no-cache"),
)


@dataclass(frozen=True)
class _File:
    body: bytes
    headers: Headers
    etag: str

    @functools.cached_property
    def compressed(self) -> bytes:
        """The body in gzip's format: made when the first browser asks, which takes 40 ms of a megabyte."""
        return gzip.compress(self.body, mtime=0)


def _made(body: bytes, content_type: str) -> _File:
    etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = [("Content-Type", content_type), ("ETag", f"W/{etag}"), ("Vary", "Accept-Encoding"), *_HEADERS]
    return _File(body, headers, etag)


def _read(folder: Traversable, prefix: str = "") -> dict[str, _File]:
    """By their paths in the folder, which are the only names that are served."""
    files: dict[str, _File] = {}
    for entry in folder.iterdir():
        if entry.is_dir():
            files |= _read(entry, f"{prefix}{entry.name}/")
        elif content_type := _TYPES.get(entry.name.rpartition(".")[2]):
            files[prefix + entry.name] = _made(entry.read_bytes(), content_type)
    return files


FILES = _read(resources.files("umaserve").joinpath("page"))
TOOL_SERVERS = "tool_servers.json"


def wanted(request: Request) -> bool:
    """Whether the client is a browser that shows pages: it names text/html, and not after JSON."""
    qualities = dict(map(_quality, request.header_items("accept")))
    return qualities.get("text/html", 0.0) > 0.0 and qualities["text/html"] >= qualities.get("application/json", 0.0)


class WebPage:
    """The page, which may connect to the daemon and to ``tool_servers``: MCP servers by their URLs."""

    def __init__(self, tool_servers: Sequence[str]) -> None:
        named = _made(orjson.dumps(["/mcp", *tool_servers]), _TYPES["json"])
        self._files = FILES | {TOOL_SERVERS: named}
        self._policy = ("Content-Security-Policy", _policy(tool_servers))

    def index(self, request: Request) -> tuple[int, Headers, bytes]:
        """The page itself."""
        status, headers, body = self._reply(FILES["index.html"], request)
        return status, [*headers, ("Vary", "Accept")], body

    def file(self, request: Request) -> tuple[int, Headers, bytes]:
        """What the page is made of, at ``/page/{file}``; raises ``Refusal`` for any other name."""
        found = self._files.get(request.path.removeprefix("/page/"))
        if found is None:
            raise Refusal(404, f"path: there is no {request.path[:64]}: see /")
        return self._reply(found, request)

    def _reply(self, found: _File, request: Request) -> tuple[int, Headers, bytes]:
        headers = [*found.headers, self._policy]
        known = {tag.removeprefix("W/") for tag in request.header_items("if-none-match")}
        if found.etag in known or "*" in known:
            return 304, headers, b""
        if _quality_of(request, "gzip") == 0.0 or dict(headers)["Content-Type"] == _TYPES["woff2"]:
            return 200, headers, found.body
        return 200, [*headers, ("Content-Encoding", "gzip")], found.compressed


def _policy(tool_servers: Sequence[str]) -> str:
    """Nothing but our own files acts in the page, whatever a model writes."""
    return "; ".join(
        (
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            " ".join(("connect-src 'self'", *tool_servers)),
            "img-src 'self' blob: data:",
            "font-src 'self'",
            "media-src blob:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    )


def _quality_of(request: Request, coding: str) -> float:
    """What ``Accept-Encoding`` says of a coding; 0 where it does not name it."""
    return dict(map(_quality, request.header_items("accept-encoding"))).get(coding, 0.0)


def _quality(item: str) -> tuple[str, float]:
    """An item of ``Accept`` or its like: what it names, and its quality (RFC 9110, section 12.4.2)."""
    media_type, *parameters = (part.strip().lower() for part in item.split(";"))
    quality = next((part[2:] for part in parameters if part.startswith("q=")), "1")
    try:
        return media_type, float(quality)
    except ValueError:
        return media_type, 0.0
