"""The page for browsers: the files of ``umaserve/page``, and the headers that they are served with."""

from __future__ import annotations

import functools
import gzip
import hashlib
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable

from umaserve.wire.http_head import Headers, Refusal, Request

_TYPES = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "mjs": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "woff2": "font/woff2",
}
# Nothing but our own files acts in the page, whatever a model writes.
_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self' blob: data:",
        "font-src 'self'",
        "media-src blob:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
_HEADERS = (
    ("Content-Security-Policy", _POLICY),
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


def _read(folder: Traversable, prefix: str = "") -> dict[str, _File]:
    """By their paths in the folder, which are the only names that are served."""
    files: dict[str, _File] = {}
    for entry in folder.iterdir():
        if entry.is_dir():
            files |= _read(entry, f"{prefix}{entry.name}/")
        elif content_type := _TYPES.get(entry.name.rpartition(".")[2]):
            body = entry.read_bytes()
            etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
            headers = [("Content-Type", content_type), ("ETag", f"W/{etag}"), ("Vary", "Accept-Encoding"), *_HEADERS]
            files[prefix + entry.name] = _File(body, headers, etag)
    return files


FILES = _read(resources.files("umaserve").joinpath("page"))


def wanted(request: Request) -> bool:
    """Whether the client is a browser that shows pages: it names text/html, and not after JSON."""
    qualities = dict(map(_quality, request.header_items("accept")))
    return qualities.get("text/html", 0.0) > 0.0 and qualities["text/html"] >= qualities.get("application/json", 0.0)


def index(request: Request) -> tuple[int, Headers, bytes]:
    """The page itself."""
    status, headers, body = _reply(FILES["index.html"], request)
    return status, [*headers, ("Vary", "Accept")], body


def file(request: Request) -> tuple[int, Headers, bytes]:
    """What the page is made of, at ``/page/{file}``; raises ``Refusal`` for any other name."""
    found = FILES.get(request.path.removeprefix("/page/"))
    if found is None:
        raise Refusal(404, f"path: there is no {request.path[:64]}: see /")
    return _reply(found, request)


def _reply(found: _File, request: Request) -> tuple[int, Headers, bytes]:
    known = {tag.removeprefix("W/") for tag in request.header_items("if-none-match")}
    if found.etag in known or "*" in known:
        return 304, found.headers, b""
    if _quality_of(request, "gzip") == 0.0 or dict(found.headers)["Content-Type"] == _TYPES["woff2"]:
        return 200, found.headers, found.body
    return 200, [*found.headers, ("Content-Encoding", "gzip")], found.compressed


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
