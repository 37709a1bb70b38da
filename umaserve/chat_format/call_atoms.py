"""The texts of a form of tool calls in pieces, between which white space makes no difference, and where they match."""

from __future__ import annotations

import re
from collections.abc import Sequence

from umaserve.core.tool_call_format import ParameterForm, Slot, ToolForm

MAX_SPACES = 64
"""Most characters of white space between two parts of a call."""
CUT = -1
"""A match that the text's end cuts off."""

Atoms = Sequence[str]
"""A text of the form in pieces."""

_ATOM = re.compile(r"<[^<>\s]*>?|\w+|\S")
_SPACES = re.compile(r"\s*")


class FormInAtoms:
    """A ``ToolForm`` in atoms."""

    def __init__(self, form: ToolForm) -> None:
        lead, rest = ("", form.call) if isinstance(form.call[0], Slot) else (form.call[0], form.call[1:])
        self._opens = in_atoms(form.opens + lead)
        self._anywhere = form.anywhere
        parts = [part if isinstance(part, Slot) else in_atoms(part) for part in rest]
        self.rest = [part for part in parts if part]
        self.another = () if form.between is None else in_atoms(form.between + lead)
        self.closes = in_atoms(form.closes)
        self.parameters: ParameterForm | None = form.parameters
        self.opens_key: Atoms = ()
        self.between: Atoms = ()
        self.before: list[tuple[Atoms, list[str]]] = []
        if form.parameters is not None:
            self.opens_key, self.between = in_atoms(form.parameters.opens), in_atoms(form.parameters.between)
            texts = dict.fromkeys(text for _type, text in form.parameters.before)
            self.before = [
                (in_atoms(text), [kind for kind, of in form.parameters.before if of == text]) for text in texts
            ]

    def find(self, text: str, content_so_far: bool) -> tuple[int, int, FormInAtoms]:
        """Index in ``text`` where the next call may begin, index where what opens it ends, and this form."""
        first = self._opens[0][0]
        at = text.find(first)
        if not self._anywhere:
            at = skip(text, 0)
            if content_so_far or text[at : at + 1] not in ("", first):
                return len(text), CUT, self
            return (0, end, self) if (end := match(self._opens, text)) is not None else (len(text), CUT, self)
        while at >= 0:
            end = match(self._opens, text, at)
            if end is not None:
                return at, end, self
            at = text.find(first, at + 1)
        return len(text), CUT, self


def in_atoms(text: str) -> Atoms:
    """The atoms of a text: tags, words, and other characters one by one."""
    return _ATOM.findall(text)


def match(atoms: Atoms, text: str, at: int = 0) -> int | None:
    """Index where ``atoms`` end that ``text`` has from ``at`` on, apart from white space; ``None`` if it has others."""
    for atom in atoms:
        at = skip(text, at)
        if not text.startswith(atom, at):
            return CUT if atom.startswith(text[at:]) else None
        at += len(atom)
    return at


def skip(text: str, at: int) -> int:
    """Index where the white space in ``text`` ends that begins at ``at``."""
    spaces = _SPACES.match(text, at, at + MAX_SPACES)
    assert spaces is not None
    return spaces.end()
