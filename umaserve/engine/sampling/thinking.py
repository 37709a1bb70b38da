"""Closes thoughts whose budget is spent, and lets a grammar begin after them."""

from __future__ import annotations

import codecs
from collections.abc import Collection, Sequence

import numpy as np

from umaserve.chat_format.thoughts import Part, Piece, ThoughtSplitter
from umaserve.engine.sampling.candidates import Logits
from umaserve.engine.sampling.constraint import Constraint

MAX_BLANK = 8
"""Most characters of white space before a text that a grammar begins with: small models write it without end."""


class Thinking:
    """Follows the tokens of one sequence. ``thoughts`` is given their text; ``pieces`` are the bytes of each token.

    After ``budget`` tokens of thought, not within a character, the tokens ``closing`` follow by force; ``None``: never.
    """

    def __init__(
        self, pieces: Sequence[bytes], thoughts: ThoughtSplitter, closing: Sequence[int], budget: int | None
    ) -> None:
        self.pieces = pieces
        self.thoughts = thoughts
        self._closing = closing
        self._left = budget
        self._forced: list[int] = []
        """Tokens still to come by force."""
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def forced(self) -> int | None:
        """The token that has to come next, if there is one."""
        within_character = bool(self._decoder.getstate()[0])
        if not self._forced and self._left == 0 and self.thoughts.thinking and not within_character:
            self._forced = list(self._closing)
        return self._forced[0] if self._forced else None

    def accept(self, token: int) -> None:
        """Advance by ``token``."""
        if self._forced:
            del self._forced[0]
        elif self._left and self.thoughts.thinking:
            self._left -= 1
        self.thoughts.push(self._decoder.decode(self.pieces[token]))

    def close(self) -> None:
        """Spend the rest of the budget."""
        self._left = 0

    def after(self, token: int) -> tuple[ThoughtSplitter, list[Piece]]:
        """State that ``accept`` would give ``thoughts``, and the pieces that ``token`` completes."""
        state, thoughts = self._decoder.getstate(), self.thoughts.copy()
        pieces = thoughts.push(self._decoder.decode(self.pieces[token]))
        self._decoder.setstate(state)
        return thoughts, pieces


class AfterThoughts:
    """Holds the text after the thoughts that ``thinking`` follows to ``grammar``, which never sees them, nor marks, nor
    white space around them. Where no thought has begun, the text may begin with one or with what the grammar allows."""

    def __init__(
        self, grammar: Constraint, thinking: Thinking, end_tokens: Collection[int], *, more_marks: bool
    ) -> None:
        """``more_marks``: whether other marks, or another thought, may follow a thought."""
        self.grammar = grammar
        self.field = grammar.field
        self._thinking = thinking
        self._ends = list(end_tokens)
        self._more_marks = more_marks
        self._closed = False
        """Whether a thought was closed after which only the grammar's text may follow."""
        self._begun = False
        """Whether the text of the grammar has begun."""
        self._held: list[int] = []
        """Tokens that may be the beginning of a mark or of that text."""

    def accept(self, token: int) -> bool:
        """Advance by ``token``, as ``Constraint.accept``; afterwards ``thinking`` advances."""
        if self._begun:
            return self.grammar.accept(token)
        before = self._thinking.thoughts
        if token in self._ends:
            return self.grammar.waiting if before.thinking else self._begin(token)
        after, pieces = self._thinking.after(token)
        if not after.answering:
            if not after.held.strip():
                self._held = []
                self._closed |= before.thinking and not after.thinking and not self._more_marks
                return after.thinking or len(after.held) <= MAX_BLANK
            if self._closed:
                return self._begin(token)
            if not after.thinking:
                self._held.append(token)
            return True
        said = any(part is Part.ANSWER and text.strip() for part, text in pieces)
        if not said:
            self._begun, self._held = True, []
            return True
        marked = any(part is Part.MARK and text.strip() for part, text in pieces)
        # The grammar would miss what the token has of the answer.
        return self._begin(token) if not marked else self.grammar.waiting

    def mask(self, logits: Logits, forbidden: int) -> Logits:
        """Copy of ``logits`` with -inf for forbidden tokens, as ``Constraint.mask``."""
        if self._begun:
            return self.grammar.mask(logits, forbidden)
        if self._thinking.thoughts.thinking:
            left = logits.copy()
            if not self.grammar.waiting:
                left[self._ends] = -np.inf
        else:
            grammar = self._fed(self._held)
            left = np.full_like(logits, -np.inf) if grammar is None else grammar.mask(logits, forbidden)
            if not self._closed:
                marks = self._thinking.thoughts.continuing(self._thinking.pieces)
                left[marks] = logits[marks]
        left[forbidden] = -np.inf
        return left

    def _begin(self, token: int) -> bool:
        """Whether the grammar allows the tokens held and ``token``; then its text has begun."""
        if not self._held:
            self._begun = self.grammar.accept(token)
            return self._begun
        grammar = self._fed([*self._held, token])
        if grammar is None:
            return False
        self.grammar, self._begun, self._held = grammar, True, []
        return True

    def _fed(self, tokens: Sequence[int]) -> Constraint | None:
        """The grammar after ``tokens``; ``None`` if it forbids one of them."""
        if not tokens:
            return self.grammar
        grammar = self.grammar.copy()
        return grammar if all(map(grammar.accept, tokens)) else None
