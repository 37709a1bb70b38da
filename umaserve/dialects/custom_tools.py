"""The input of a custom tool: one text for clients, and for the model the only argument of a function."""

from __future__ import annotations

import json
import re

import orjson

CUSTOM_INPUT = "input"
"""The name of the argument."""

_BEGINNING = re.compile(rf'\s*\{{\s*"{CUSTOM_INPUT}"\s*:\s*"')
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


def custom_arguments(text: str) -> str:
    """The arguments of a custom tool's call, as the model writes them."""
    return orjson.dumps({CUSTOM_INPUT: text}).decode()


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
        value = orjson.loads(self._rest).get(CUSTOM_INPUT)
        return value if isinstance(value, str) else self._rest
