"""Files at which llama.cpp would end the process are found in another one."""

from __future__ import annotations

import struct
from pathlib import Path

import llama_cpp
import pytest
from engine_world import EngineWorld
from program import run
from tiny_models import WIDTH, tiny_model
from tiny_projectors import pair

from umaserve.engine import rehearsal
from umaserve.errors import ModelError, RequestError
from umaserve.messages import Tokenize


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return Path(tiny_model(tmp_path_factory.mktemp("model") / "whole.gguf", "llama")).read_bytes()


def damaged(path: Path, whole: bytes, before: bytes, after: bytes) -> str:
    assert len(before) == len(after)
    assert before in whole
    path.write_bytes(whole.replace(before, after))
    return str(path)


def number(key: str, value: int) -> bytes:
    return key.encode() + struct.pack("<II", 4, value)


def norm(kind: int) -> bytes:
    """The header of a tensor of this type."""
    return b"output_norm.weight" + struct.pack("<IQI", 1, WIDTH, kind)


DAMAGES = [
    (number("llama.block_count", 2), number("llama.block_count", 0)),
    (number("llama.block_count", 2), number("llama.block_count", 100_000)),
    (b"<0x", b"<1x"),
    (norm(llama_cpp.GGML_TYPE_F32), norm(llama_cpp.GGML_TYPE_I32)),
]
NAMES = [
    "no layers",
    "too many layers",
    "no tokens for bytes",
    "weights of no such type",
]


@pytest.mark.parametrize(("before", "after"), DAMAGES, ids=NAMES)
def test_what_ends_llama_cpp_is_refused_in_one_line(tmp_path: Path, whole: bytes, before: bytes, after: bytes):
    path = damaged(tmp_path / "damaged.gguf", whole, before, after)
    with pytest.raises(ModelError, match=r"damaged\.gguf: llama\.cpp can't take it.*ended by Aborted") as caught:
        rehearsal.check(path, lambda: True)
    assert str(caught.value).isprintable()


def test_what_ends_llama_cpp_at_the_first_embedding_is_refused_too(tmp_path: Path):
    path = tiny_model(tmp_path / "model.gguf", "bert", pooling_type=5)
    with pytest.raises(ModelError, match="unknown pooling type"):
        rehearsal.check(path, lambda: True)
    pooled = tiny_model(tmp_path / "pooled.gguf", "deepseek4")
    rehearsal.check(pooled, lambda: True)
    with pytest.raises(ModelError, match=r"can't take it with --pooling mean, .*tensor read out of bounds"):
        rehearsal.check(pooled, lambda: True, pooling="mean")


def test_the_daemon_ends_with_that_line_and_no_crash(tmp_path: Path, whole: bytes):
    path = damaged(tmp_path / "damaged.gguf", whole, *DAMAGES[0])
    ended = run("--model", path, "--socket", str(tmp_path / "socket"))
    assert ended.returncode == 1, ended.stderr
    assert "damaged.gguf: llama.cpp can't take it" in ended.stderr


def test_a_projector_that_ends_llama_cpp_is_refused_too(tmp_path: Path):
    model, projector = pair(tmp_path, "llava")
    rehearsal.check_projector(projector, model, lambda: True)
    heads = "clip.vision.attention.head_count"
    path = damaged(tmp_path / "damaged.gguf", Path(projector).read_bytes(), number(heads, 2), number(heads, 3))
    with pytest.raises(ModelError, match=r"^mmproj .*damaged\.gguf: llama\.cpp can't take it, .*ended by Aborted"):
        rehearsal.check_projector(path, model, lambda: True)


def test_a_whole_model_passes(tmp_path: Path, whole: bytes):
    (tmp_path / "whole.gguf").write_bytes(whole)
    rehearsal.check(str(tmp_path / "whole.gguf"), lambda: True)


def test_what_llama_cpp_refuses_itself_is_left_to_the_loading(tmp_path: Path, whole: bytes):
    path = damaged(tmp_path / "model.gguf", whole, b"token_embd.weight", b"token_embx.weight")
    rehearsal.check(path, lambda: True)
    with pytest.raises(ModelError, match=r"llama\.cpp could not load it"):
        EngineWorld(path)


def test_it_ends_where_nobody_wants_the_model(tmp_path: Path, whole: bytes):
    rehearsal.check(damaged(tmp_path / "damaged.gguf", whole, *DAMAGES[0]), lambda: False)


# -- what the model itself finds ---------------------------------------------------------------------------------------


def test_a_vocabulary_that_can_not_write_every_text_is_refused(tmp_path: Path, whole: bytes):
    path = damaged(tmp_path / "model.gguf", whole, b"<0xE2>", b"<0xZZ>")
    with pytest.raises(ModelError, match=r"model\.gguf: its vocabulary has no token for the byte 0xE2, .*: convert it"):
        EngineWorld(path)


def test_bytes_that_no_text_has_need_no_token(tmp_path: Path, whole: bytes):
    EngineWorld(damaged(tmp_path / "model.gguf", whole, b"<0xFF>", b"<0xZZ>")).close()


@pytest.mark.parametrize(("length", "found"), [(0, "0"), (1, "1"), (2**32 - 1, "-1")])
def test_a_context_without_room_for_an_answer_is_refused(tmp_path: Path, whole: bytes, length: int, found: str):
    key = "llama.context_length"
    path = damaged(tmp_path / "model.gguf", whole, number(key, 1024), number(key, length))
    with pytest.raises(ModelError, match=rf"trained for {found} tokens, expected at least 2: download or convert"):
        EngineWorld(path)


def test_tokens_that_attend_to_those_behind_them_are_computed_in_one_pass(tmp_path: Path):
    path = tiny_model(tmp_path / "model.gguf", "llama", attention__causal=False)
    world = EngineWorld(path, n_batch=64, n_ubatch=32)
    assert len(world.answer("abc " * 20).tokens) == 12
    world.close()


def test_a_text_that_has_no_tokens_fails_its_own_request(tmp_path: Path):
    world = EngineWorld(tiny_model(tmp_path / "model.gguf", "llama", vocabulary="rwkv"))
    try:
        with pytest.raises(RequestError, match="prompt: expected a text that this model has tokens for"):
            world.engine.answer(Tokenize("é", special=True))
        assert len(world.answer("abc").tokens) == 12
    finally:
        world.close()
