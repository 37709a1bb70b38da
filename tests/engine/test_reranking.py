"""Scores of documents: by tiny models that rank, and not by others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from engine_world import EngineWorld, no_pause
from tiny_models import tiny_model

from umaserve.core.errors import Fault, RequestError
from umaserve.core.queries import Embed, Pair, Tokenize, Tokenized
from umaserve.engine.llama.model import Model
from umaserve.engine.llama.reranking import pair_tokens
from umaserve.settings.daemon import Config

RANK = 4
"""llama.cpp's pooling type of models that rank."""
PAIRS = tuple(Pair("abc", document) for document in ("de", "f", "abc"))


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineWorld]:
    world = EngineWorld(tiny_model(tmp_path_factory.mktemp("ranks") / "model.gguf", "bert", pooling_type=RANK))
    yield world
    world.close()


def test_each_pair_has_a_score_that_does_not_depend_on_the_others(ranks: EngineWorld) -> None:
    together = ranks.engine.embed(Embed(PAIRS, ranks=True), no_pause)
    assert [len(vector) for vector in together.vectors] == [1, 1, 1]
    assert len({score for [score] in together.vectors}) == 3
    alone = [ranks.engine.embed(Embed((pair,), ranks=True), no_pause) for pair in PAIRS]
    assert np.allclose([vector for one in alone for vector in one.vectors], together.vectors, atol=1e-5)
    assert together.prompt_tokens == sum(one.prompt_tokens for one in alone)


def test_a_pair_is_tokenized_apart_as_it_is_for_its_score(ranks: EngineWorld) -> None:
    tokens = ranks.engine.answer(Tokenize(PAIRS[0]))
    assert isinstance(tokens, Tokenized)
    assert len(tokens.ids) == ranks.engine.embed(Embed(PAIRS[:1], ranks=True), no_pause).prompt_tokens
    assert b"".join(tokens.pieces).count(b"abc") == 1


def test_texts_have_no_score_and_pairs_no_vector(ranks: EngineWorld, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="makes no embeddings") as caught:
        ranks.engine.embed(Embed(("abc",)), no_pause)
    assert caught.value.fault is Fault.NOT_SUPPORTED
    other = EngineWorld(tiny_model(tmp_path / "other.gguf", "bert"))
    with pytest.raises(RequestError, match="ranks no documents; load a reranking model") as caught:
        other.engine.embed(Embed(PAIRS, ranks=True), no_pause)
    assert caught.value.fault is Fault.NOT_SUPPORTED
    other.close()


@pytest.mark.parametrize(
    ("keys", "written"),
    [
        ({}, "<s>abcde"),
        ({"tokenizer__ggml__add_eos_token": True}, "<s>abc</s>de</s>"),
        (
            {"tokenizer__ggml__add_eos_token": True, "tokenizer__ggml__add_sep_token": True}
            | {"tokenizer__ggml__seperator_token_id": 2, "tokenizer__ggml__add_bos_token": False},
            "abc</s></s>de</s>",
        ),
        ({"tokenizer__chat_template__rerank": "<s>x{query}y{document}</s>"}, "<s>xabcyde</s>"),
    ],
)
def test_the_prompt_of_a_pair_is_llama_servers(tmp_path: Path, keys: dict[str, bool | int | str], written: str) -> None:
    path = tiny_model(tmp_path / "model.gguf", "llama", **keys)
    model = Model(path, Config(n_ctx=256, parallel=1, threads=1), lambda _fraction: True)
    assert b"".join(map(model.written, pair_tokens(model, PAIRS[0]))).decode() == written
    model.free()


def test_what_texts_contain_is_no_control_token(tmp_path: Path) -> None:
    path = tiny_model(tmp_path / "model.gguf", "llama", tokenizer__chat_template__rerank="{query}|{document}")
    model = Model(path, Config(n_ctx=256, parallel=1, threads=1), lambda _fraction: True)
    assert len(pair_tokens(model, Pair("</s>", "{query}"))) == len("</s>") + len("|") + len("{query}")
    model.free()
