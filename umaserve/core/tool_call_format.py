"""The forms in which a model writes what is not plain text, as its chat template shows them."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import Literal

CDATA_OPEN, CDATA_CLOSE = "<![CDATA[", "]]>"


class Slot(enum.Enum):
    """A place in a ``ToolForm`` for what differs from call to call."""

    NAME = "name"
    ID = "id"
    INDEX = "index"
    """The call's number among those of an answer."""
    ARGUMENTS = "arguments"


@dataclass(frozen=True, slots=True)
class ParameterForm:
    """How a model writes each argument of a call: ``opens``, the key, ``before`` by the value's JSON type, the value,
    ``closes``; and ``between`` two of them.

    Strings are in ``quote``; where that is empty they end at ``closes``, and nothing in them is escaped.
    """

    opens: str
    before: tuple[tuple[str, str], ...]
    """Pairs of a JSON type and a text, for string, number, boolean, object and array."""
    closes: str
    between: str = ""
    quote: str = ""
    values: Literal["json", "python", "bare", "elements"] = "json"
    """How values other than strings are written; "bare": keys without quotes, strings in ``quote``; "elements": those
    in objects as arguments, those in arrays as arguments with the key ``item``."""
    key_closes: str = ""
    """Text after the key, where ``closes`` is followed by the key once more."""
    cdata: bool = False
    """Whether strings of several lines are in a CDATA section."""

    def closing(self, key: str) -> str:
        """The text that closes the argument ``key``."""
        return f"{self.closes}{key}{self.key_closes}" if self.key_closes else self.closes


@dataclass(frozen=True, slots=True)
class ToolForm:
    """How a model writes its tool calls: ``opens``, the calls with ``between`` after each but the last, ``closes``.

    Outside of values, amounts of white space make no difference.
    """

    call: tuple[str | Slot, ...]
    """Texts and slots, one of which is ``ARGUMENTS``; ``NAME`` comes before it."""
    opens: str = ""
    closes: str = ""
    between: str | None = "\n"
    """Text between two calls; ``None``: an answer has one call."""
    first_index: int = 0
    parameters: ParameterForm | None = None
    """Form of the arguments; ``None``: they are one JSON object."""
    opened: str = ""
    """The beginning of the first call that the prompt ends with."""
    text_opens: str = ""
    """Text after ``opened`` where text follows, not a call: the prompt ends with it where there are no tools."""
    also: tuple[ToolForm, ...] = ()
    """Other forms that the model is known to use at times."""

    def text(self) -> str:
        """All texts by which calls are recognized, those of ``also`` too."""
        parts = [self.opens, *(part for part in self.call if isinstance(part, str)), self.between or "", self.closes]
        if self.parameters is not None:
            befores = [before for _type, before in self.parameters.before]
            inner = self.parameters
            parts += [inner.opens, *befores, inner.closes, inner.between, inner.quote]
        return " ".join([*parts, *(form.text() for form in self.also)])

    def in_text(self) -> ToolForm:
        """The form in an answer that goes on with a text, after a prompt that ends in it."""
        return replace(self, opened="", text_opens="")

    @property
    def anywhere(self) -> bool:
        """Whether calls may follow text. Those that begin without a tag are recognized only where an answer begins."""
        return any(mark in self.opens + str(self.call[0]) for mark in "<[>")


TOOL_CALL_OPEN, TOOL_CALL_CLOSE = "<tool_call>", "</tool_call>"
"""The tags around a call in the generated text; inside is one JSON object, ``{"name", "arguments"}``."""

TOLD_IN_WORDS = ToolForm(('<tool_call>\n{"name": "', Slot.NAME, '", "arguments": ', Slot.ARGUMENTS, "}\n</tool_call>"))
"""The form for models whose chat template has none."""


@dataclass(frozen=True, slots=True)
class ThoughtForm:
    """How a model marks its thoughts: ``opens``, the thought, ``closes``. White space around marks makes no difference
    in what is read; they have it as the template writes it.
    """

    opens: str
    closes: str
    turn: str = ""
    """Text between a closed thought and what follows, where each of them is a message of its own."""
    answers: tuple[str, ...] = ()
    """Marks that may open the answer; where there are none, it simply follows."""
    answer_closes: str = ""
    """The mark at its end, if there is one."""

    def text(self) -> str:
        """All marks."""
        return " ".join((self.opens, self.closes, self.turn, *self.answers, self.answer_closes))


THINK_TAGS = ThoughtForm("<think>\n", "\n</think>\n\n")
"""The form for models whose template and vocabulary show no other."""
