"""The text of one answer as its client may see it: made from tokens, cut at stop strings, and filtered."""

from __future__ import annotations

from umaserve.messages import FinishReason
from umaserve.serving.content_filter import FilteredStream
from umaserve.serving.ticks import Text


class AnswerText:
    """``text`` seen through ``filtered``, if there is a content filter."""

    def __init__(self, text: Text, filtered: FilteredStream | None) -> None:
        self._text = text
        self._filtered = filtered

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the text."""
        return self._text.stop_string

    def push(self, token: int) -> tuple[str, FinishReason | None]:
        """The text that ``token`` releases, and why the answer ends there, if it does; raises ``RequestError``."""
        text, stopped = self._text.push(token)
        if self._filtered is None:
            return text, FinishReason.STOP if stopped else None
        released, matched = self._filtered.push(text)
        if stopped and not matched:
            rest, matched = self._filtered.finish()
            released += rest
        if matched:
            return released, FinishReason.CONTENT_FILTER
        return released, FinishReason.STOP if stopped else None

    def finish(self) -> tuple[str, bool]:
        """The text still held back, and whether the filter cut it short."""
        text = self._text.finish()
        if self._filtered is None:
            return text, False
        released, matched = self._filtered.push(text)
        if matched:
            return released, True
        rest, matched = self._filtered.finish()
        return released + rest, matched
