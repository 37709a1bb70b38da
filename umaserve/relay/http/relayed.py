"""The paths whose requests a worker answers."""

from __future__ import annotations

from umaserve.relay.http.intake import FORM_PATHS, MESSAGES, SHOW, SPEECH
from umaserve.relay.http.responses import RESPONSES

ANTHROPIC_PATHS = frozenset((MESSAGES, f"{MESSAGES}/count_tokens"))
ALIASES = {
    "/chat/completions": "/v1/chat/completions",
    "/chat/completions/input_tokens": "/v1/chat/completions/input_tokens",
    "/responses": "/v1/responses",
    "/audio/transcriptions": "/v1/audio/transcriptions",
    "/completions": "/completion",
    "/embeddings": "/embedding",
}
"""Other names of paths."""
RELAYED = frozenset(
    (
        *ALIASES,
        *ANTHROPIC_PATHS,
        *RESPONSES,
        "/v1/chat/completions",
        "/v1/chat/completions/input_tokens",
        "/v1/completions",
        "/v1/embeddings",
        "/api/chat",
        "/api/generate",
        "/api/embed",
        "/api/embeddings",
        SHOW,
        "/completion",
        "/infill",
        "/embedding",
        "/tokenize",
        "/detokenize",
        SPEECH,
        *FORM_PATHS,
    )
)
REALTIME = "/v1/realtime"
CONVERSATIONS = frozenset(("/generate", "/ws/chat", REALTIME))
"""Whose WebSockets' messages it answers."""
_KEEPS_NONE = "a relay keeps no files and runs no batches: send them to a daemon that has --store"
_INSTEAD = {
    "GET /v1/responses": "a relay has the WebSocket of /v1/realtime, and of responses none: POST each one",
    "/v1/files": _KEEPS_NONE,
    "/v1/batches": _KEEPS_NONE,
    f"{REALTIME}/client_secrets": "a relay makes no client secrets: make a key for the page (umaserve keys add, or POST"
    " /admin/keys), and revoke it when the page is left",
}
"""What to do instead of requests that only daemons answer, by the beginnings of their paths."""


def instead_of(path: str) -> str | None:
    """What to do instead of a request to this path, which is not served; ``None`` for those that nobody has."""
    return next((told for above, told in _INSTEAD.items() if f"{path}/".startswith(f"{above}/")), None)
