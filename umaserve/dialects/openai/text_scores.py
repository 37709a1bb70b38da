"""Log-probabilities of text completions, as parallel arrays, and those of prompts, as they come.

Those of a prompt are made JSON part by part: all at once would keep the loop from everybody else for too long.
"""

from __future__ import annotations

import codecs
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson

from umaserve.core.events import Logprobs, PromptScores, Scored

MIN_LOGPROB = -9999.0
"""OpenAI's value for "very unlikely"; JSON has no infinity."""

Arrays = Mapping[str, bytes]
"""The items of each array as JSON, without brackets."""


def text_of(scored: Scored) -> str:
    return scored.piece.decode(errors="replace")


def logprob(scored: Scored) -> float:
    return scored.logprob if scored.logprob > MIN_LOGPROB else MIN_LOGPROB


class TextScores:
    """The arrays of one completion, whose text may begin with its prompt."""

    def __init__(self, alternatives: int | None = None, prompt: str | None = None) -> None:
        """``alternatives``: to tell of each token of the prompt; ``None``: it is not told. ``prompt``: its text;
        ``None``: that of its tokens."""
        self.in_prompt = alternatives is not None
        """Whether the prompt is told, and has not ended."""
        self._alternatives = alternatives or 0
        self._prompt = prompt
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._offset = 0

    def of_prompt(self, scores: PromptScores) -> tuple[str, Arrays]:
        """The next part of the echoed text, and the arrays' next items."""
        rows: list[tuple[bytes, float | None, dict[str, float] | None]] = []
        if scores.first is not None:
            rows.append((scores.first, None, None))
        for one in scores.tokens:
            rows.append((one.chosen.piece, logprob(one.chosen), _likeliest(one, self._alternatives)))
        texts = [self._decoder.decode(piece) for piece, _, _ in rows]
        arrays = _arrays(
            [piece.decode(errors="replace") for piece, _, _ in rows],
            [told for _, told, _ in rows],
            [likeliest for _, _, likeliest in rows],
            [self._move(text) for text in texts],
        )
        if self._prompt is not None:
            return "" if scores.first is None else self._prompt, arrays
        return "".join(texts), arrays

    def end_prompt(self) -> str:
        """The answer follows; returns what is left of the echoed text."""
        self.in_prompt = False
        rest = self._decoder.decode(b"", final=True)
        if self._prompt is not None:
            self._offset = len(self._prompt)
            return ""
        self._offset += len(rest)
        return rest

    def of_answer(self, scores: Logprobs) -> Arrays:
        """Arrays of a token of the answer. As in OpenAI's API it is among its alternatives."""
        offset = self._offset
        # A character split over several tokens counts once, at the token that completes it.
        self._offset += len(self._decoder.decode(scores.chosen.piece))
        likeliest = _likeliest(scores, len(scores.top))
        return _arrays([text_of(scores.chosen)], [logprob(scores.chosen)], [likeliest], [offset])

    def _move(self, text: str) -> int:
        """The offset of a token's text in the prompt, which lacks a start token and a space that the model adds."""
        at = self._offset
        for found in (text, text.removeprefix(" ")):
            if self._prompt is None or self._prompt.startswith(found, at):
                self._offset += len(found)
                break
        return at


def joined(parts: Sequence[Arrays]) -> dict[str, orjson.Fragment]:
    """The whole arrays."""
    return {name: listed(part[name] for part in parts) for name in parts[0]}


def listed(items: Iterable[bytes]) -> orjson.Fragment:
    """The whole array of parts without brackets, some of which may be empty."""
    return orjson.Fragment(b"[" + b",".join(filter(None, items)) + b"]")


def prompt_logprobs(scores: PromptScores, alternatives: int) -> bytes:
    """The next items of vLLM's array: for each token the log-probabilities by id, its own first."""
    items: list[dict[str, Any] | None] = [] if scores.first is None else [None]
    for one in scores.tokens:
        ranked = itertools.chain([(one.rank, one.chosen)], enumerate(one.top[:alternatives], 1))
        item: dict[str, Any] = {}
        for rank, scored in ranked:
            told = {"logprob": logprob(scored), "rank": rank, "decoded_token": text_of(scored)}
            item.setdefault(str(scored.token_id), told)
        items.append(item)
    return orjson.dumps(items)[1:-1]


def _arrays(tokens: list[str], logprobs: list[Any], likeliest: list[Any], offsets: list[int]) -> Arrays:
    columns = {"tokens": tokens, "token_logprobs": logprobs, "top_logprobs": likeliest, "text_offset": offsets}
    return {name: orjson.dumps(items)[1:-1] for name, items in columns.items()}


def _likeliest(scores: Logprobs, alternatives: int) -> dict[str, float]:
    likeliest: dict[str, float] = {}
    for scored in (*scores.top[:alternatives], scores.chosen):
        # Two tokens may have the same text; the likelier one comes first.
        likeliest.setdefault(text_of(scored), logprob(scored))
    return likeliest
