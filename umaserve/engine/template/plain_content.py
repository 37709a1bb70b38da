"""Keeps what the turns of a conversation say text: the name of a control token in it is no control token.

Otherwise a user's ``<|im_end|>`` would end that user's turn, and what follows could speak for others. The prompt is the
template's text, in which names are control tokens, with the contents inside; so a mark stands for each of them
while the template is rendered.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from umaserve.core.requests import Attachment, ChatTurn, ToolCall
from umaserve.engine.llama.model import Model

Tokenize = Callable[..., list[int]]
"""Function that tokenizes a text, as ``Model.tokenize``, with ``begins``."""


class PlainContent:
    """Sets names of the model's control tokens apart as text. In what the assistant said, the names by which its calls
    and thoughts are recognized stay control tokens, since that is where they come from."""

    def __init__(self, model: Model) -> None:
        self._model = model
        hidden = {model.special_text(token) for token, piece in enumerate(model.pieces) if not piece} - {""}
        self._hidden = _pattern(hidden)
        self._names = _pattern(hidden | {model.special_text(token) for token in model.shown})

    def marked(self, turns: Sequence[ChatTurn]) -> tuple[Sequence[ChatTurn], Tokenize]:
        """``turns`` with marks for the names in them, and the function that makes tokens of a prompt with marks."""
        # Random, so that no text of a client can contain it; and no JSON, which templates write in their own way.
        marks = _Marks(f"[name-{secrets.token_hex(16)}-")
        marked = [self._turn(turn, marks) for turn in turns]
        if not marks.names:
            return turns, self._model.tokenize
        return marked, marks.tokenizer(self._model)

    def _turn(self, turn: ChatTurn, marks: _Marks) -> ChatTurn:
        names = self._hidden if turn.role == "assistant" else self._names
        texts = (
            turn.content,
            turn.thoughts,
            *(text for call in turn.tool_calls for text in (call.name, call.arguments)),
        )
        if names is None or not any(map(names.search, texts)):
            return turn

        def mark(text: str) -> str:
            return names.sub(marks.mark, text)

        content, begin, attachments = "", 0, list[Attachment]()
        for one in turn.attachments:
            content += mark(turn.content[begin : one.at])
            begin = one.at
            attachments.append(Attachment(len(content), one.media))
        content += mark(turn.content[begin:])
        calls = tuple(ToolCall(call.id, mark(call.name), mark(call.arguments)) for call in turn.tool_calls)
        return replace(
            turn, content=content, attachments=tuple(attachments), thoughts=mark(turn.thoughts), tool_calls=calls
        )


class _Marks:
    """Marks of one prompt. Each is ``begins``, the number of the name that it stands for, and a bracket."""

    def __init__(self, begins: str) -> None:
        self.names: list[str] = []
        self._begins = begins

    def mark(self, name: re.Match[str]) -> str:
        if name[0] not in self.names:
            self.names.append(name[0])
        return f"{self._begins}{self.names.index(name[0])}]"

    def tokenizer(self, model: Model) -> Tokenize:
        mark = re.compile(rf"{re.escape(self._begins)}(\d+)\]")
        plain = [model.tokenize(name, special=False) for name in self.names]

        def tokenize(text: str, *, begins: bool = True) -> list[int]:
            first, *rest = mark.split(text)
            tokens = model.tokenize(first, begins=begins)
            end = [tokens.pop()] if begins and model.adds_eos else []
            for number, after in zip(rest[::2], rest[1::2], strict=True):
                tokens += plain[int(number)]
                tokens += model.tokenize(after, begins=False) if after else []
            return tokens + end

        return tokenize


def _pattern(names: Iterable[str]) -> re.Pattern[str] | None:
    """Pattern that matches any of ``names``, the longest that is there; ``None`` where there are none."""
    longest_first = sorted(names, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
