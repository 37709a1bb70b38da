"""Files at which llama.cpp ends the engine's process, or that the engine refuses."""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import llama_cpp
import pytest
from engine_world import EngineWorld
from program import run
from remote_engine import ALLOWANCE
from tiny_models import WIDTH, tiny_model
from tiny_projectors import pair

from umaserve.core.errors import ModelError, RequestError
from umaserve.core.events import ModelInfo
from umaserve.core.queries import Tokenize
from umaserve.remote.process import EngineProcess
from umaserve.settings.daemon import Config


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


def loaded(path: str, **settings: object) -> ModelInfo:
    """By a process of its own, as in the daemon."""
    process = EngineProcess()
    config = Config(**({"model": path, "n_ctx": 256, "parallel": 1, "threads": 1, "weights": "as-is"} | settings))
    try:
        # The loop's thread, as this one, waits for no engine for long.
        with ThreadPoolExecutor(1) as loading:
            return loading.submit(process.load, config, ALLOWANCE, lambda _fraction: True).result().info
    finally:
        process.close()


DAMAGES = [
    (number("llama.block_count", 2), number("llama.block_count", 0)),
    (number("llama.block_count", 2), number("llama.block_count", 100_000)),
    (norm(llama_cpp.GGML_TYPE_F32), norm(llama_cpp.GGML_TYPE_I32)),
]
NAMES = [
    "no layers",
    "too many layers",
    "weights of no such type",
]


@pytest.mark.parametrize(("before", "after"), DAMAGES, ids=NAMES)
def test_what_ends_llama_cpp_is_refused_in_one_line(tmp_path: Path, whole: bytes, before: bytes, after: bytes):
    path = damaged(tmp_path / "damaged.gguf", whole, before, after)
    with pytest.raises(ModelError, match=r"^model .*damaged\.gguf: llama\.cpp can't take it.*ended by Abort") as caught:
        loaded(path)
    assert str(caught.value).isprintable()


def test_what_ends_llama_cpp_at_the_first_embedding_is_refused_too(tmp_path: Path):
    path = tiny_model(tmp_path / "model.gguf", "bert", pooling_type=5)
    with pytest.raises(ModelError, match="unknown pooling type"):
        loaded(path)
    pooled = tiny_model(tmp_path / "pooled.gguf", "deepseek4")
    assert loaded(pooled).architecture == "deepseek4"
    with pytest.raises(ModelError, match=r"can't take it with --pooling mean, .*tensor read out of bounds"):
        loaded(pooled, pooling="mean")


def test_the_daemon_ends_with_that_line_and_no_crash(tmp_path: Path, whole: bytes):
    path = damaged(tmp_path / "damaged.gguf", whole, *DAMAGES[0])
    ended = run("--model", path, "--socket", str(tmp_path / "socket"))
    assert ended.returncode == 1, ended.stderr
    assert "damaged.gguf: llama.cpp can't take it" in ended.stderr


def test_a_projector_that_ends_llama_cpp_is_refused_too(tmp_path: Path):
    model, projector = pair(tmp_path, "llava")
    assert loaded(model, mmproj=projector).sees
    heads = "clip.vision.attention.head_count"
    path = damaged(tmp_path / "damaged.gguf", Path(projector).read_bytes(), number(heads, 2), number(heads, 3))
    with pytest.raises(ModelError, match=r"^mmproj .*damaged\.gguf: llama\.cpp can't take it, .*ended by Aborted"):
        loaded(model, mmproj=path)


def test_a_draft_model_that_ends_llama_cpp_is_refused_by_its_own_name(tmp_path: Path, whole: bytes):
    (tmp_path / "whole.gguf").write_bytes(whole)
    model = str(tmp_path / "whole.gguf")
    assert loaded(model, draft_model=model).needed_bytes > 0
    path = damaged(tmp_path / "damaged.gguf", whole, *DAMAGES[0])
    with pytest.raises(ModelError, match=r"^model .*damaged\.gguf: llama\.cpp can't take it"):
        loaded(model, draft_model=path)


def test_what_llama_cpp_refuses_itself_has_its_own_error(tmp_path: Path, whole: bytes):
    path = damaged(tmp_path / "model.gguf", whole, b"token_embd.weight", b"token_embx.weight")
    with pytest.raises(ModelError, match=r"llama\.cpp could not load it"):
        loaded(path)


HANGING = """
import socket, sys, time
from umaserve.engine import last_words
last_words.MAX_S = 1.0
words = last_words.LastWords(socket.socket(fileno=int(sys.argv[1])))
words.begins("model", "a.gguf")
words.advances()
words.done()
time.sleep(1.5)
last_words.MAX_S = 0.05
words.begins("mmproj", "b.gguf")
time.sleep(600)
"""


def test_a_file_at_which_llama_cpp_hangs_ends_the_process_and_is_named():
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            descriptor = str(theirs.fileno())
            ended = subprocess.run([sys.executable, "-c", HANGING, descriptor], pass_fds=[int(descriptor)], check=False)
        assert ended.returncode == 1
        first, second, calls = ours.recv(1 << 16).split(b"\0")
    assert (first, second) == (b"model a.gguf", b"mmproj b.gguf")
    assert calls.startswith(b"Timeout (")


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
            world.engine.answer(Tokenize("é"))
        assert len(world.answer("abc").tokens) == 12
    finally:
        world.close()
