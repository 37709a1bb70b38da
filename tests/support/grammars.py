"""Which texts a grammar allows: asked byte by byte, by a vocabulary of single bytes; no model."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from llguidance import LLMatcher, LLTokenizer

from umaserve.engine.sampling.constraint import Constraint

_TOKENIZER = LLTokenizer("byte")
BYTES: Any = SimpleNamespace(
    tokenizer=_TOKENIZER,
    pieces=[bytes([token]) if token < 256 else b"" for token in range(_TOKENIZER.vocab_size)],
    end_tokens=frozenset(_TOKENIZER.eos_tokens),
    any_text=LLMatcher(_TOKENIZER, "start: /(?s:.*)/\n", log_level=0),
)
(END,) = BYTES.end_tokens


def allows(lark: str, field: str = "grammar") -> Callable[[str], bool]:
    """Whether a text matches ``lark`` as a whole; raises ``RequestError`` for a grammar that can't be followed."""
    whole = Constraint(BYTES, lark, field)

    def matches(text: str) -> bool:
        constraint = whole.copy()
        return all(map(constraint.accept, [*text.encode(), END]))

    return matches
