"""Regular expressions that neither prompts nor answers may match, whatever the case.

A pattern may use all features of the package ``regex``, except those that make it impossible to tell where a match may
begin in a text that still grows: \\K, \\G, (*VERBS), fuzzy matching, and flags other than a, f, i, m, s and u.
"""

from __future__ import annotations

import codecs
import logging
import os
import re
import stat
from collections.abc import Sequence

import regex

from umaserve.core.errors import ConfigError, Fault, RequestError

log = logging.getLogger(__name__)

MAX_FILE_BYTES = 1 << 20
MAX_PATTERNS = 1024
MAX_HELD = 4096
"""The most characters that a stream holds back. A longer match, of foo.*bar for example, is missed if it arrives in
pieces."""
CONTEXT = 256
"""Released characters that are kept for word boundaries, line starts and lookbehind."""
SEARCH_S = 0.05

_FLAGS = regex.A | regex.F | regex.I | regex.M | regex.S | regex.U | regex.V0

_PLAIN = re.compile(r"(?:[^\\\[\](){}*+?|^$]|\\[bBmMsSdDwW]|\\[^\w\s])+")
"""Matches plain patterns: characters, classes and boundaries. They are fast, and can be joined with ``|``."""

_UNSUPPORTED = r"\\[KG] | \(\*[A-Z]+ | \{[\d<=\x20]*[eids](?=[<=,:}+\x20])"
_BOUNDARY = r"\\[bBmM] | \^"
_LOOK = r"\(\?<?[!=] | \(\?>"
_OTHER = r"\\[pPN]\{[^}]*\} | \\. | \[ \^? \]? (?: \\. | \[:[^]]*:\] | [^]\\] )* \]"
_TOKEN = re.compile(
    f"(?P<unsupported>{_UNSUPPORTED}) | (?P<boundary>{_BOUNDARY}) | (?P<look>{_LOOK}) | {_OTHER}", re.VERBOSE
)

_THEN = ("a", " a", ".a", "\na")
"""Samples of what may follow a text: a match that stands before each of them does not depend on the text's end."""


def _relaxed(token: re.Match[str]) -> str:
    if token["unsupported"]:
        raise ValueError(f"{token[0]!r} can't be followed through a text that still grows")
    if token["boundary"]:
        # It depends on the next character; at the text's end, regex assumes that none follows.
        return rf"(?:{token[0]}|\Z)"
    if token["look"]:
        # It also depends on what follows. An optional group matches the same texts and more, so that a few characters
        # may be held too long; it ends with the same parenthesis.
        return "(?:" if token[0] == "(?>" else "(?:|"
    return token[0]


class _Rule:
    """One pattern, or several plain ones. Raises ``ValueError``, which says what is wrong with ``source``."""

    def __init__(self, lines: Sequence[int], source: str) -> None:
        self._lines = lines
        try:
            self._pattern = regex.compile(source, regex.IGNORECASE)
            if self._pattern.flags & ~_FLAGS:
                raise ValueError("its flags are more than a, f, i, m, s and u")
            # A partial search prefers any whole match to a partial one that begins earlier. This pattern has no whole
            # matches: behind the source it requires one more character, and then fails.
            self._ahead = regex.compile(rf"(?:{_TOKEN.sub(_relaxed, source)})[\s\S](?!)", self._pattern.flags)
        except (regex.error, OverflowError) as error:
            raise ValueError(str(error)) from None
        except RecursionError:
            raise ValueError("nested too deep") from None
        if self._pattern.search(""):
            raise ValueError("it matches the empty text, and so every text")

    def matches(self, text: str) -> bool:
        try:
            return self._pattern.search(text, timeout=SEARCH_S) is not None
        except TimeoutError:
            raise self._too_slow() from None

    def look(self, text: str, position: int, *, final: bool) -> tuple[int | None, int]:
        """The start of the first match from ``position`` on, or ``None``; and, if there is none, where one may still
        begin at the earliest (``len(text)`` if nowhere). ``final``: nothing follows."""
        hold = len(text)
        # Not concurrent: for a few characters, it takes too long to release the interpreter's lock and get it back.
        try:
            # Overlapped, since a match that depends on what follows may cover one that doesn't.
            for match in self._pattern.finditer(text, position, overlapped=True, timeout=SEARCH_S, concurrent=False):
                if final or self._stands(text, match.start()):
                    return match.start(), hold
                hold = min(hold, match.start())
            if not final and (
                ahead := self._ahead.search(text, position, partial=True, timeout=SEARCH_S, concurrent=False)
            ):
                hold = min(hold, ahead.start())
        except TimeoutError:
            raise self._too_slow() from None
        return None, hold

    def _stands(self, text: str, start: int) -> bool:
        return all(self._pattern.match(text + then, start, timeout=SEARCH_S, concurrent=False) for then in _THEN)

    def _too_slow(self) -> RequestError:
        lines = ", ".join(map(str, self._lines))
        log.error("content filter: line %s: the pattern takes too long: write it more simply", lines)
        return RequestError(Fault.DECODE_FAILED, "content filter", "the server could not check the text in time")


class FilteredStream:
    """The text of one answer, released up to where a match may still begin.

    A whole match ends the text at once, even if a partial one begins before it, since nothing follows to complete that;
    of several whole matches, the first counts. A match that depends on the text's end (``$``, ``\\b``) waits for what
    follows. Lookahead sees only the text so far.
    """

    def __init__(self, rules: Sequence[_Rule]) -> None:
        self._rules = rules
        self._text = ""
        """The last ``CONTEXT`` released characters, and those held back."""
        self._released = 0
        """Length of the released characters in ``_text``."""
        self._matched = False

    def push(self, text: str) -> tuple[str, bool]:
        """The text that may be released now, and whether there was a match: the text then ends right before it, and
        nothing more is released. Raises ``RequestError`` for a pattern that takes too long."""
        if not text or self._matched:
            return "", self._matched
        self._text += text
        return self._release(final=False)

    def finish(self) -> tuple[str, bool]:
        """Release the rest at the end of the text, as ``push``."""
        return self._release(final=True)

    def _release(self, *, final: bool) -> tuple[str, bool]:
        text, begin = self._text, self._released
        if self._matched or begin == len(text):
            return "", self._matched
        looks = [rule.look(text, begin, final=final) for rule in self._rules]
        starts = [start for start, _hold in looks if start is not None]
        self._matched = bool(starts)
        hold = min((hold for _start, hold in looks), default=len(text))
        end = min(starts) if starts else max(hold, len(text) - MAX_HELD)
        forgotten = max(0, end - CONTEXT)
        self._text, self._released = text[forgotten:], end - forgotten
        return text[begin:end], self._matched


class ContentFilter:
    """Filter of prompts and answers by ``patterns`` with their line numbers; raises ``ConfigError``. May be used from
    several threads."""

    def __init__(self, path: str, patterns: Sequence[tuple[int, str]]) -> None:
        rules: list[_Rule] = []
        streamed: list[_Rule] = []
        numbers: list[int] = []
        sources: list[str] = []
        for number, pattern in patterns:
            rule = _rule(path, number, pattern)
            rules.append(rule)
            if _PLAIN.fullmatch(pattern):
                numbers.append(number)
                sources.append(pattern)
            else:
                streamed.append(rule)
        if sources:
            # On a few characters, one search for all of them is ten times as fast as one for each; on a long prompt,
            # ten times as slow.
            streamed.append(_Rule(numbers, "|".join(sources)))
        self._rules: Sequence[_Rule] = rules
        self._streamed: Sequence[_Rule] = streamed

    def take_patterns(self, other: ContentFilter) -> None:
        """Use the patterns of ``other`` from now on; answers that have begun keep theirs."""
        self._rules, self._streamed = other._rules, other._streamed

    def check_prompt(self, text: str) -> None:
        """Check a prompt. Raises ``RequestError`` for a match, and for a pattern that takes too long."""
        if any(rule.matches(text) for rule in self._rules):
            raise not_allowed("prompt")

    def stream(self) -> FilteredStream:
        """Make the filter of one answer."""
        return FilteredStream(self._streamed)


def not_allowed(field: str) -> RequestError:
    """The error for a match in ``field``."""
    return RequestError(Fault.CONTENT_FILTERED, field, "contains text that this server does not allow")


def load(path: str) -> ContentFilter:
    """The filter in the file: UTF-8, one pattern a line, without empty lines and those that begin with ``#``.

    Raises ``ConfigError``, one line.
    """
    try:
        # Before open(), which would wait for the writer of a pipe.
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise ConfigError(f"content filter {path}: not a regular file; give the path of a text file")
        with open(path, "rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"content filter {path}: {error.strerror}; check the path and who may read it") from None
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(f"content filter {path}: longer than {MAX_FILE_BYTES} bytes; remove patterns")
    patterns: list[tuple[int, str]] = []
    for number, line in enumerate(data.removeprefix(codecs.BOM_UTF8).split(b"\n"), 1):
        try:
            pattern = line.removesuffix(b"\r").decode()
        except UnicodeDecodeError:
            raise _error(path, number, "not UTF-8; save the file as UTF-8") from None
        if pattern.strip() and not pattern.startswith("#"):
            patterns.append((number, pattern))
    if len(patterns) > MAX_PATTERNS:
        number, _ = patterns[MAX_PATTERNS]
        raise _error(path, number, f"more than {MAX_PATTERNS} patterns; join some with |")
    return ContentFilter(path, patterns)


def _rule(path: str, number: int, pattern: str) -> _Rule:
    try:
        return _Rule([number], pattern)
    except ValueError as error:
        raise _error(path, number, f"{error}; correct the pattern or put # before it") from None


def _error(path: str, number: int, problem: str) -> ConfigError:
    return ConfigError(f"content filter {path}: line {number}: {problem}")
