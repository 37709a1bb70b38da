"""The names by which clients and the operator call models."""

from __future__ import annotations

DEFAULT = "default"
"""The default model's name for clients, beside the empty one."""
MAX_NAME = 200
"""Bytes of a name, so that a request's has room for Ollama's tag."""
_TAG, _ENDING = ":latest", ".gguf"


def is_name(text: str) -> bool:
    """Whether a model may have this name."""
    return (
        1 <= len(text.encode(errors="replace")) <= MAX_NAME and text.isprintable() and text.strip() == text != DEFAULT
    )


def spellings(name: str) -> tuple[str, ...]:
    """The names that ``name`` may stand for, the likeliest first: itself, without Ollama's tag, without its file's
    ending."""
    bare = name.removesuffix(_TAG)
    return tuple(dict.fromkeys((name, bare, bare.removesuffix(_ENDING))))
