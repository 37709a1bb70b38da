"""How a tick's runs are divided into decodes."""

from __future__ import annotations

import pytest

from umaserve.sessions.decodes import SHARED_ROWS, WIDE_ROWS, decodes
from umaserve.sessions.engine_api import Run, Span

STREAM = Run(0, 9, [1], object())
DRAFTED = Run(1, 9, [1, 2, 3], object(), draft_tokens=2)
LATE = Run(2, 9, [], object())
SHORT = Run(3, 0, [1] * (WIDE_ROWS // 3), None)
FITTING = SHARED_ROWS // len(SHORT.tokens)
LONG = Run(4, 0, [1] * WIDE_ROWS, None)


@pytest.mark.parametrize(
    ("runs", "apart", "together"),
    [
        ([], [], []),
        ([LATE], [], []),
        ([STREAM, DRAFTED, LATE, STREAM], [[0, 1, 3]], [[0, 1, 3]]),
        ([SHORT] * (FITTING + 1), [[*range(FITTING)], [FITTING]], [[*range(FITTING + 1)]]),
        ([LONG, SHORT, SHORT, LONG, SHORT], [[0], [1, 2], [3], [4]], [[0, 1, 2, 3, 4]]),
        ([STREAM, LONG, SHORT, STREAM, SHORT], [[0, 3], [1], [2, 4]], [[0, 1, 2, 3, 4]]),
    ],
)
def test_streams_share_a_decode_and_so_do_prompts_of_few_rows(
    runs: list[Run], apart: list[list[int]], together: list[list[int]]
) -> None:
    assert decodes(runs, prompts_apart=True) == apart
    assert decodes(runs, prompts_apart=False) == together


def test_media_are_in_none() -> None:
    class Chunk:
        encoded = True

    media = SHORT._replace(span=Span(0, WIDE_ROWS, Chunk(), whole=True))
    assert decodes([media, STREAM], prompts_apart=True) == [[1]]
