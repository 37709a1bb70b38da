"""Whom ``umaserve chat`` asks before a tool runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from umaserve.commands.chat.tools import Approvals


@pytest.mark.parametrize(
    ("typed", "allowed"),
    [
        (["y", "n", "y"], [True, False, True]),
        (["a"], [True, True, True]),
        (["v"], [False, False, False]),
        (["what?", "", "N", "Yes", "always"], [False, True, True]),
    ],
)
def test_an_answer_holds_once_or_for_a_tool(typed: list[str], allowed: list[bool]) -> None:
    answers: Iterator[str] = iter(typed)
    approvals = Approvals([], lambda _question: next(answers))
    assert [approvals.allow("read_file") for _ in allowed] == allowed
    assert next(answers, None) is None


def test_of_other_tools_it_says_nothing() -> None:
    answers = iter(["a", "n"])
    approvals = Approvals([], lambda _question: next(answers))
    assert (approvals.allow("read_file"), approvals.allow("write_file")) == (True, False)


def test_only_named_tools_run_where_nobody_is_asked() -> None:
    approvals = Approvals(["read_file"], None)
    assert (approvals.allow("read_file"), approvals.allow("write_file")) == (True, False)
