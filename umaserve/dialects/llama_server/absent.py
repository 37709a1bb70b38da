"""Paths of llama-server that are not served: why, and what to do instead."""

from __future__ import annotations

from collections.abc import Mapping

_MODELS = "this daemon neither downloads nor deletes models, which are its operator's: in a shell, "
ABSENT: Mapping[str, str] = {
    "POST /models": _MODELS + "umaserve pull hf.co/ORG/REPOSITORY downloads one, which is then served at once",
    "DELETE /models": _MODELS + "umaserve models remove NAME deletes one",
    "GET /tools": "no tool runs here: a client's own tools go into tools of a chat, and agents run theirs",
    "POST /tools": "no tool runs here: a client's own tools go into tools of a chat, and agents run theirs",
    "GET /cors-proxy": "requests are not passed on to other servers: ask them yourself",
    "POST /cors-proxy": "requests are not passed on to other servers: ask them yourself",
    "POST /v1/systemone": "decision models are not served: ask a chat model with a JSON schema (response_format)",
}
"""By method and path."""
