"""The text to read aloud, extracted from Markdown that arrives token by token."""

from __future__ import annotations

_RUNS = frozenset("`~_#-+>!]")
"""Characters whose meaning depends on the length of their run and on the next character."""
_FENCE = 3
_DROPPED = frozenset("*[\\")


class PlainText:
    """Removes markup characters, link targets, and code blocks, which are what stands between two runs of three or more
    backticks or tildes. Works character by character; the state is constant in size."""

    def __init__(self) -> None:
        self._run = ""
        self._run_length = 0
        self._fence: tuple[str, int] | None = None
        self._in_target = False
        self._depth = 0
        self._line_start = True
        self._last = "\n"

    def push(self, text: str) -> str:
        """The readable part of the next piece of text, which may be cut anywhere, and of the run before it."""
        return "".join([piece for char in text for piece in self._take(char)])

    def finish(self) -> str:
        """The readable rest, at the end of the text."""
        return "".join(self._take("\n"))

    def _take(self, char: str) -> list[str]:
        if char == self._run:
            self._run_length += 1
            return []
        pieces = [self._emit(self._end_run(char))] if self._run else []
        if char in _RUNS:
            self._run, self._run_length = char, 1
        else:
            pieces.append(self._emit(self._single(char)))
        return pieces

    def _end_run(self, after: str) -> str:
        run, length = self._run, self._run_length
        self._run = ""
        if self._fence is not None:
            if run == self._fence[0] and length >= self._fence[1]:
                self._fence = None
            return ""
        if self._in_target:
            return ""
        match run:
            case "`" | "~" if length >= _FENCE:
                self._fence = run, length
                return "\n"
            case "~" if length == 1:
                return "~"
            case "_" if self._last.isalnum() and after.isalnum():
                return " "
            case "#" if length == 1 and (self._last.isalnum() or after.isalnum()):
                return "#"
            case "-" | "+" if self._line_start and after.isspace():
                return ""
            case "-" if length <= 3:
                return "-" if length == 1 else "—"
            case "+":
                return "+" * min(length, 2)
            case ">" if not self._line_start:
                return ">"
            case "!" if length > 1 or after != "[":
                return "!"
            case "]":
                self._in_target = after == "("
        return ""

    def _single(self, char: str) -> str:
        if self._fence is not None:
            return ""
        if self._in_target:
            self._depth += (char == "(") - (char == ")")
            if self._depth > 0 and char != "\n":
                return ""
            self._in_target, self._depth = False, 0
            return "\n" if char == "\n" else ""
        if char == "|":
            return " "
        return "" if char in _DROPPED else char

    def _emit(self, text: str) -> str:
        if text:
            self._last = text[-1]
            self._line_start = text == "\n" or (self._line_start and text.isspace())
        return text
