"""The context that a model was trained for, by the header of its file."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest
from gguf_bytes import header, text
from hypothesis import given
from hypothesis import strategies as st

from umaserve.settings.gguf_header import UNKNOWN, Trained, read

UINT32, STRING, ARRAY = 4, 8, 9
LENGTH = ("llama.context_length", UINT32, struct.pack("<I", 8192))
NAME = ("general.name", STRING, text(b"a model"))
NUMBERS = ("general.sizes", ARRAY, struct.pack("<IQ", UINT32, 3) + bytes(12))
VOCABULARY = ("tokenizer.ggml.tokens", ARRAY, struct.pack("<IQ", STRING, 2) + text(b"a") + text(b"b"))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "m.gguf"


def read_from(file: Path, data: bytes) -> Trained:
    file.write_bytes(data)
    return read(str(file))


def test_it_is_found_behind_values_of_every_size(file: Path) -> None:
    sizes = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
    scalars = [(f"general.k{kind}", kind, bytes(size)) for kind, size in sizes.items()]
    for version in (2, 3):
        data = header(*scalars, NAME, NUMBERS, LENGTH, VOCABULARY, version=version)
        assert read_from(file, data) == Trained("llama", 8192)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"GGUF",
        header(),
        header(NAME),
        header(LENGTH, magic=b"GGML"),
        header(LENGTH, version=1),
        header(LENGTH, version=0x03000000),
        header(VOCABULARY, LENGTH),
        header(("llama.context_length", STRING, text(b"8192"))),
        header(("general.k", 99, b""), LENGTH),
        header(("general.name", STRING, b"\xff" * 8), LENGTH),
        header(("general.sizes", ARRAY, struct.pack("<IQ", UINT32, 2**64 - 1)), LENGTH),
        header(("k" * 70_000, UINT32, bytes(4)), LENGTH),
        header(*[(f"k{n}", UINT32, bytes(4)) for n in range(1024)], LENGTH),
    ],
)
def test_nothing_is_known_of_other_files(data: bytes, file: Path) -> None:
    assert read_from(file, data) == UNKNOWN


@given(end=st.integers(0, 200), change=st.binary(max_size=8), at=st.integers(0, 200))
def test_a_damaged_file_is_no_error(end: int, change: bytes, at: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    data = bytearray(header(NAME, NUMBERS, LENGTH)[:end])
    data[at : at + len(change)] = change
    found = read_from(tmp_path_factory.getbasetemp() / "damaged.gguf", bytes(data))
    assert 0 <= found.tokens < 1 << 32
    assert found.architecture == "" or found.architecture.isprintable()


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert read(str(tmp_path / "pipe")) == UNKNOWN
    assert read(str(tmp_path / "none")) == UNKNOWN
    assert read(str(tmp_path)) == UNKNOWN
