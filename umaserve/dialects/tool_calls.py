"""Finds tool calls in generated text while it streams."""

from __future__ import annotations

import re
from collections.abc import Callable

import orjson

from umaserve.messages import TOOL_CALL_CLOSE, TOOL_CALL_OPEN, ToolCall

_ESCAPE = re.compile(r"\\.", re.DOTALL)


class ToolCallParser:
    """Splits a stream of text into content and calls; the result doesn't depend on how the text is split.

    ``new_id`` gives each call its id. With ``only_first``, everything after the first call is dropped.
    """

    def __init__(self, new_id: Callable[[], str], *, only_first: bool = False) -> None:
        self._new_id = new_id
        self._only_first = only_first
        self._called = False
        # White space that is dropped if a call follows it; None once content has begun since the last call.
        self._blank: str | None = ""
        self._held = ""
        # How far an open block was searched for its end, and whether a JSON string is open there.
        self._searched = 0
        self._in_string = False

    def push(self, text: str) -> tuple[str, list[ToolCall]]:
        """The content that ``text`` releases, and the calls that it completes."""
        self._held += text
        content: list[str] = []
        calls: list[ToolCall] = []
        while not (self._called and self._only_first):
            if not self._held.startswith(TOOL_CALL_OPEN):
                at = self._held.find(TOOL_CALL_OPEN)
                if at < 0:
                    at = len(self._held) - _held_back(self._held)
                content.append(self._content(at))
                if not self._held.startswith(TOOL_CALL_OPEN):
                    break
            if self._held[len(TOOL_CALL_OPEN) :].lstrip()[:1] not in ("", "{"):
                # Plain text that mentions the tag: don't hold it back for an end that may never come.
                content.append(self._content(len(TOOL_CALL_OPEN)))
                continue
            end = self._block_end()
            if end is None:
                break
            call = self._call(self._held[len(TOOL_CALL_OPEN) : end - len(TOOL_CALL_CLOSE)])
            if call is None:
                content.append(self._content(end))
            else:
                calls.append(call)
                self._called, self._blank = True, ""
                self._drop(end)
        else:
            self._held = ""
        return "".join(content), calls

    def finish(self) -> str:
        """The content still held: a block without its end, or white space that no call follows."""
        if self._called and self._only_first:
            return ""
        content = self._content(len(self._held))
        if not self._called:
            content += self._blank or ""
        self._blank = None
        return content

    def _content(self, length: int) -> str:
        """The first ``length`` held characters, without white space that a call may still follow."""
        text = self._held[:length]
        self._drop(length)
        if self._blank is None:
            return text
        text = self._blank + text
        if not text or text.isspace():
            self._blank = text
            return ""
        self._blank = None
        return text

    def _drop(self, length: int) -> None:
        self._held = self._held[length:]
        self._searched, self._in_string = 0, False

    def _block_end(self) -> int | None:
        """The end of the held block: after the first closing tag outside JSON strings; ``None`` if there is none
        yet."""
        while True:
            at = self._held.find(TOOL_CALL_CLOSE, self._searched)
            if at < 0:
                return None
            end = at + len(TOOL_CALL_CLOSE)
            quotes = _ESCAPE.sub("", self._held[self._searched : end]).count('"')
            self._in_string ^= quotes % 2 == 1
            self._searched = end
            if not self._in_string:
                return end

    def _call(self, block: str) -> ToolCall | None:
        try:
            value = orjson.loads(block)
        except orjson.JSONDecodeError:
            return None
        if not isinstance(value, dict):
            return None
        name, arguments = value.get("name"), value.get("arguments", {})
        if not isinstance(name, str) or not name or not isinstance(arguments, dict):
            return None
        try:
            text = orjson.dumps(arguments).decode()
        except orjson.JSONEncodeError:  # orjson reads deeper nesting than it writes.
            return None
        return ToolCall(self._new_id(), name, text)


def _held_back(text: str) -> int:
    """The length of the longest end of ``text`` that may be the start of an opening tag."""
    lengths = range(min(len(text), len(TOOL_CALL_OPEN) - 1), 0, -1)
    return next((length for length in lengths if text.endswith(TOOL_CALL_OPEN[:length])), 0)
