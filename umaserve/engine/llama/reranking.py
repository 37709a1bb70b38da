"""Prompts for models that judge how well a document answers a question."""

from __future__ import annotations

import llama_cpp

from umaserve.core.queries import Pair
from umaserve.engine.llama.model import Model

_PURPOSE = "rerank"


def pair_tokens(model: Model, pair: Pair) -> list[int]:
    """The prompt of ``pair``, as in llama-server: by the model's own template, else both texts with the tokens that the
    vocabulary puts around them."""
    template = model.chat_template(_PURPOSE)
    if template is not None:
        before, _, rest = template.partition("{query}")
        middle, _, after = rest.partition("{document}")
        texts = ((before, True), (pair.query, False), (middle, True), (pair.document, False), (after, True))
        return [token for text, special in texts for token in model.tokenize(text, special=special, begins=False)]
    vocab = model.vocab
    separator = llama_cpp.llama_vocab_sep(vocab)
    end = llama_cpp.llama_vocab_eos(vocab)
    ends = [separator if end < 0 else end] if llama_cpp.llama_vocab_get_add_eos(vocab) else []
    separates = [separator] if llama_cpp.llama_vocab_get_add_sep(vocab) else []
    begins = [llama_cpp.llama_vocab_bos(vocab)] if model.adds_bos else []
    query, document = (model.tokenize(text, special=False) for text in (pair.query, pair.document))
    return [*begins, *query, *ends, *separates, *document, *ends]
