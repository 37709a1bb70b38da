"""From tokens to text: only whole characters, and no part of a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from umaserve.chat_format.thoughts import Part, ThoughtSplitter


class Detokenizer:
    """The text of one generation.

    ``pieces`` are the bytes of each token id. Characters split across tokens are held until they are complete, and
    text that may become one of ``stops`` is held until that is decided. With ``thoughts``, which is given the same
    text, those tokens are counted; ``stops`` apply to them only if they are ``everywhere``.
    """

    def __init__(
        self,
        pieces: Sequence[bytes],
        stops: Sequence[str],
        thoughts: ThoughtSplitter | None = None,
        *,
        everywhere: bool = True,
    ) -> None:
        self._pieces = pieces
        self._stops = stops
        self._thoughts = thoughts
        self._in_answer = thoughts is not None and not everywhere
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""
        self.stop_string: str | None = None
        """The stop string that was reached."""
        self._released = 0
        """How many characters that ``thoughts`` holds were released before there were stops."""
        self._undecided = 0
        """Tokens since the last one of which it is known whether it belongs to a thought."""
        self.thought_tokens = 0
        """Tokens so far that are thoughts, or marks around them."""

    def set_stops(self, stops: Sequence[str]) -> None:
        """Stop at ``stops`` from now on. If the text held contains one, the next call stops there."""
        if not self._stops and self._thoughts is not None:
            self._released = len(self._thoughts.held)
        self._stops = stops

    def push(self, token: int) -> tuple[str, bool]:
        """The text that ``token`` completes, and whether a stop string was reached (then the text ends before it)."""
        new = self._decoder.decode(self._pieces[token])
        if self._thoughts is None:
            return self._release(new)
        thinking = self._thoughts.thinking
        pieces = self._thoughts.push(new)
        self._count(thinking, any(part is Part.THOUGHT for part, _text in pieces))
        if not self._stops or not self._in_answer:
            return self._release(new)
        released = ""
        for part, text in pieces:
            text, self._released = text[self._released :], max(0, self._released - len(text))
            if part is Part.ANSWER:
                more, stopped = self._release(text)
                released += more
                if stopped:
                    return released, True
            else:
                # What is held can't become a stop string any more.
                released, self._held = released + self._held + text, ""
        return released, False

    def finish(self) -> str:
        """The text still held, up to a stop string in it; afterwards nothing is held."""
        new = self._decoder.decode(b"", final=True)
        if self._thoughts is not None and self._stops and self._in_answer:
            pieces = [*self._thoughts.push(new), *self._thoughts.finish()]
            new = "".join(text for _part, text in pieces)[self._released :]
            self._released = 0
            if pieces and pieces[-1][0] is Part.THOUGHT:
                return new
        text, _stopped = self._release(new)
        text, self._held = text + self._held, ""
        return text

    def _count(self, thinking: bool, thought: bool) -> None:
        """Count a token. ``thinking``: whether it follows a thought's text; ``thought``: whether it adds to it."""
        assert self._thoughts is not None
        self._undecided += 1
        if thinking or thought or self._thoughts.thinking:
            self.thought_tokens += self._undecided
            self._undecided = 0
        elif self._thoughts.answering:
            self._undecided = 0

    def _release(self, new: str) -> tuple[str, bool]:
        text = self._held + new
        if not self._stops:
            self._held = ""
            return text, False
        # The stop string that is complete first ends the text, not the one that begins first: with shorter tokens, only
        # the former would have been seen.
        found = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            _end, at, self.stop_string = min(found)
            self._held = ""
            self._decoder.reset()
            return text[:at], True
        keep = max(_border(text, stop) for stop in self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], False


def _border(text: str, stop: str) -> int:
    """Length of the longest suffix of ``text`` that is a proper prefix of ``stop``."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
