"""Prompts for models that fill a gap in a text, with the tokens that their vocabulary has for it."""

from __future__ import annotations

import llama_cpp

from umaserve.core.errors import Fault, RequestError
from umaserve.core.requests import Infill
from umaserve.engine.llama.model import Model

WINDOW = 2048
"""Most tokens of the text around the gap: three parts of four before it, and the rest after it."""
ANSWER = 256
"""Tokens that the context keeps free for an answer without a length."""
_PROJECT, _FILE = "myproject\n", "filename\n"
"""llama-server's names for a repository and a file that have none."""
_SNIPPET = "\n\n--- snippet ---\n\n"
"""Text before each other text, for vocabularies without a token that begins a file."""
_NO_NAME = "tmp"


def infill_tokens(model: Model, gap: Infill, sequence_tokens: int, max_tokens: int | None) -> list[int]:
    """The prompt of ``gap``, in the order of the repository pattern of Qwen2.5-Coder (arXiv:2409.12186), as in
    llama-server. What doesn't fit is left out: of the text around the gap what is farthest from it, of the other texts
    the first ones. Raises ``RequestError`` if the vocabulary lacks the tokens.
    """
    vocab = model.vocab
    before = llama_cpp.llama_vocab_fim_pre(vocab)
    after = llama_cpp.llama_vocab_fim_suf(vocab)
    middle = llama_cpp.llama_vocab_fim_mid(vocab)
    if min(before, after, middle) < 0:
        problem = f"{model.name} can't fill gaps: its vocabulary lacks the tokens for it; choose a model made for code"
        raise RequestError(Fault.NOT_SUPPORTED, "model", problem)
    beginning = model.tokenize(gap.beginning, begins=False)
    window = min(WINDOW, sequence_tokens)
    prefix = model.tokenize(gap.prefix, special=False)[-(3 * (window // 4)) :]
    suffix = model.tokenize(gap.suffix, special=False)[: max(0, window // 4 - 2 - len(beginning))]
    bos = [llama_cpp.llama_vocab_bos(vocab)] if model.adds_bos else []
    around = [*bos, before, *prefix, *beginning, after, *suffix, middle]
    room = sequence_tokens - len(around) - (ANSWER if max_tokens is None else max_tokens)
    return [*_last(_others(model, gap), room), *around]


def _others(model: Model, gap: Infill) -> list[int]:
    """The other texts, each with its name."""
    tokens: list[int] = []
    repository, file = llama_cpp.llama_vocab_fim_rep(model.vocab), llama_cpp.llama_vocab_fim_sep(model.vocab)

    def named(name: str) -> list[int]:
        return [file, *model.tokenize(name, special=False)]

    if repository >= 0:
        tokens += [repository, *model.tokenize(_PROJECT, special=False)]
    for name, text in gap.others:
        tokens += named(f"{name or _NO_NAME}\n") if file >= 0 else model.tokenize(_SNIPPET, special=False)
        tokens += model.tokenize(text, special=False)
    return tokens + (named(_FILE) if file >= 0 else [])


def _last(tokens: list[int], n: int) -> list[int]:
    return tokens[-n:] if n > 0 else []
