"""Pieces to speak, out of text that comes token by token: sentences, and what stands for them where there are none."""

from __future__ import annotations

import re

import regex

from umaserve.speech.plain_text import PlainText

LIMIT = 200
"""Characters in a piece at most: some 12 s of speech, while which nobody else's answer is spoken."""
FIRST_CLAUSE = 20
"""Characters that the first piece has at least where it ends within a sentence: while it is heard, more text comes."""

_ENDS = ".!?…"
_CLAUSE_ENDS = ",;:—\N{EN DASH}"
_CLOSING = "\"')]}”»\N{RIGHT SINGLE QUOTATION MARK}"
_OPENING = "\"'([{“«\N{LEFT SINGLE QUOTATION MARK}"
_NEWLINES = frozenset("\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029")
_INITIALS = re.compile(r"[^\W\d_](?:\.[^\W\d_])*")
_ABBREVIATIONS = re.compile(
    "Mr|Mrs|Ms|Mx|Dr|Prof|Rev|Hon|Fr|St|Mt|Ft|Gen|Col|Maj|Capt|Lt|Sgt|Cpl|Sr|Jr|Gov|Sen|Rep|Pres|Messrs"
    "|vs|cf|approx|ca|viz|incl|esp|resp"
)
_BEFORE_NUMBERS = re.compile(
    "Nos?|Nr|Figs?|Eqs?|Sec|Ch|Art|Vol|pp|par|ver|Jan|Feb|Mar|Apr|Aug|Sept?|Oct|Nov|Dec",
)
# Emoji, with what joins and colours them, and what can't be seen.
_UNSPOKEN = regex.compile(
    r"[\p{Extended_Pictographic}\p{Emoji_Modifier}\p{Regional_Indicator}\uFE0E\uFE0F\u20E3\p{C}]+"
)


class Sentences:
    """The pieces are the same wherever the text is cut; what is kept between calls is bounded by ``LIMIT``.

    A sentence ends at a newline, or at its mark once a further word that begins like a sentence shows that the mark was
    no abbreviation's. The first piece may be a clause. Markdown's marks, code blocks and emoji are left out.
    """

    def __init__(self) -> None:
        self._plain = PlainText()
        self._text = ""
        self._first = True

    def push(self, text: str) -> list[str]:
        """Pieces that are complete with this text; it may be cut anywhere."""
        return self._split(self._plain.push(text))

    def finish(self) -> list[str]:
        """What is left at the end of the text."""
        return self._split(self._plain.finish())

    def _split(self, text: str) -> list[str]:
        pieces: list[str] = []
        for char in text:
            if char in _NEWLINES:
                self._cut(len(self._text), pieces)
            elif char.isspace():
                if self._text and self._text[-1] != " ":
                    self._text += " "
            else:
                if self._text.endswith(" ") and self._ends_before(char):
                    self._cut(len(self._text), pieces)
                elif len(self._text) >= LIMIT:
                    self._cut(self._best_cut(), pieces)
                self._text += char
        return pieces

    def _cut(self, end: int, pieces: list[str]) -> None:
        piece = " ".join(_UNSPOKEN.sub("", self._text[:end]).split())
        self._text = self._text[end:]
        if any(map(str.isalnum, piece)):
            pieces.append(piece)
            self._first = False

    def _ends_before(self, char: str) -> bool:
        text = self._text[:-1]
        sentence = text.rstrip(_CLOSING)
        if sentence.endswith(tuple(_ENDS)):
            return not char.islower() and not (sentence[-1] == "." and _abbreviates(sentence[:-1], char))
        # Before a digit a comma is more often a date's than a clause's.
        return self._first and len(text) >= FIRST_CLAUSE and text[-1] in _CLAUSE_ENDS and not char.isdigit()

    def _best_cut(self) -> int:
        """Where a piece that is too long is cut: behind a mark in its second half, or else behind a word."""
        marks = max(self._text.rfind(mark + " ", LIMIT // 2) for mark in _ENDS + _CLAUSE_ENDS)
        if marks >= 0:
            return marks + 2
        return self._text.rfind(" ") + 1 or len(self._text)


def _abbreviates(text: str, after: str) -> bool:
    """Whether the point behind ``text`` is the last word's own: ``Dr``, ``e.g``, an initial, or a list's number."""
    word = text[text.rfind(" ") + 1 :].lstrip(_OPENING)
    return (
        _ABBREVIATIONS.fullmatch(word) is not None
        or (after.isdigit() and _BEFORE_NUMBERS.fullmatch(word) is not None)
        or _INITIALS.fullmatch(word) is not None
        or text.isdigit()
    )
