"""The headers that an intermediary forwards with an HTTP message (RFC 9110, section 7.6)."""

from __future__ import annotations

from collections.abc import Iterable

PSEUDONYM = "umaserve"
"""Our name in ``Via``."""
_OF_ONE_CONNECTION = frozenset(
    (
        "connection",
        "content-length",  # The next connection's framing sets its own.
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    )
)


def end_to_end(headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """``headers`` without the hop-by-hop ones: known by name, or listed in ``Connection`` (section 7.6.1)."""
    fields = [(name.lower(), name, value) for name, value in headers]
    dropped = set(_OF_ONE_CONNECTION)
    for key, _, value in fields:
        if key == "connection":
            dropped.update(option.strip(" \t").lower() for option in value.split(","))
    return [(name, value) for key, name, value in fields if key not in dropped]


def joined(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    """``headers`` (names in lower case) as a mapping; repeated ones are joined with commas (RFC 9110, section 5.3).

    ``Cookie`` is joined with semicolons (RFC 6265, section 4.2.1). ``Set-Cookie`` can't be joined, since its values
    contain commas: only the first one is kept.
    """
    fields: dict[str, str] = {}
    for name, value in headers:
        if name not in fields:
            fields[name] = value
        elif name != "set-cookie":
            fields[name] += ("; " if name == "cookie" else ", ") + value
    return fields


def via(version: str, before: str | None) -> str:
    """The ``Via`` to forward (section 7.6.3) for a message received over HTTP ``version``, such as "1.1"; ``before`` is
    the ``Via`` that it came with."""
    ours = f"{version} {PSEUDONYM}"
    return f"{before}, {ours}" if before else ours
