"""Reads the arguments of a tool call, as a model writes them, and passes them on as JSON."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence

from umaserve.chat_format.call_atoms import CUT, Atoms, FormInAtoms, match
from umaserve.chat_format.call_values import is_object, json_of, json_of_elements, json_text, string_parameters
from umaserve.chat_format.coming_text import MAX_NAME, ComingText
from umaserve.core.requests import Tool
from umaserve.core.tool_call_format import CDATA_CLOSE, CDATA_OPEN, ParameterForm

_JSON_MARK = re.compile(r'["\\{}\[\]]')


class CallArguments:
    """Arguments of one call to ``tool``. ``read`` and its steps are generators, as those of ``ComingText``."""

    def __init__(self, text: ComingText, form: FormInAtoms, tool: Tool, pass_on: Callable[[str], None]) -> None:
        """``pass_on`` gets the JSON in pieces, of which some are empty."""
        self._text = text
        self._form = form
        self._tool = tool
        self._pass = pass_on

    def read(self, closing: Atoms) -> Generator[None, None, bool]:
        """Pass the arguments on up to ``closing``, and tell whether they are whole."""
        form = self._form
        if form.parameters is None:
            return (yield from self._json())
        strings, parameters = string_parameters(self._tool.parameters), form.parameters
        before = ""
        self._pass("{")
        while not (yield from self._text.closed(closing, (before and form.between) or form.opens_key)):
            if before and form.between and (yield from self._text.any([form.between])) is None:
                return False
            if form.opens_key and (yield from self._text.any([form.opens_key])) is None:
                return False
            key, types = yield from self._key()
            if not key:
                return False
            self._pass(f"{before}{json_text(key)}: ")
            before = ", "
            is_string = "string" in types and (len(types) == 1 or key in strings)
            if parameters.quote:
                read = yield from self._literal(parameters.quote, (form.between, closing))
            elif parameters.values == "elements" and not is_string:
                read = yield from self._elements(parameters, key)
            else:
                read = yield from self._raw(parameters, parameters.closing(key), is_string=is_string)
            if not read:
                return False
        self._pass("}")
        return True

    def _json(self) -> Generator[None, None, bool]:
        """Pass a JSON object on, and tell whether it is one."""
        while not self._text.buffer.strip() and not self._text.at_end:
            yield
        self._text.take(len(self._text.buffer) - len(self._text.buffer.lstrip()))
        text, depth, in_string, skipped = "", 0, False, 0
        while True:
            at, end = skipped, None
            while end is None and (mark := _JSON_MARK.search(self._text.buffer, at)) is not None:
                at = mark.end()
                match mark[0]:
                    case "\\":
                        at += 1
                    case '"':
                        in_string = not in_string
                    case _ if not in_string:
                        depth += 1 if mark[0] in "{[" else -1
                        end = at if depth <= 0 else None
            new = self._text.buffer[:end]
            # The character after a backslash may still be to come.
            skipped = max(0, at - len(self._text.buffer))
            if not text and not new.startswith("{"):
                return False
            text += new
            self._pass(new)
            self._text.take(len(new))
            if end is not None:
                return is_object(text)
            if self._text.ended:
                return False
            yield

    def _key(self) -> Generator[None, None, tuple[str, Sequence[str]]]:
        """Take a key and what is between it and its value; gives the key and the types that the value may have. An
        empty key: there is none."""
        while True:
            for at in range(min(len(self._text.buffer), MAX_NAME)):
                ends = [match(before, self._text.buffer, at) for before, _types in self._form.before]
                found = next((place for place in enumerate(ends) if place[1] not in (None, CUT)), None)
                if found is not None and found[1] is not None:
                    key = self._text.buffer[:at].strip()
                    self._text.take(found[1])
                    return key, self._form.before[found[0]][1]
                if CUT in ends and not self._text.ended:
                    break
            else:
                if self._text.ended or len(self._text.buffer) >= MAX_NAME:
                    return "", ()
            yield

    def _raw(self, form: ParameterForm, closes: str, *, is_string: bool) -> Generator[None, None, bool]:
        """Pass a value on that ends at ``closes``: as a string, or as the JSON that it is."""
        mark = closes.strip()
        # White space that the form has around a value isn't part of it.
        margin = closes[: len(closes) - len(closes.lstrip())]
        yield from self._text.prefix(margin)
        if form.cdata and (yield from self._text.prefix(CDATA_OPEN)):
            mark = CDATA_CLOSE + mark
        self._pass('"' if is_string else "")
        text = ""
        while True:
            at = self._text.buffer.find(mark)
            # What may be the end is held back.
            end = at if at >= 0 else max(0, len(self._text.buffer) - len(mark) - len(margin))
            new = self._text.buffer[:end]
            if at >= 0:
                new = new.removesuffix(margin)
            if is_string:
                self._pass(json_text(new)[1:-1])
            text += new
            self._text.take(end)
            if at >= 0:
                self._text.take(len(mark))
                break
            if self._text.ended:
                return False
            yield
        self._pass('"' if is_string else json_of(text) or json_text(text))
        return True

    def _elements(self, form: ParameterForm, key: str) -> Generator[None, None, bool]:
        """Pass a value on that may have elements inside, even of the same key."""
        opens = f"{form.opens}{key}{dict(form.before)['object']}"
        mark_of = re.compile(f"{re.escape(opens)}|{re.escape(form.closing(key))}")
        at, depth = 0, 1
        while True:
            while (mark := mark_of.search(self._text.buffer, at)) is not None:
                at = mark.end()
                depth += 1 if mark[0] == opens else -1
                if not depth:
                    self._pass(json_of_elements(self._text.buffer[: mark.start()], form, self._tool.parameters, key))
                    self._text.take(at)
                    return True
            at = max(at, len(self._text.buffer) - len(form.closing(key)))
            if self._text.ended:
                return False
            yield

    def _literal(self, quote: str, ends: Sequence[Atoms]) -> Generator[None, None, bool]:
        """Pass a value on as JSON that is written with quotes, up to one of ``ends``, which isn't taken."""
        quotes = [re.escape(mark) for mark in dict.fromkeys([quote, *("\"'" if len(quote) == 1 else "")])]
        firsts = "|".join(re.escape(atoms[0]) for atoms in ends if atoms) or "(?!)"
        mark_of = re.compile(rf"(?P<escape>\\.)|(?P<quote>{'|'.join(quotes)})|[\[\](){{}}]|{firsts}", re.DOTALL)
        at, depth, inside = 0, 0, ""
        while True:
            # A mark at the end of the buffer may be longer than it looks.
            held_back = 0 if self._text.ended else max(map(len, [quote, *firsts.split("|")]))
            limit = len(self._text.buffer) - held_back
            while at < limit and (mark := mark_of.search(self._text.buffer, at)) is not None and mark.start() < limit:
                at = mark.end()
                if mark["quote"]:
                    inside = "" if inside == mark["quote"] else inside or mark["quote"]
                elif mark["escape"] and len(quote) > 1:
                    at = mark.start() + 1
                elif not inside and not mark["escape"]:
                    if depth == 0 and mark[0] not in ("[", "{", "("):
                        value = json_of(self._text.buffer[: mark.start()], quote)
                        self._pass(value or "")
                        self._text.take(mark.start())
                        return value is not None
                    depth += 1 if mark[0] in "[{(" else -1 if mark[0] in "]})" else 0
            else:
                at = max(at, limit)
            if self._text.ended:
                return False
            yield
