"""Requests of coding agents, asked of a real daemon, and how much of their prompts was cached, as each API tells it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from daemon import Daemon
from http_wire import ask

Body = dict[str, Any]

CACHED = 0.95
"""Of the prompts of a conversation, from its second request on."""
WINDOWED = "gemma3"
RECURRENT = "qwen35"


class Cached(NamedTuple):
    """Tokens of a prompt, and those of them that were cached."""

    prompt: int
    cached: int

    @property
    def nearly_whole(self) -> bool:
        return self.cached >= CACHED * self.prompt


USAGE: dict[str, Callable[[Body], Cached]] = {
    "/v1/chat/completions": lambda usage: Cached(
        usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]
    ),
    "/v1/responses": lambda usage: Cached(usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"]),
    "/v1/messages": lambda usage: Cached(
        usage["input_tokens"] + usage["cache_read_input_tokens"] + usage["cache_creation_input_tokens"],
        usage["cache_read_input_tokens"],
    ),
}
"""What the usage of a reply tells, by the path."""


def asked(daemon: Daemon, path: str, body: Body) -> Cached:
    """What the usage of the answer tells."""
    response = ask(daemon, "POST", path, {"model": "any", "temperature": 0, **body})
    assert response.status == 200, response.body
    return USAGE[path](response.json["usage"])
