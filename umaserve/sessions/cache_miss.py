"""Finds where a prompt leaves a known sequence that is nearly the same."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

from umaserve.core.events import CacheMiss

RUN = 32
"""Tokens in a row behind the first difference that two sequences which are nearly the same have in common: without it,
they would not have to be computed. All common runs of at least 2 * ``RUN`` - 1 tokens are found."""
SEARCHED = 512
"""Tokens after the difference in which common runs are looked for, and as many before the end."""
MIN_KINDS = 8
"""Least number of different tokens in a run: a line of dashes doesn't make two texts alike."""
SHOWN = 4
"""Tokens behind the difference that are told as text."""
SHOWN_BEFORE = 16
"""Tokens before the difference that are told as text."""


class Difference(NamedTuple):
    """The first difference between a prompt and a known sequence."""

    at: int
    """Tokens before the difference."""
    known: tuple[int, ...]
    """The next tokens of the known sequence."""
    known_tokens: int
    """The length of the known sequence."""


def difference(prompt: Sequence[int], known: Sequence[int], common: int) -> Difference | None:
    """Where the prompt, which begins with ``common`` tokens of a known sequence, leaves it; ``None`` unless they are
    nearly the same. Another answer to the same prompt, and another conversation with the same beginning, are not."""
    if min(len(prompt), len(known)) < common + RUN or prompt[common] == known[common]:
        return None
    if not _common_run(_ends(prompt, common), _ends(known, common)):
        return None
    return Difference(common, tuple(known[common : common + SHOWN]), len(known))


def cache_miss(
    found: Difference, prompt: Sequence[int], text_of: Callable[[Sequence[int]], str], *, tells_known: bool
) -> CacheMiss:
    """Describe ``found`` for the client who sent the prompt. ``tells_known``: this client may read the known
    sequence."""

    def text(tokens: Sequence[int]) -> str:
        return text_of(list(itertools.takewhile(_is_text, tokens)))

    before = list(itertools.takewhile(_is_text, reversed(prompt[max(0, found.at - SHOWN_BEFORE) : found.at])))
    return CacheMiss(
        found.at,
        len(prompt),
        text_of(before[::-1]),
        text(prompt[found.at : found.at + SHOWN]),
        text(found.known) if tells_known else None,
    )


def _is_text(token: int) -> bool:
    return token >= 0


def _ends(tokens: Sequence[int], start: int) -> tuple[int, ...]:
    """The tokens from ``start`` on, without those in the middle if there are many."""
    if len(tokens) - start <= 2 * SEARCHED:
        return tuple(tokens[start:])
    return (*tokens[start : start + SEARCHED], *tokens[-SEARCHED:])


def _common_run(ours: tuple[int, ...], theirs: tuple[int, ...]) -> bool:
    blocks = (theirs[at : at + RUN] for at in range(0, len(theirs) - RUN + 1, RUN))
    runs = {block for block in blocks if len(set(block)) >= MIN_KINDS}
    begun = {run[:2] for run in runs}
    return any(ours[at : at + RUN] in runs for at, pair in enumerate(itertools.pairwise(ours)) if pair in begun)
