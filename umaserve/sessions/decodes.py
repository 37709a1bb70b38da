"""How the runs of text of a tick are divided into decodes."""

from __future__ import annotations

from collections.abc import Sequence

from umaserve.sessions.engine_api import Run

WIDE_ROWS = 64
"""llama.cpp's attention on a CPU computes so many rows of a decode together, in another kernel, which rounds
differently."""
SHARED_ROWS = 256
"""Most rows of the prompts that share a decode."""


def decodes(runs: Sequence[Run], *, prompts_apart: bool) -> list[list[int]]:
    """The indices of the runs of each decode, in order; runs of media, and those without tokens, are in none.

    With ``prompts_apart`` the first decode is that of all streams. The others are those of prompts: those with
    fewer than ``WIDE_ROWS`` rows share one of up to ``SHARED_ROWS``, since each decode reads all weights, and rows of a
    large one take less; the others have their own, and round as they do alone.
    """
    text = [index for index, run in enumerate(runs) if run.span is None and run.tokens]
    if not prompts_apart:
        return [text] if text else []
    streams: list[int] = []
    prompts: list[list[int]] = []
    room = 0
    for index in text:
        run = runs[index]
        rows = len(run.tokens)
        if rows == 1 + run.draft_tokens:
            streams.append(index)
            continue
        if rows > room or rows >= WIDE_ROWS:
            prompts.append([])
            room = SHARED_ROWS if rows < WIDE_ROWS else 0
        prompts[-1].append(index)
        room -= rows
    return [streams, *prompts] if streams else prompts
