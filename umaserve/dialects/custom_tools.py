"""Custom tools of OpenAI's APIs: their input is one text for clients, and for the model a function's only argument."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

import orjson

from umaserve.core.requests import Grammar, Syntax, Tool
from umaserve.dialects.grammars import MAX_GRAMMAR_BYTES
from umaserve.dialects.schemas import ToolGrammar
from umaserve.wire.fields import out_of_range

_INPUT = "input"
"""The name of the argument."""
_SCHEMA = {
    "type": "object",
    "properties": {_INPUT: {"type": "string"}},
    "required": [_INPUT],
    "additionalProperties": False,
}
_ONE_TEXT = orjson.dumps(_SCHEMA).decode()
_BEGINNING = re.compile(rf'\s*\{{\s*"{_INPUT}"\s*:\s*"')
_CHARACTERS = re.compile(
    r"""
    (?: [^"\\] | \\["\\/bfnrt]
      | \\u(?![dD][89a-fA-F])[0-9a-fA-F]{4}
      | \\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}
    )*
    """,
    re.VERBOSE,
)
"""Characters of a JSON string, as far as they are complete."""


def custom_tool(name: str, description: str, given: ToolGrammar | None) -> Tool:
    """The function that the model sees. ``given``: what its input has to match, which the description tells."""
    if given is None:
        return Tool(name, description, _ONE_TEXT, custom=True)
    bound = Grammar(Syntax(given.syntax), given.definition, given.name("definition"))
    kind = "Lark grammar" if bound.syntax is Syntax.LARK else "regular expression"
    told = f"Its {_INPUT} is a text that matches this {kind}:\n{bound.text}"
    return Tool(name, f"{description}\n\n{told}" if description else told, _ONE_TEXT, bound, custom=True)


def grammar_bytes(tools: Iterable[Tool], path: str) -> int:
    """The bytes of the grammars of all ``tools``; raises ``RequestError`` if they are too many."""
    n_bytes = sum(len(tool.bound.text.encode()) for tool in tools if tool.bound is not None)
    if n_bytes > MAX_GRAMMAR_BYTES:
        raise out_of_range(path, f"grammars of at most {MAX_GRAMMAR_BYTES} bytes in all", f"{n_bytes} bytes")
    return n_bytes


def custom_arguments(text: str) -> str:
    """The arguments of a custom tool's call, as the model writes them."""
    return orjson.dumps({_INPUT: text}).decode()


class CustomInput:
    """Takes the text out of a call's arguments while they come."""

    def __init__(self) -> None:
        self._rest = ""
        """The arguments, without what has been taken."""
        self._begun = self._ended = False

    def push(self, arguments: str) -> str:
        """The new part of the text."""
        self._rest += arguments
        if not self._begun and (beginning := _BEGINNING.match(self._rest)) is not None:
            self._begun, self._rest = True, self._rest[beginning.end() :]
        if self._ended or not self._begun:
            return ""
        characters = _CHARACTERS.match(self._rest)
        assert characters is not None
        self._rest = self._rest[characters.end() :]
        self._ended = self._rest.startswith('"')
        text: str = json.loads(f'"{characters[0]}"', strict=False)
        return text

    def finish(self, *, whole: bool) -> str:
        """The part of the text that is still to come, at the end of the arguments; ``whole``: they weren't cut short.
        Where there is no such text in them, they are the text themselves."""
        if self._begun or not whole:
            return ""
        value = orjson.loads(self._rest).get(_INPUT)
        return value if isinstance(value, str) else self._rest
