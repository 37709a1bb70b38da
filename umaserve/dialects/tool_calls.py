"""Finds tool calls in generated text while it streams, in the form in which the model writes them."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, replace

from umaserve.dialects.call_atoms import CUT, Atoms, FormInAtoms, match, skip
from umaserve.dialects.call_values import is_object, json_of, json_of_elements, json_text, string_parameters
from umaserve.forms import CDATA_CLOSE, CDATA_OPEN, TOLD_IN_WORDS, ParameterForm, Slot, ToolForm
from umaserve.messages import Generate, Tool
from umaserve.outputs import ModelInfo

MAX_NAME = 256
"""Characters of a name, an id or a key."""

_PATTERNS = {
    Slot.NAME: re.compile("[A-Za-z0-9_-]*"),
    Slot.ID: re.compile("[A-Za-z0-9_.:-]*"),
    Slot.INDEX: re.compile(r"\d*"),
}
_JSON_MARK = re.compile(r'["\\{}\[\]]')


@dataclass(frozen=True, slots=True)
class CallPiece:
    """What is new of an answer's call number ``index``: its ``id`` and ``name``, more of its ``arguments``, or that it
    is ``whole``. The text of a call that doesn't become whole is content too."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""
    whole: bool = False


def short_ids(unique: str) -> Callable[[], str]:
    """Makes the ids of an answer's calls: nine letters and digits, since some chat templates refuse all others."""
    numbers = itertools.count()
    return lambda: hashlib.blake2s(f"{unique}_{next(numbers)}".encode()).hexdigest()[:9]


def parser_for(request: Generate, model: ModelInfo | None, new_id: Callable[[], str]) -> ToolCallParser:
    """Finds the calls in the answer to ``request``; ``new_id`` as in ``ToolCallParser``."""
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

    # The steps below read the buffer while it lasts, and yield where they need more.

    def __init__(
        self, form: ToolForm, tools: Iterable[Tool], new_id: Callable[[], str], *, only_first: bool = False
    ) -> None:
        self._forms = [FormInAtoms(each) for each in (form, *form.also)]
        self._tools = {tool.name: tool for tool in tools}
        self._new_id = new_id
        self._only_first = only_first
        self._text_opens = form.opened + form.text_opens if form.text_opens else ""
        self._buffer = form.opened
        self._unwritten = len(form.opened)
        """Characters at the text's beginning that the model didn't write."""
        self._ended = False
        self._taken: list[str] = []
        """What was taken from the buffer since the present call began."""
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
        self._buffer += text
        return self._advance()

    def finish(self) -> tuple[str, list[CallPiece]]:
        """The rest, at the end of the text."""
        self._ended = True
        return self._advance()

    def _advance(self) -> tuple[str, list[CallPiece]]:
        next(self._reading, None)
        released = "".join(self._content), _joined(self._pieces)
        self._content, self._pieces = [], []
        return released

    def _read(self) -> Generator[None]:
        if (yield from self._prefix(self._text_opens)):
            self._unwritten = 0
        form = yield from self._text()
        while form is not None:
            if not (yield from self._call(form)):
                self._say("".join(self._taken))
                form = yield from self._text()
                continue
            self._blank, self._in_content, self._unwritten = "", False, 0
            if self._only_first:
                while True:
                    self._buffer = ""
                    yield
            self._taken = []
            another = yield from self._any([form.another, form.closes])
            form = form if another == 0 else (yield from self._text())
        if not self._n_calls:
            self._content.append(self._blank)

    def _text(self) -> Generator[None, None, FormInAtoms | None]:
        """Passes content on up to the next call, takes what opens that, and gives its form; ``None`` at the end."""
        self._taken = []
        while True:
            found = [form.find(self._buffer, self._content_so_far) for form in self._forms]
            at, end, form = min(found, key=lambda place: place[0])
            self._say(self._buffer[:at])
            self._buffer = self._buffer[at:]
            if end != CUT:
                self._take(end - at)
                return form
            if self._ended:
                self._say(self._buffer)
                self._buffer = ""
                return None
            yield

    @property
    def _content_so_far(self) -> bool:
        return self._in_content or self._n_calls > 0

    def _call(self, form: FormInAtoms) -> Generator[None, None, bool]:
        """Takes the rest of a call, and tells whether it is whole."""
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
                    read = yield from self._arguments(index, form, self._tools[name], closing)
                case Slot():
                    written = yield from self._matching(_PATTERNS[part])
                    read = bool(written)
                    if part is Slot.NAME:
                        read = written in self._tools and name in ("", written)
                        name = written
                    elif part is Slot.ID and not begun:
                        call_id = written
                case _:
                    # Some models end their answer with the arguments.
                    read = (yield from self._any([part], may_be_cut=begun)) is not None
            if not read and not (begun and part is not Slot.ARGUMENTS and self._at_end):
                return False
        self._pieces.append(CallPiece(index, whole=True))
        return True

    def _arguments(self, index: int, form: FormInAtoms, tool: Tool, closing: Atoms) -> Generator[None, None, bool]:
        """Passes a call's arguments on as JSON up to ``closing``, and tells whether they are whole."""
        if form.parameters is None:
            return (yield from self._json(index))
        strings, parameters = string_parameters(tool.parameters), form.parameters
        before = ""
        self._pass(index, "{")
        while not (yield from self._closed(closing, (before and form.between) or form.opens_key)):
            if before and form.between and (yield from self._any([form.between])) is None:
                return False
            if form.opens_key and (yield from self._any([form.opens_key])) is None:
                return False
            key, types = yield from self._key(form)
            if not key:
                return False
            self._pass(index, f"{before}{json_text(key)}: ")
            before = ", "
            is_string = "string" in types and (len(types) == 1 or key in strings)
            if parameters.quote:
                read = yield from self._literal(index, parameters.quote, (form.between, closing))
            elif parameters.values == "elements" and not is_string:
                read = yield from self._elements(index, parameters, key, tool)
            else:
                read = yield from self._raw(index, parameters, parameters.closing(key), is_string=is_string)
            if not read:
                return False
        self._pass(index, "}")
        return True

    def _json(self, index: int) -> Generator[None, None, bool]:
        """Passes a JSON object on, and tells whether it is one."""
        while not self._buffer.strip() and not self._at_end:
            yield
        self._take(len(self._buffer) - len(self._buffer.lstrip()))
        text, depth, in_string, skipped = "", 0, False, 0
        while True:
            at, end = skipped, None
            while end is None and (mark := _JSON_MARK.search(self._buffer, at)) is not None:
                at = mark.end()
                match mark[0]:
                    case "\\":
                        at += 1
                    case '"':
                        in_string = not in_string
                    case _ if not in_string:
                        depth += 1 if mark[0] in "{[" else -1
                        end = at if depth <= 0 else None
            new = self._buffer[:end]
            # The character after a backslash may still be to come.
            skipped = max(0, at - len(self._buffer))
            if not text and not new.startswith("{"):
                return False
            text += new
            self._pass(index, new)
            self._take(len(new))
            if end is not None:
                return is_object(text)
            if self._ended:
                return False
            yield

    def _closed(self, closing: Atoms, more: Atoms) -> Generator[None, None, bool]:
        """Whether ``closing`` follows, which isn't taken; or its beginning, if the text ends there and that can't be
        ``more`` arguments."""
        while True:
            end = match(closing, self._buffer) if closing else (None if self._buffer.strip() else CUT)
            if end != CUT:
                return end is not None
            if self._ended:
                begun = bool(self._buffer.strip()) and (not more or match(more, self._buffer) is None)
                return begun or not closing
            yield

    def _key(self, form: FormInAtoms) -> Generator[None, None, tuple[str, Sequence[str]]]:
        """Takes a key and what is between it and its value; gives the key and the types that the value may have. An
        empty key: there is none."""
        while True:
            for at in range(min(len(self._buffer), MAX_NAME)):
                ends = [match(before, self._buffer, at) for before, _types in form.before]
                found = next((place for place in enumerate(ends) if place[1] not in (None, CUT)), None)
                if found is not None and found[1] is not None:
                    key = self._buffer[:at].strip()
                    self._take(found[1])
                    return key, form.before[found[0]][1]
                if CUT in ends and not self._ended:
                    break
            else:
                if self._ended or len(self._buffer) >= MAX_NAME:
                    return "", ()
            yield

    def _raw(self, index: int, form: ParameterForm, closes: str, *, is_string: bool) -> Generator[None, None, bool]:
        """Passes a value on that ends at ``closes``: as a string, or as the JSON that it is."""
        mark = closes.strip()
        # White space that the form has around a value isn't part of it.
        margin = closes[: len(closes) - len(closes.lstrip())]
        yield from self._prefix(margin)
        if form.cdata and (yield from self._prefix(CDATA_OPEN)):
            mark = CDATA_CLOSE + mark
        self._pass(index, '"' if is_string else "")
        text = ""
        while True:
            at = self._buffer.find(mark)
            # What may be the end is held back.
            end = at if at >= 0 else max(0, len(self._buffer) - len(mark) - len(margin))
            new = self._buffer[:end]
            if at >= 0:
                new = new.removesuffix(margin)
            if is_string:
                self._pass(index, json_text(new)[1:-1])
            text += new
            self._take(end)
            if at >= 0:
                self._take(len(mark))
                break
            if self._ended:
                return False
            yield
        self._pass(index, '"' if is_string else json_of(text) or json_text(text))
        return True

    def _elements(self, index: int, form: ParameterForm, key: str, tool: Tool) -> Generator[None, None, bool]:
        """Passes a value on that may have elements inside, even of the same key."""
        opens = f"{form.opens}{key}{dict(form.before)['object']}"
        mark_of = re.compile(f"{re.escape(opens)}|{re.escape(form.closing(key))}")
        at, depth = 0, 1
        while True:
            while (mark := mark_of.search(self._buffer, at)) is not None:
                at = mark.end()
                depth += 1 if mark[0] == opens else -1
                if not depth:
                    self._pass(index, json_of_elements(self._buffer[: mark.start()], form, tool.parameters, key))
                    self._take(at)
                    return True
            at = max(at, len(self._buffer) - len(form.closing(key)))
            if self._ended:
                return False
            yield

    def _literal(self, index: int, quote: str, ends: Sequence[Atoms]) -> Generator[None, None, bool]:
        """Passes a value on as JSON that is written with quotes, up to one of ``ends``, which isn't taken."""
        quotes = [re.escape(mark) for mark in dict.fromkeys([quote, *("\"'" if len(quote) == 1 else "")])]
        firsts = "|".join(re.escape(atoms[0]) for atoms in ends if atoms) or "(?!)"
        mark_of = re.compile(rf"(?P<escape>\\.)|(?P<quote>{'|'.join(quotes)})|[\[\](){{}}]|{firsts}", re.DOTALL)
        at, depth, inside = 0, 0, ""
        while True:
            # A mark at the end of the buffer may be longer than it looks.
            limit = len(self._buffer) if self._ended else len(self._buffer) - max(map(len, [quote, *firsts.split("|")]))
            while at < limit and (mark := mark_of.search(self._buffer, at)) is not None and mark.start() < limit:
                at = mark.end()
                if mark["quote"]:
                    inside = "" if inside == mark["quote"] else inside or mark["quote"]
                elif mark["escape"] and len(quote) > 1:
                    at = mark.start() + 1
                elif not inside and not mark["escape"]:
                    if depth == 0 and mark[0] not in ("[", "{", "("):
                        value = json_of(self._buffer[: mark.start()], quote)
                        self._pass(index, value or "")
                        self._take(mark.start())
                        return value is not None
                    depth += 1 if mark[0] in "[{(" else -1 if mark[0] in "]})" else 0
            else:
                at = max(at, limit)
            if self._ended:
                return False
            yield

    def _any(self, ways: Sequence[Atoms], *, may_be_cut: bool = False) -> Generator[None, None, int | None]:
        """Takes the one of ``ways`` that follows, and gives its index. ``may_be_cut``: also one that the text's end
        cuts off."""
        while True:
            ends = [match(way, self._buffer) if way else None for way in ways]
            if CUT not in ends or self._ended:
                for index, end in enumerate(ends):
                    if end == CUT and may_be_cut:
                        end = len(self._buffer)
                    if end is not None and end != CUT:
                        self._take(end)
                        return index
                return None
            yield

    def _prefix(self, text: str) -> Generator[None, None, bool]:
        """Takes ``text`` if it follows exactly."""
        while len(self._buffer) < len(text) and text.startswith(self._buffer) and not self._ended:
            yield
        follows = bool(text) and self._buffer.startswith(text)
        self._take(len(text) if follows else 0)
        return follows

    def _matching(self, pattern: re.Pattern[str]) -> Generator[None, None, str]:
        """Takes the longest text that matches ``pattern``, and gives it."""
        while True:
            found = pattern.match(self._buffer, skip(self._buffer, 0))
            assert found is not None
            if found.end() < len(self._buffer) or self._ended or found.end() > MAX_NAME:
                self._take(found.end())
                return found[0]
            yield

    @property
    def _at_end(self) -> bool:
        return self._ended and not self._buffer.strip()

    def _take(self, length: int) -> None:
        self._taken.append(self._buffer[:length])
        self._buffer = self._buffer[length:]

    def _pass(self, index: int, arguments: str) -> None:
        if arguments:
            self._pieces.append(CallPiece(index, arguments=arguments))

    def _say(self, text: str) -> None:
        """``text`` is content, apart from white space that a call may still follow."""
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
