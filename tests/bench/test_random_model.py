"""Models of random weights: their shapes, and that llama.cpp computes with them."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType, GGUFReader
from gguf.quants import dequantize

from bench import random_model
from bench.random_model import HEAD_SIZES, Shape, parse_size, shape_of
from umaserve.core.requests import ChatTurn, Generate
from umaserve.engine.engine import load
from umaserve.sessions.engine_api import Outcome, Run, Tick
from umaserve.sessions.kv_operations import Release
from umaserve.settings.daemon import Config

SMALL = 10_000_000
VOCABULARY = 49152


@pytest.mark.parametrize("head_size", HEAD_SIZES)
@pytest.mark.parametrize("parameters", [SMALL, 10**8, 10**9, 3 * 10**9, 8 * 10**9])
def test_a_shape_has_the_parameters_and_heads_that_were_asked_for(parameters, head_size):
    shape = shape_of(parameters, head_size, VOCABULARY)
    assert shape.parameters == pytest.approx(parameters, rel=0.06)
    assert shape.width == shape.heads * head_size
    assert shape.heads % shape.kv_heads == 0


def test_the_shape_of_8_billion_parameters_is_like_that_of_known_models():
    shape = shape_of(8 * 10**9, 128, VOCABULARY)
    assert (shape.width, shape.inner, shape.heads, shape.kv_heads, shape.tied) == (4096, 14336, 32, 8, False)
    assert 30 <= shape.layers <= 36


@pytest.mark.parametrize(("kind", "head_size"), [("Q8_0", 64), ("Q4_0", 128), ("F16", 64), ("Q4_K_M", 64)])
def test_the_engine_generates_with_it(tmp_path: Path, kind, head_size):
    path = tmp_path / "random.gguf"
    written = random_model.write(path, SMALL, kind, head_size)
    assert [file.name for file in tmp_path.iterdir()] == ["random.gguf"]
    engine = load(Config(model=str(path), n_ctx=256, parallel=2, threads=1), lambda _fraction: True)
    try:
        assert engine.info.architecture == "llama"
        assert engine.info.quantization == kind
        # The norms count too; llama.cpp and the shape agree on every tensor.
        assert engine.info.parameters == written.parameters
        prepared = engine.prepare(Generate("t", (ChatTurn("user", "Why is the sky blue?"),), max_tokens=4))
        engine.run(Tick([Release(0)], []))
        fed, position, said = list(prepared.tokens), 0, []
        for _ in range(4):
            result = engine.run(Tick([], [Run(0, position, fed, prepared.sampler)]))
            assert result.outcome is Outcome.DONE
            position += len(fed)
            fed = list(result.tokens[0])
            said += fed
        assert len(said) == 4
        assert all(0 <= token < VOCABULARY for token in said)
    finally:
        engine.close()


@pytest.mark.parametrize("head_size", HEAD_SIZES)
def test_rows_have_the_multiple_that_is_asked_for(head_size):
    for parameters in (SMALL, 10**9):
        shape = shape_of(parameters, head_size, VOCABULARY, 256)
        assert {sizes[-1] % 256 for _, sizes in shape.tensors()} == {0}


def test_k_quants_have_the_types_that_llama_cpp_chooses(tmp_path: Path):
    random_model.write(tmp_path / "random.gguf", SMALL, "Q4_K_M")
    types = {tensor.name: tensor.tensor_type for tensor in GGUFReader(tmp_path / "random.gguf").tensors}
    assert types["blk.0.ffn_up.weight"] == GGMLQuantizationType.Q4_K
    assert types["token_embd.weight"] == GGMLQuantizationType.Q6_K


def test_its_values_are_about_as_large_as_those_that_go_in(tmp_path: Path):
    random_model.write(tmp_path / "q8.gguf", SMALL, "Q8_0")
    random_model.write(tmp_path / "q4.gguf", SMALL, "Q4_0")
    for name, kind in (("q8", GGMLQuantizationType.Q8_0), ("q4", GGMLQuantizationType.Q4_0)):
        tensors = {tensor.name: tensor for tensor in GGUFReader(tmp_path / f"{name}.gguf").tensors}
        tensor = tensors["blk.0.ffn_down.weight"]
        weights = dequantize(tensor.data, kind)
        assert weights.std() == pytest.approx(weights.shape[1] ** -0.5, rel=0.05)
        assert len({row.tobytes() for row in weights}) == len(weights)


def test_equal_arguments_write_equal_files(tmp_path: Path):
    for name in ("one", "two"):
        random_model.write(tmp_path / name, SMALL, "Q4_0", 64)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_embeddings_that_would_be_most_of_a_small_model_are_the_outputs_too():
    assert Shape(VOCABULARY, 128, 2, 64, tied=True).parameters < SMALL < 2 * VOCABULARY * 128
    assert shape_of(SMALL, 64, VOCABULARY).tied


@pytest.mark.parametrize(("text", "size"), [("10M", SMALL), ("1.5B", 1_500_000_000), ("8B", 8 * 10**9)])
def test_a_size_is_a_number_with_its_unit(text, size):
    assert parse_size(text) == size
    assert math.isclose(parse_size(random_model.size_label(size)), size)


@pytest.mark.parametrize("text", ["", "B", "-1B", "1G", "10", "1e9", "101B", "nan", "1.B"])
def test_anything_else_is_no_size(text):
    with pytest.raises(argparse.ArgumentTypeError, match=r"such as 1\.5B"):
        parse_size(text)


def test_a_tokenizer_that_is_no_gguf_file_is_an_error_that_names_it(tmp_path: Path, capsys):
    (tmp_path / "text").write_text("no model")
    for name in ("text", "missing"):
        with pytest.raises(SystemExit) as ended:
            random_model.main([str(tmp_path / "model"), "--tokenizer", str(tmp_path / name)])
        assert ended.value.code == 1
        assert str(tmp_path / name) in capsys.readouterr().err
