"""Where prompts are saved whose sequences can't be cut, and so can only be reused whole."""

from __future__ import annotations

import bisect
from collections.abc import Sequence

from umaserve.sessions.engine_api import without_parts

BEFORE_END = 4
"""The last checkpoint lies so many tokens before a prompt's end: where the same prompt comes again, the last token is
to be computed, and in the next turn, some templates write the beginning of the answer otherwise."""
FIRST_CHECKPOINT = 1024
"""The checkpoints of a long prompt: here, and each at twice the length of the one before. A prompt that differs further
on computes at most half of the rest again, and all of them together take no more memory than twice the prompt."""
MIN_CHECKPOINT = 16
"""The fewest tokens that a checkpoint saves over the one before."""


class Checkpoints:
    """The lengths, in tokens, at which one prompt is saved, including those already passed.

    They lie beyond the ``reused`` tokens: before the prompt's end, at doubling lengths, and where the prompt leaves the
    ``known`` tokens of another one, which more prompts may share. Without ``tokens`` there are none.
    """

    def __init__(self, tokens: Sequence[int] = (), reused: int = 0, known: int = 0) -> None:
        self._lengths: list[int] = []
        last = len(tokens) - BEFORE_END
        if last < MIN_CHECKPOINT:
            return
        wanted = {last, min(known, last)}
        length = FIRST_CHECKPOINT
        while length < last:
            wanted.add(length)
            length *= 2
        for length in sorted(without_parts(tokens, length) for length in wanted):
            if length - max([reused, *self._lengths[-1:]]) >= MIN_CHECKPOINT:
                self._lengths.append(length)

    def __contains__(self, length: int) -> bool:
        return length in self._lengths

    def before(self, end: int, computed: int) -> int:
        """``end``, or the next checkpoint after ``computed`` tokens, if that comes before."""
        following = bisect.bisect_right(self._lengths, computed)
        return min([end, *self._lengths[following : following + 1]])

    def at(self, length: int, computed: int) -> int | None:
        """Add a checkpoint at ``length`` where it pays; returns that, or the last one before it, if there is one."""
        index = bisect.bisect_right(self._lengths, length)
        if length - max(computed, *self._lengths[:index], 0) >= MIN_CHECKPOINT:
            self._lengths.insert(index, length)
            return length
        return self._lengths[index - 1] if index else None
