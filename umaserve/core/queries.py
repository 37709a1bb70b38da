"""Questions to the engine, each with one answer instead of a stream: both sides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from umaserve.core.requests import Generate, MixedText, TokenIds


@dataclass(frozen=True, slots=True)
class Tokenized:
    """``pieces`` are the bytes of each token."""

    ids: Sequence[int]
    pieces: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class Detokenized:
    text: str


@dataclass(frozen=True, slots=True)
class Embedded:
    """One vector for each input, or its score alone, and the total tokens of all inputs."""

    vectors: Sequence[Sequence[float]]
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Prompted:
    """A prompt as text, without the tokens that tokenizing adds."""

    prompt: str


@dataclass(frozen=True, slots=True)
class Counted:
    tokens: int


Answer = Tokenized | Detokenized | Embedded | Prompted | Counted
A_co = TypeVar("A_co", covariant=True)


class AnsweredBy(Generic[A_co]):
    """Query whose answer is of this type."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Pair:
    """A document to be judged by a question, by a model that is made for it."""

    query: str
    document: str


@dataclass(frozen=True, slots=True)
class Tokenize(AnsweredBy[Tokenized]):
    """Ask for the tokens of a text. ``begins``: with the model's start token; ``special``: with control tokens
    recognized. Both always hold for a ``MixedText``, neither for a ``Pair``."""

    text: str | MixedText | Pair
    begins: bool = True
    special: bool = True


@dataclass(frozen=True, slots=True)
class Detokenize(AnsweredBy[Detokenized]):
    """Ask for the text of tokens."""

    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Embed(AnsweredBy[Embedded]):
    """Ask for a vector for each text, or with ``ranks`` for the score of each pair, as a vector of one number. Vectors
    have unit length, unless they are wanted ``raw``."""

    inputs: tuple[str | TokenIds | MixedText | Pair, ...]
    ranks: bool = False
    raw: bool = False

    def like(self, other: Embed) -> bool:
        """Whether both want the same of their inputs."""
        return (self.ranks, self.raw) == (other.ranks, other.raw)


@dataclass(frozen=True, slots=True)
class ApplyTemplate(AnsweredBy[Prompted]):
    """Ask for the prompt that the chat template makes of a request's turns."""

    request: Generate


@dataclass(frozen=True, slots=True)
class CountPrompt(AnsweredBy[Counted]):
    """Ask for the number of tokens of a request's prompt, media included."""

    request: Generate


Query = Tokenize | Detokenize | Embed | ApplyTemplate | CountPrompt
