"""Paths of llama-server that are not served: why, and what to do instead."""

from __future__ import annotations

from collections.abc import Mapping

ABSENT: Mapping[str, str] = {
    "GET /tools": "no tool runs here: a client's own tools go into tools of a chat, and agents run theirs",
    "POST /tools": "no tool runs here: a client's own tools go into tools of a chat, and agents run theirs",
    "GET /cors-proxy": "requests are not passed on to other servers: ask them yourself",
    "POST /cors-proxy": "requests are not passed on to other servers: ask them yourself",
    "POST /v1/systemone": "decision models are not served: ask a chat model with a JSON schema (response_format)",
}
"""By method and path."""
