"""GBNF for literal texts."""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import groupby

MAX_NESTING = 100


def literal(text: str) -> str:
    """GBNF for ``text``, which must not have control characters."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def one_of(texts: Iterable[str]) -> str:
    """GBNF for any of ``texts``, at least one.

    Common prefixes are shared, since llama.cpp tries the whole vocabulary in each remaining alternative.
    """
    return _one_of(sorted(set(texts)), MAX_NESTING)


def _one_of(texts: list[str], levels: int) -> str:
    if not levels:
        return " | ".join(map(literal, texts))
    alternatives = []
    for _first, group in groupby(filter(None, texts), lambda text: text[0]):
        alike = list(group)
        # The texts are sorted: a common prefix of the first and the last is one of all.
        common = os.path.commonprefix([alike[0], alike[-1]])  # noqa: RUF071 — characters are meant
        rests = [text[len(common) :] for text in alike]
        after = "" if rests == [""] else f" ({_one_of(rests, levels - 1)})"
        alternatives.append(literal(common) + after)
    if "" in texts:
        alternatives.append('""')
    return " | ".join(alternatives)
