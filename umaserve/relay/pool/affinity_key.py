"""The beginning of a request, by which its conversation goes back to the worker that has computed it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

MAX_TEXT = 512
"""Characters of each text that count, so that the time does not grow with a client's documents. Of a prompt without
turns, whose end changes from request to request, these are the beginning."""
MAX_TURNS, MAX_PARTS, MAX_DEPTH = 16, 16, 4
_ABOVE = ("system", "instructions")
"""Fields that a template puts before all turns."""
_TEXTS = ("prompt", "input_prefix")


def affinity_key_of(
    values: Mapping[str, Any], scope: Sequence[str], turns: Iterable[Mapping[str, Any]] | None = None
) -> int | None:
    """64 bits that all turns of a conversation have in common, by the fields of its body: of the system prompt and the
    user's first message, else of the start of its text. Another ``scope`` (a client, a model) gives others. ``turns``:
    those that the body means, where it does not contain them. ``None`` where there is no such text; a body that is
    wrong is its worker's to refuse."""
    texts: list[bytes] = []
    if turns is None:
        turns = next((found for name in ("messages", "prompt") if _are_turns(found := values.get(name))), None)
    if turns is not None:
        texts = [*_first(turns)]
    elif text := next((text for name in _TEXTS if (text := values.get(name))), None):
        texts = [*_texts(text)]
    if not texts:
        return None
    digest = hashlib.blake2b(digest_size=8)
    for part in (*map(str.encode, scope), *_texts([values.get(name) for name in _ABOVE]), *texts):
        digest.update(len(part).to_bytes(8))
        digest.update(part)
    return int.from_bytes(digest.digest())


def _are_turns(value: object) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict)


def _first(turns: Iterable[Any]) -> Iterator[bytes]:
    """The texts up to the user's first turn."""
    for turn, _ in zip(turns, range(MAX_TURNS), strict=False):
        if not isinstance(turn, dict):
            return
        yield from _texts(turn.get("content"))
        if turn.get("role") == "user":
            return


def _texts(value: Any, depth: int = 0) -> Iterator[bytes]:
    """The beginnings of the texts in a content, whatever the dialect: a text alone is as one in parts."""
    if depth > MAX_DEPTH:
        return
    match value:
        case str():
            yield value[:MAX_TEXT].encode()
        case memoryview():
            yield bytes(value[:MAX_TEXT])
        case {"text": str(text)}:
            yield text[:MAX_TEXT].encode()
        case dict() | list():
            parts = value if isinstance(value, list) else [*value.values()]
            for part in parts[:MAX_PARTS]:
                yield from _texts(part, depth + 1)
