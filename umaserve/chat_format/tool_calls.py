"""Finds tool calls in generated text while it streams, in the form in which the model writes them."""

from __future__ import annotations

import functools
import hashlib
import itertools
import re
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, replace

from umaserve.chat_format.call_arguments import CallArguments
from umaserve.chat_format.call_atoms import CUT, FormInAtoms
from umaserve.chat_format.coming_text import ComingText
from umaserve.core.events import ModelInfo
from umaserve.core.requests import Generate, Tool
from umaserve.core.tool_call_format import TOLD_IN_WORDS, Slot, ToolForm

_PATTERNS = {
    Slot.NAME: re.compile("[A-Za-z0-9_-]*"),
    Slot.ID: re.compile("[A-Za-z0-9_.:-]*"),
    Slot.INDEX: re.compile(r"\d*"),
}


@dataclass(frozen=True, slots=True)
class CallPiece:
    """News of an answer's call number ``index``: its ``id`` and ``name``, more of its ``arguments``, that it is
    ``whole``, or that the answer ended within it: then ``cut`` is all of its text. The text of a call that is malformed
    is content too."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""
    whole: bool = False
    cut: str = ""

    @property
    def ends(self) -> bool:
        """Whether nothing more of the call comes."""
        return self.whole or bool(self.cut)


def short_ids(unique: str) -> Callable[[], str]:
    """Function that makes the ids of an answer's calls: nine letters and digits, since some chat templates refuse all
    others."""
    numbers = itertools.count()
    return lambda: hashlib.blake2s(f"{unique}_{next(numbers)}".encode()).hexdigest()[:9]


def parser_for(request: Generate, model: ModelInfo | None, new_id: Callable[[], str]) -> ToolCallParser:
    """Parser that finds the calls in the answer to ``request``; ``new_id`` as in ``ToolCallParser``."""
    form = TOLD_IN_WORDS if model is None else model.tool_form
    if request.continues_text:
        form = form.in_text()
    return ToolCallParser(form, request.tools, new_id, only_first=not request.parallel_calls)


class ToolCallParser:
    """Splits a stream of text into content and calls of ``tools``; together, the results don't depend on how the text
    is split.

    ``new_id`` gives a call its id, unless the model writes one before the arguments. With ``only_first``, everything
    after the first call is dropped.
    """

    def __init__(
        self, form: ToolForm, tools: Iterable[Tool], new_id: Callable[[], str], *, only_first: bool = False
    ) -> None:
        self._forms = [FormInAtoms(each) for each in (form, *form.also)]
        self._tools = {tool.name: tool for tool in tools}
        self._new_id = new_id
        self._only_first = only_first
        self._text_opens = form.opened + form.text_opens if form.text_opens else ""
        self._text = ComingText(form.opened)
        self._unwritten = len(form.opened)
        """Characters at the text's beginning that the model didn't write."""
        self._blank = ""
        """White space that is dropped if a call follows it."""
        self._in_content = False
        """Whether content has begun since the last call."""
        self._content: list[str] = []
        self._pieces: list[CallPiece] = []
        self._n_calls = 0
        self._ids: set[str] = set()
        self._reading = self._read()

    def push(self, text: str) -> tuple[str, list[CallPiece]]:
        """The content that ``text`` releases, and what it adds to calls."""
        self._text.buffer += text
        return self._advance()

    def finish(self) -> tuple[str, list[CallPiece]]:
        """The rest, at the end of the text."""
        self._text.ended = True
        return self._advance()

    def _advance(self) -> tuple[str, list[CallPiece]]:
        next(self._reading, None)
        released = "".join(self._content), _joined(self._pieces)
        self._content, self._pieces = [], []
        return released

    def _read(self) -> Generator[None]:
        if (yield from self._text.prefix(self._text_opens)):
            self._unwritten = 0
        form = yield from self._next_call()
        while form is not None:
            if not (yield from self._call(form)):
                self._say("".join(self._text.taken))
                form = yield from self._next_call()
                continue
            self._blank, self._in_content, self._unwritten = "", False, 0
            if self._only_first:
                while True:
                    self._text.buffer = ""
                    yield
            self._text.taken = []
            another = yield from self._text.any([form.another, form.closes])
            if another is None:
                yield from self._text.any([form.closes], may_be_cut=True)
            form = form if another == 0 else (yield from self._next_call())
        if not self._n_calls:
            self._content.append(self._blank)

    def _next_call(self) -> Generator[None, None, FormInAtoms | None]:
        """Pass content on up to the next call, take what opens that, and give its form; ``None`` at the end."""
        self._text.taken = []
        while True:
            found = [form.find(self._text.buffer, self._content_so_far) for form in self._forms]
            at, end, form = min(found, key=lambda place: place[0])
            self._say(self._text.buffer[:at])
            self._text.buffer = self._text.buffer[at:]
            if end != CUT:
                self._text.take(end - at)
                return form
            if self._text.ended:
                self._say(self._text.buffer)
                self._text.buffer = ""
                return None
            yield

    @property
    def _content_so_far(self) -> bool:
        return self._in_content or self._n_calls > 0

    def _call(self, form: FormInAtoms) -> Generator[None, None, bool]:
        """Take the rest of a call, and tell whether it is one: whole, or begun where the text ends."""
        index, name, call_id, begun = self._n_calls, "", "", False
        for part, following in zip(form.rest, [*form.rest[1:], ()], strict=True):
            match part:
                case Slot.ARGUMENTS:
                    begun = True
                    self._n_calls += 1
                    if not call_id or call_id in self._ids:
                        call_id = self._new_id()
                    self._ids.add(call_id)
                    self._pieces.append(CallPiece(index, call_id, name))
                    closing = () if isinstance(following, Slot) else following
                    pass_on = functools.partial(self._pass, index)
                    read = yield from CallArguments(self._text, form, self._tools[name], pass_on).read(closing)
                case Slot():
                    written = yield from self._text.matching(_PATTERNS[part])
                    read = bool(written)
                    if part is Slot.NAME:
                        read = written in self._tools and name in ("", written)
                        name = written
                    elif part is Slot.ID and not begun:
                        call_id = written
                case _:
                    # Some models end their answer with the arguments.
                    read = (yield from self._text.any([part], may_be_cut=begun)) is not None
            if not read and not (begun and part is not Slot.ARGUMENTS and self._text.at_end):
                if not (begun and self._text.ended):
                    return False
                self._text.take(len(self._text.buffer))
                self._pieces.append(CallPiece(index, cut="".join(self._text.taken)[self._unwritten :]))
                return True
        self._pieces.append(CallPiece(index, whole=True))
        return True

    def _pass(self, index: int, arguments: str) -> None:
        if arguments:
            self._pieces.append(CallPiece(index, arguments=arguments))

    def _say(self, text: str) -> None:
        """Take ``text`` as content, apart from white space that a call may still follow."""
        text, self._unwritten = text[self._unwritten :], max(0, self._unwritten - len(text))
        if not self._in_content:
            text = self._blank + text
            self._in_content = bool(text) and not text.isspace()
            self._blank = "" if self._in_content else text
            if not self._in_content:
                return
        self._content.append(text)


def _joined(pieces: Sequence[CallPiece]) -> list[CallPiece]:
    """``pieces`` with adjacent arguments of one call as one."""
    joined: list[CallPiece] = []
    for piece in pieces:
        if joined and joined[-1].index == piece.index and joined[-1].arguments and piece.arguments:
            joined[-1] = replace(joined[-1], arguments=joined[-1].arguments + piece.arguments)
        else:
            joined.append(piece)
    return joined
