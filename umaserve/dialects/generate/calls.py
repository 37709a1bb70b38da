"""The tool calls in a generation's text."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from umaserve.chat_format.tool_calls import CallPiece, ToolCallParser


class Calls:
    """Calls that are read while the text comes, so that no long text is read at once.

    ``new_parser`` is called once there is text, since how a model writes calls is known once it is loaded.
    """

    def __init__(self, new_parser: Callable[[], ToolCallParser], text: str = "") -> None:
        """``text``: what has come already."""
        self._new_parser = new_parser
        self._parser: ToolCallParser | None = None
        self._unread = text
        self._text = ""
        self._begun: dict[int, dict[str, Any]] = {}
        """By their indexes."""
        self._whole: list[dict[str, Any]] = []

    def push(self, text: str) -> None:
        """Read the next text."""
        if self._parser is None:
            self._parser = self._new_parser()
            text, self._unread = self._unread + text, ""
        self._take(*self._parser.push(text))

    def finish(self) -> None:
        """Read the end of the text."""
        self.push("")
        if self._parser is not None:
            self._take(*self._parser.finish())

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of a completion: the calls, and the text without them. A call that was cut off is none."""
        return {"text": self._text, "tool_calls": self._whole} if self._whole else {}

    def _take(self, content: str, pieces: Iterable[CallPiece]) -> None:
        self._text += content
        for piece in pieces:
            if piece.name:
                function = {"name": piece.name, "arguments": ""}
                self._begun[piece.index] = {"id": piece.id, "type": "function", "function": function}
            self._begun[piece.index]["function"]["arguments"] += piece.arguments
            self._text += piece.cut
            if piece.whole:
                self._whole.append(self._begun[piece.index])
