"""JSON objects whose text is cut off, as the arguments of a call where the answer's tokens came to their limit."""

from __future__ import annotations

import json
import re
from typing import Any

MAX_DEPTH = 200
_MARK = re.compile(r'"(?:[^"\\]|\\.)*"?|[][{},]', re.DOTALL)
_CLOSING = {"{": "}", "[": "]"}


def whole_members(text: str) -> dict[str, Any]:
    """The object that ``text`` is or begins, with what is complete of it: without a string or number that goes on
    after the end. Empty where it is none."""
    found = _object(text)
    if found is not None:
        return found
    open_, places = list[str](), [(0, "")]
    for mark in _MARK.finditer(text):
        match mark[0]:
            case "{" | "[":
                if len(open_) == MAX_DEPTH:
                    return {}
                open_.append(_CLOSING[mark[0]])
                places.append((mark.end(), "".join(reversed(open_))))
            case "}" | "]":
                if not open_ or open_.pop() != mark[0]:
                    return {}
                places.append((mark.end(), "".join(reversed(open_))))
            case ",":
                places.append((mark.start(), "".join(reversed(open_))))
            case string if len(string) > 1 and string.endswith('"'):
                places.append((mark.end(), "".join(reversed(open_))))
    # After a key there is no value yet: one place or two before it, all is complete.
    tried = (_object(text[:end] + closing) for end, closing in reversed(places[-3:]))
    return next((value for value in tried if value is not None), {})


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
