"""Prompts that ask a model to fill a gap, with a model that has the tokens for it, and with one that lacks them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_models import tiny_model

from umaserve.core.errors import RequestError
from umaserve.core.requests import Infill
from umaserve.engine.llama.model import Model
from umaserve.engine.template.infill import infill_tokens
from umaserve.settings.daemon import Config

TOKENS = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|repo_name|>", "<|file_sep|>")
GAP = Infill("abc", "de", "f", (("x", "gh"), ("", "i")))


def opened(path: str) -> Model:
    return Model(path, Config(n_ctx=256, parallel=1, threads=1), lambda _fraction: True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    model = opened(tiny_model(tmp_path_factory.mktemp("infill") / "model.gguf", "llama", tokens=TOKENS))
    yield model
    model.free()


def written(model: Model, gap: Infill, sequence_tokens: int = 4096, max_tokens: int | None = 16) -> str:
    tokens = infill_tokens(model, gap, sequence_tokens, max_tokens)
    return b"".join(map(model.written, tokens)).decode()


def test_a_gap_with_other_texts_is_written_as_in_llama_server(model: Model) -> None:
    others = "<|repo_name|>myproject\n<|file_sep|>x\ngh<|file_sep|>tmp\ni<|file_sep|>filename\n"
    assert written(model, GAP) == f"{others}<s><|fim_prefix|>abcf<|fim_suffix|>de<|fim_middle|>"


def test_what_is_written_in_the_texts_is_plain_text_and_in_the_beginning_may_be_control_tokens(model: Model) -> None:
    plain = infill_tokens(model, Infill("<|fim_middle|>", ""), 4096, None)
    begun = infill_tokens(model, Infill("", "", "<|fim_middle|>"), 4096, None)
    middle = plain[-1]
    assert (plain.count(middle), begun.count(middle)) == (1, 2)


def test_what_is_far_from_the_gap_is_left_out_where_the_context_is_short(model: Model) -> None:
    gap = Infill("a" * 40 + "b", "c" + "d" * 40, "", (("", "e" * 40 + "f"),))
    around = f"<s><|fim_prefix|>{'a' * 23}b<|fim_suffix|>c{'d' * 5}<|fim_middle|>"
    assert written(model, gap, 32, 16) == around
    fits = written(model, gap, 100, 16)
    assert fits.endswith(f"<s><|fim_prefix|>{'a' * 40}b<|fim_suffix|>c{'d' * 22}<|fim_middle|>")
    assert len(infill_tokens(model, gap, 100, 16)) == 84
    assert fits.startswith("eeeeef<|file_sep|>filename\n")


def test_a_model_without_the_tokens_says_so(tmp_path: Path) -> None:
    model = opened(tiny_model(tmp_path / "model.gguf", "llama"))
    try:
        with pytest.raises(RequestError, match=r"^model: model can't fill gaps: its vocabulary lacks the tokens"):
            infill_tokens(model, GAP, 4096, None)
    finally:
        model.free()
