"""Splits text that arrives token by token into pieces to speak: sentences, or parts of very long ones."""

from __future__ import annotations

import re

import regex

from umaserve.speech.plain_text import PlainText

LIMIT = 200
"""Most characters in a piece: about 12 s of speech. No other answer is spoken while a piece is."""
FIRST_CLAUSE = 20
"""Least characters in the first piece if it is a clause: its sound must last until the next piece is spoken."""

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
# Emoji, their joiners and modifiers, and control and format characters.
_UNSPOKEN = regex.compile(
    r"[\p{Extended_Pictographic}\p{Emoji_Modifier}\p{Regional_Indicator}\uFE0E\uFE0F\u20E3\p{C}]+"
)


class Sentences:
    """An incremental sentence splitter. The pieces don't depend on how the text was cut; between calls it keeps about
    ``LIMIT`` characters.

    A sentence ends at a newline, or at a full stop, exclamation or question mark once the next word begins like a
    sentence, so that abbreviations don't end one. The first piece may be a clause, for a short time to first sound.
    Markdown, code blocks and emoji are removed.
    """

    def __init__(self) -> None:
        self._plain = PlainText()
        self._text = ""
        self._first = True

    def push(self, text: str) -> list[str]:
        """The pieces that ``text``, which may be cut anywhere, completes."""
        return self._split(self._plain.push(text))

    def finish(self) -> list[str]:
        """The last pieces, at the end of the text."""
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
        # A comma before a digit more often belongs to a date than ends a clause.
        return self._first and len(text) >= FIRST_CLAUSE and text[-1] in _CLAUSE_ENDS and not char.isdigit()

    def _best_cut(self) -> int:
        """Where to cut a piece that is too long: after a punctuation mark in its second half, else after a word."""
        marks = max(self._text.rfind(mark + " ", LIMIT // 2) for mark in _ENDS + _CLAUSE_ENDS)
        if marks >= 0:
            return marks + 2
        return self._text.rfind(" ") + 1 or len(self._text)


def _abbreviates(text: str, after: str) -> bool:
    """Whether the full stop after ``text`` belongs to its last word: ``Dr``, ``e.g``, an initial, or a list number."""
    word = text[text.rfind(" ") + 1 :].lstrip(_OPENING)
    return (
        _ABBREVIATIONS.fullmatch(word) is not None
        or (after.isdigit() and _BEFORE_NUMBERS.fullmatch(word) is not None)
        or _INITIALS.fullmatch(word) is not None
        or text.isdigit()
    )
