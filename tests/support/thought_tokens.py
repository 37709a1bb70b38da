"""Tokens of texts with thoughts, as sessions make them."""

from __future__ import annotations

from collections.abc import Iterable

from umaserve.chat_format.thoughts import ThoughtSplitter, split
from umaserve.core.events import Token
from umaserve.core.tool_call_format import THINK_TAGS


def split_tokens(texts: Iterable[str], *, opened: bool = False) -> list[Token]:
    """A token for each text, with thoughts and answer told apart, and one for what is left at the end."""
    splitter = ThoughtSplitter(THINK_TAGS, opened=opened)
    said = [(text, *split(splitter.push(text))) for text in texts] + [("", *split(splitter.finish()))]
    return [Token(text, 1, thoughts=thoughts, answer=answer) for text, thoughts, answer in said]
