"""The text of one answer as its client may see it: made from tokens, cut at stop strings, filtered, and split."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from umaserve.chat_format.thoughts import ThoughtSplitter, split
from umaserve.core.events import FinishReason
from umaserve.core.requests import Generate
from umaserve.sessions.content_filter import FilteredStream
from umaserve.sessions.detokenizer import Detokenizer
from umaserve.sessions.engine_api import Engine, Prepared


class Said(NamedTuple):
    """New text, and the thoughts and the answer in it; ``answer`` is ``None`` where they aren't told apart."""

    text: str
    thoughts: str = ""
    answer: str | None = None

    def and_then(self, rest: Said) -> Said:
        """Both in one."""
        answer = None if self.answer is None else self.answer + (rest.answer or "")
        return Said(self.text + rest.text, self.thoughts + rest.thoughts, answer)


class AnswerText:
    """``text`` seen through ``filtered``, if there is a content filter, and told apart by ``thoughts``, if wanted."""

    def __init__(
        self, text: Detokenizer, filtered: FilteredStream | None, thoughts: ThoughtSplitter | None = None
    ) -> None:
        self._text = text
        self._filtered = filtered
        self._thoughts = thoughts

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the text."""
        return self._text.stop_string

    @property
    def thought_tokens(self) -> int:
        """Tokens so far that are thoughts, or marks around them."""
        return self._text.thought_tokens

    def set_stops(self, stops: Sequence[str]) -> None:
        """Stop at ``stops`` from now on."""
        self._text.set_stops(stops)

    def push(self, token: int) -> tuple[Said, FinishReason | None]:
        """The text that ``token`` releases, and why the answer ends there, if it does; raises ``RequestError``."""
        text, stopped = self._text.push(token)
        reason = FinishReason.STOP if stopped else None
        if self._filtered is not None:
            released, matched = self._filtered.push(text)
            if stopped and not matched:
                rest, matched = self._filtered.finish()
                released += rest
            text, reason = released, FinishReason.CONTENT_FILTER if matched else reason
        return self._said(text, last=reason is not None), reason

    def finish(self) -> tuple[Said, bool]:
        """The text still held back, and whether the filter cut it short."""
        text = self._text.finish()
        matched = False
        if self._filtered is not None:
            text, matched = self._filtered.push(text)
            if not matched:
                rest, matched = self._filtered.finish()
                text += rest
        return self._said(text, last=True), matched

    def _said(self, text: str, *, last: bool) -> Said:
        if self._thoughts is None:
            return Said(text)
        pieces = self._thoughts.push(text)
        return Said(text, *split([*pieces, *self._thoughts.finish()] if last else pieces))


def text_of(
    request: Generate, prepared: Prepared, engine: Engine, filtered: FilteredStream | None = None
) -> AnswerText:
    """The text of the answer to ``request``, which ``engine`` has ``prepared``."""
    form, opened = engine.info.thought_form, prepared.in_thought
    counted, told_apart = (None if opened is None else ThoughtSplitter(form, opened=opened) for _ in range(2))
    text = Detokenizer(engine.pieces, request.stop, counted, everywhere=request.stops_in_thoughts)
    return AnswerText(text, filtered, told_apart if request.splits_thoughts else None)
