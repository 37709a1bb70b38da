"""A client's Lark or regular expression for a text inside of a call, as rules for that text as the call has it.

There the text may stand between quotes, with its line breaks, quotes and backslashes escaped. So what is rewritten are
the characters: each one, and each class of them, becomes a terminal that has the escapes of those that need one. Rules,
groups and repetitions stay as they are.

A text may be split into terminals in any way, as by Lark's ``lexer="dynamic_complete"``. Where rules contain
themselves, and no terminal goes on with what another one may be followed by, it is split into the longest, as
llguidance does and so OpenAI's service.

Syntax: Lark's documentation (Grammar Reference), llguidance's (``docs/syntax.md``), and the regex crate's.
"""

from __future__ import annotations

import json
import re
from functools import cache, lru_cache

import numpy as np
from llguidance import LLMatcher, LLTokenizer

from umaserve.core.errors import Fault, RequestError
from umaserve.core.requests import Grammar, Syntax
from umaserve.engine.grammar.rules import NOTHING, GrammarError, LarkRules, Rules

MAX_CLASSES = 200
"""Most different classes of characters in a grammar: llguidance takes 0.5 ms to tell what one has in it."""
MAX_RULES = 2000
"""Most lines of a client's Lark that define something."""

_NAME = r"_*(?:[a-z](?:[_a-z0-9]|-(?!>))*|[A-Z](?:[_A-Z0-9]|-(?!>))*)"
_LARK = re.compile(
    rf"""
      (?P<space> [ \t\r\f]+ | //[^\n]* | \#[^\n]* )
    | (?P<line> \n )
    | (?P<define> [!?]* (?P<defined> {_NAME} ) (?: \. -?[0-9]+ )? [ \t]* : )
    | (?P<name> {_NAME} )
    | (?P<range> "(?:[^"\\\n]|\\.)+" [ ]* \.\. [ ]* "(?:[^"\\\n]|\\.)+" )
    | (?P<literal> " (?P<text> (?: [^"\\\n] | \\. )* ) " (?P<ignores_case> i? ) )
    | (?P<regex> / (?P<pattern> (?: [^/\\\n] | \\. )+ ) / (?P<flags> [imslux]* ) )
    | (?P<alias> -> [ \t]* {_NAME} )
    | (?P<repeat> [*+?] | \{{ [ ]* [0-9]+ [ ]* (?: , [ ]* [0-9]* [ ]* )? \}} )
    | (?P<times> ~ [ ]* (?P<least> [0-9]+ ) (?: [ ]* \.\. [ ]* (?P<most> [0-9]+ ) )? )
    | (?P<import> %import [ \t]+ common [ \t]*
        (?: \. [ \t]* (?P<one> {_NAME} ) (?: [ \t]* -> [ \t]* (?P<called> {_NAME} ) )?
          | \( (?P<several> [^()\n]* ) \) ) )
    | (?P<ignore> %ignore )
    | (?P<mark> [][()|&~] )
    """,
    re.VERBOSE,
)
_REGEX = re.compile(
    r"""
      (?P<group> \( (?: \? (?: P?<\w+> | (?P<flags> [imsuU]* (?: -[imsU]+ )? ) (?P<scope> [:)] ) ) | (?!\?) ) )
    | (?P<close> \) )
    | (?P<or> \| )
    | (?P<repeat> (?: [*+?] | \{ \s* [0-9]+ \s* (?: , \s* [0-9]* \s* )? \} ) \?? )
    | (?P<class> \\ (?: [dDsSwW] | [pP] (?: \{ [^{}]* \} | [^{}] ) ) | \[ )
    | (?P<escape> \\ (?: x[0-9a-fA-F]{2} | u[0-9a-fA-F]{4} | U[0-9a-fA-F]{8} | [xuU]\{ [0-9a-fA-F]+ \}
        | [afnrtv] | [^0-9A-Za-z<>\s] ) )
    | (?P<plain> [^\\^$?*+{()|[] )
    """,
    re.VERBOSE,
)
_CLASS_MARK = re.compile(r"(\[\^?-*\]?)|\\.|\]", re.DOTALL)
_DIGITS = "[0-9]+"
_FRACTION = rf"(?:{_DIGITS}\.[0-9]*|\.{_DIGITS})"
_FLOAT = rf"(?:{_FRACTION}(?:[eE][+-]?{_DIGITS})?|{_DIGITS}[eE][+-]?{_DIGITS})"
_COMMON = {
    "DIGIT": "[0-9]",
    "HEXDIGIT": "[0-9a-fA-F]",
    "INT": _DIGITS,
    "SIGNED_INT": rf"[+-]?{_DIGITS}",
    "DECIMAL": _FRACTION,
    "FLOAT": _FLOAT,
    "SIGNED_FLOAT": rf"[+-]?{_FLOAT}",
    "NUMBER": rf"(?:{_FLOAT}|{_DIGITS})",
    "SIGNED_NUMBER": rf"[+-]?(?:{_FLOAT}|{_DIGITS})",
    "ESCAPED_STRING": r'"(?:[^"\\\n]|\\[^\n])*"',
    "LCASE_LETTER": "[a-z]",
    "UCASE_LETTER": "[A-Z]",
    "LETTER": "[A-Za-z]",
    "WORD": "[A-Za-z]+",
    "CNAME": "[A-Za-z_][A-Za-z0-9_]*",
    "WS_INLINE": r"[ \t]+",
    "WS": r"[ \t\f\r\n]+",
    "CR": r"\r",
    "LF": r"\n",
    "NEWLINE": r"(?:\r?\n)+",
    "SH_COMMENT": r"#[^\n]*",
    "CPP_COMMENT": r"//[^\n]*",
    "C_COMMENT": r"/\*(?:[^*]|\*+[^*/])*\*+/",
    "SQL_COMMENT": r"--[^\n]*",
}
"""The terminals of Lark's library ``common``."""
_SHORT = {"\b": "b", "\t": "t", "\n": "n", "\f": "f", "\r": "r", "\\": "\\"}
"""Characters and what follows the backslash where they are escaped, in JSON and in Python."""
_ANY = r"[\s\S]"


def as_written(grammar: Grammar, quote: str, prefix: str, ends: str = "") -> LarkRules:
    """Lark for the texts of ``grammar`` as they are between two of ``quote``, a character, with what needs one escaped;
    with an empty ``quote``, as they are up to what begins with one of ``ends``. Names begin with ``prefix``. Raises
    ``RequestError``."""
    reader = _Reader(_Characters(quote))

    def are_apart(which: str, lines: str) -> bool:
        # Escapes begin alike, and llguidance never goes back.
        firsts = "".join(f"\\x{{{ord(character):x}}}" for character in ("\\" if quote else ends))
        longer = f"({which}) /[{firsts}]/ /(?s:.*)/"
        return _is_empty(f"start: LONGER\nLONGER: ({which}) & ({longer})\n{lines}")

    try:
        if grammar.syntax is Syntax.REGEX:
            reader.read_regex(grammar.text)
        else:
            reader.read_lark(grammar.text)
        return reader.rules.as_lark("start", prefix, are_apart)
    except GrammarError as error:
        raise RequestError(Fault.BAD_REQUEST, grammar.field, f"expected {error}") from None


class _Characters:
    """Lark for characters as they are written between two of ``quote``."""

    def __init__(self, quote: str) -> None:
        self._escapes = {chr(code): f"u{code:04x}" for code in range(32)} | _SHORT | {quote: quote} if quote else {}
        self._classes: set[str] = set()

    def text(self, text: str, flags: str = "") -> str:
        """Lark for ``text``, each character a terminal; ``flags``: "i" if its letters may be of either case."""
        return f"({' '.join(self._character(character, flags) for character in text)})" if text else f"({NOTHING})"

    def some(self, characters: str, flags: str = "") -> str:
        """Lark for one of ``characters``, a class or an escape in the regex crate's syntax."""
        self._classes.add(characters)
        if len(self._classes) > MAX_CLASSES:
            raise GrammarError(f"at most {MAX_CLASSES} different classes of characters")
        in_lark = re.sub(r"(?s)\\.|[/\n]", lambda found: {"/": r"\/", "\n": r"\n"}.get(found[0], found[0]), characters)
        has = _ascii_in(in_lark)
        escaped = [re.escape(escape).replace("/", r"\/") for plain, escape in self._escapes.items() if plain in has]
        if not escaped:
            return f"/(?{flags}:{in_lark})/"
        needs = "".join(f"\\x{{{ord(plain):x}}}" for plain in self._escapes)
        return rf"/(?{flags}:[{in_lark}&&[^{needs}]])|\\(?:{'|'.join(escaped)})/"

    def _character(self, character: str, flags: str) -> str:
        if flags and character.isalpha():
            return self.some(character, flags)
        escape = self._escapes.get(character)
        return json.dumps(character if escape is None else f"\\{escape}", ensure_ascii=False)


@lru_cache(maxsize=4096)
def _ascii_in(characters: str) -> str:
    """The ASCII characters that a class has in it; raises ``GrammarError`` if it is malformed or has none at all."""
    matcher = LLMatcher(_bytes(), f"start: /{characters}/", log_level=0)
    bits = matcher.compute_bitmask()
    if matcher.is_error():
        raise GrammarError(f"a class with a character in it, in the syntax of Rust's regex crate, got {characters!r}")
    allowed = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little", count=128)
    return "".join(map(chr, np.flatnonzero(allowed)))


def _is_empty(lark: str) -> bool:
    """Whether a grammar surely has no text."""
    matcher = LLMatcher(_bytes(), lark, log_level=0)
    matcher.compute_bitmask()
    return matcher.is_error() and "NoExtension" in matcher.get_error()


@cache
def _bytes() -> LLTokenizer:
    return LLTokenizer("byte")


class _Reader:
    def __init__(self, characters: _Characters) -> None:
        self.rules = Rules()
        self._characters = characters
        self._brackets: list[tuple[str, bool]] = []
        """The open groups of Lark: which bracket began each, and whether a ``~`` is before it."""
        self._negated = False
        self._in_rule = False
        self._ignored: list[str] = []
        """The names that stand for what may be between terminals."""
        self._gap: int | None = None

    def read_regex(self, pattern: str) -> None:
        """Read ``start``, for the texts that ``pattern`` matches as a whole."""
        self.rules.define("start")
        whole = re.fullmatch(r"\^?((?:[^\\]|\\.)*?)\$?", pattern, re.DOTALL)
        self._regex(pattern if whole is None else whole[1], "")

    def read_lark(self, grammar: str) -> None:
        if "%ignore" in grammar:
            self._gap = self.rules.new()
        at, goes_on, n_rules = 0, False, 0
        while at < len(grammar):
            match = _LARK.match(grammar, at)
            kind = match.lastgroup if match is not None else None
            begins = kind in ("define", "ignore", "import")
            # A rule ends with its line, unless the next one begins with a bar.
            if match is None or not (kind in ("space", "line") or goes_on or begins or match[0] == "|"):
                line = grammar.count("\n", 0, at) + 1
                known = "rules, terminals, %ignore and %import common, without templates, options and %json"
                raise GrammarError(f"Lark of {known}; line {line} goes wrong at {grammar[at : at + 16]!r}")
            at = match.end()
            if kind == "line":
                goes_on = bool(self._brackets)
            elif kind != "space":
                goes_on = kind != "import"
                n_rules += begins
                self._read(kind or "", match)
        if n_rules > MAX_RULES:
            raise GrammarError(f"at most {MAX_RULES} rules and terminals")
        self._check_brackets()
        if self._gap is not None:
            self._surround(self._gap)

    def _read(self, kind: str, match: re.Match[str]) -> None:
        text = match[0]
        match kind:
            case "define":
                self._define(match["defined"])
            case "ignore":
                self._define(f"%ignore {len(self._ignored) + 1}")
                self._ignored.append(f"%ignore {len(self._ignored) + 1}")
            case "import":
                self._import(match)
            case _ if not self.rules.begun:
                raise GrammarError("rules of the form: name: what it stands for")
            case "name":
                self._add(self.rules.number(text), is_terminal=text.strip("_")[:1].isupper())
            case "literal":
                self._add(self._characters.text(_text(match["text"]), match["ignores_case"]))
            case "range":
                low, high = (_text(end[1:-1]) for end in re.split(r'(?<=") *\.\. *(?=")', text))
                if len(low) != 1 or len(high) != 1:
                    raise GrammarError(f"a range from one character to another, got {text[:64]!r}")
                self._add(self._characters.some(f"[\\x{{{ord(low):x}}}-\\x{{{ord(high):x}}}]"))
            case "regex":
                if set(match["flags"]) & set("lx"):
                    raise GrammarError(f"regular expressions without the flags l and x, got {text[:64]!r}")
                self.rules.begin_group()
                self._regex(match["pattern"], match["flags"])
                self.rules.end_group()
                self._add(self.rules.take())
            case "repeat":
                self.rules.repeat(text)
            case "times":
                self.rules.repeat(f"{{{match['least']},{match['most'] or match['least']}}}")
            case "mark":
                self._mark(text)

    def _define(self, name: str) -> None:
        if self.rules.defines(name):
            raise GrammarError(f"one rule {name[:64]!r}, got two")
        self._check_brackets()
        self.rules.define(name)
        self._in_rule = name.strip("_")[:1].islower()

    def _check_brackets(self) -> None:
        if self._brackets or self._negated:
            raise GrammarError("a closing bracket for each opening one, and something after each ~")

    def _import(self, match: re.Match[str]) -> None:
        several = match["several"]
        names = [match["one"]] if several is None else [name.strip() for name in several.split(",")]
        for name in names:
            if name not in _COMMON:
                raise GrammarError(f"one of the terminals {', '.join(_COMMON)}, got {name[:64]!r}")
            self._define(match["called"] or name)
            self._in_rule = False
            self._regex(_COMMON[name], "")

    def _mark(self, mark: str) -> None:
        if mark in "&~" and self._in_rule:
            raise GrammarError(f"{mark} in terminals alone, whose names are in capitals")
        match mark:
            case "(" | "[":
                self._brackets.append((mark, self._negated))
                self._negated = False
                self.rules.begin_group()
            case ")" | "]":
                opened, negated = self._brackets.pop() if self._brackets else ("", False)
                if opened + mark not in ("()", "[]") or self._negated:
                    raise GrammarError("an opening bracket for each closing one, and something after each ~")
                self.rules.end_group()
                if mark == "]":
                    self.rules.repeat("?")
                self._negated = negated
                self._add(self.rules.take(), is_terminal=False)
            case "~":
                self._negated = not self._negated
            case _:
                self.rules.add(mark, NOTHING)

    def _add(self, part: int | str, *, is_terminal: bool = True) -> None:
        if self._negated:
            # Of all texts as they are written, so that there are no other escapes in it.
            anything = self.rules.new(self._characters.some(_ANY), "*")
            part = self.rules.new("~", self.rules.new(part), "&", anything)
            self._negated = False
        if is_terminal and self._in_rule:
            part = part if isinstance(part, int) else self.rules.new(part)
            self.rules.terminals.add(part)
            if self._gap is not None:
                part = self.rules.new(part, self._gap)
        self.rules.add(part)

    def _surround(self, gap: int) -> None:
        """Say what a gap is, and let one be before the first terminal too: after each there is already a place."""
        ways: list[int | str] = [NOTHING]
        for number, name in enumerate(self._ignored):
            self.rules.terminals.add(self.rules.number(name))
            ways += ["|", NOTHING] * (number > 0) + [self.rules.number(name)]
        self.rules.bodies[gap] = [self.rules.new(*ways), "*"] if self._ignored else ways
        start = self.rules.number("start")
        self.rules.bodies[start] = [gap, self.rules.new(*self.rules.bodies[start])]

    def _regex(self, pattern: str, flags: str) -> None:
        """Add what ``pattern`` stands for to the rule."""
        at, scopes = 0, [flags]
        while at < len(pattern):
            match = _REGEX.match(pattern, at)
            if match is None:
                expected = "a regular expression without look-around, anchors and references"
                raise GrammarError(f"{expected}; it goes wrong at {pattern[at : at + 16]!r}")
            at, text = match.end(), match[0]
            ignores_case = "i" if "i" in scopes[-1] else ""
            match match.lastgroup:
                case "group" if match["scope"] == ")":
                    scopes[-1] = _flags(scopes[-1], match["flags"])
                case "group":
                    scopes.append(_flags(scopes[-1], match["flags"] or ""))
                    self.rules.begin_group()
                case "close":
                    scopes.pop()
                    if not scopes:
                        raise GrammarError("an opening parenthesis for each closing one")
                    self.rules.end_group()
                case "or":
                    self.rules.add("|", NOTHING)
                case "repeat":
                    # Whether it takes as many or as few as it can makes no difference to the text as a whole.
                    self.rules.repeat(text if len(text) == 1 else text.removesuffix("?"))
                case "plain" if text == ".":
                    self.rules.add(self._characters.some(_ANY if "s" in scopes[-1] else r"[^\n]"))
                case "plain":
                    self.rules.add(self._characters.text(text, ignores_case))
                case _:
                    if text == "[":
                        at = _end_of_class(pattern, match.start())
                        text = pattern[match.start() : at]
                    self.rules.add(self._characters.some(text, ignores_case))
        if len(scopes) > 1:
            raise GrammarError("a closing parenthesis for each opening one")


def _flags(before: str, given: str) -> str:
    on, _minus, off = given.partition("-")
    return "".join(set(before + on) - set(off))


def _end_of_class(pattern: str, at: int) -> int:
    """Index where the class ends that begins at ``at``. A bracket that follows the opening one stands for itself."""
    depth = 0
    while (mark := _CLASS_MARK.search(pattern, at)) is not None:
        at = mark.end()
        depth += 1 if mark[1] else -1 if mark[0] == "]" else 0
        if not depth:
            return at
    raise GrammarError("a closing bracket for each class of characters")


def _text(literal: str) -> str:
    """The text that a string of Lark stands for."""
    in_json = re.sub(r"\\.", lambda escape: r"\u00" if escape[0] == r"\x" else escape[0], literal)
    try:
        text: str = json.loads(f'"{in_json}"', strict=False)
        text.encode()
    except ValueError:
        raise GrammarError(f"a text with the escapes of JSON or \\x, got {literal[:64]!r}") from None
    return text
