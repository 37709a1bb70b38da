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
CONVERSATIONS = frozenset(("/generate", "/ws/chat"))
"""Whose WebSockets' messages it answers."""
