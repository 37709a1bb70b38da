"""What llama.cpp computes with: its backends, and when it may repack weights."""

from __future__ import annotations

import ctypes
import logging
from pathlib import Path

import llama_cpp
import pytest

from umaserve.core.errors import ModelError
from umaserve.engine.llama import backends


class Library:
    """Stands in for llama.cpp where a processor is one that no backend in the folder knows."""

    def __init__(self) -> None:
        self.looked_in: list[bytes] = []

    def ggml_backend_reg_count(self) -> int:
        return 0

    def ggml_backend_load_all_from_path(self, folder: bytes) -> None:
        self.looked_in.append(folder)


def test_a_backend_is_there_however_llama_cpp_was_built() -> None:
    backends.load()
    backends.load()
    assert backends.LIBRARY.ggml_backend_reg_count() >= 1
    assert "CPU" in backends.kernels()


def test_backends_are_looked_for_in_its_own_folder_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    library = Library()
    monkeypatch.setattr(backends, "LIBRARY", library)
    monkeypatch.setattr(backends, "FOLDER", tmp_path)
    with pytest.raises(ModelError, match=f"no backend in {tmp_path} works on this machine: reinstall llama-cpp-python"):
        backends.load()
    assert library.looked_in == [bytes(tmp_path)]


def test_what_is_registered_is_known_where_models_are_loaded() -> None:
    loaded = ctypes.CDLL(llama_cpp.llama_cpp._lib._name)
    address = ctypes.cast(loaded.ggml_backend_register, ctypes.c_void_p).value
    assert ctypes.cast(backends.LIBRARY.ggml_backend_register, ctypes.c_void_p).value == address


@pytest.mark.parametrize(
    ("kernels", "built_by", "may"),
    [
        ("AVX512 = 1 | AMX_INT8 = 1", b"GCC: (Debian 12.2.0-14) 12.2.0", False),
        ("AVX512 = 1 | AMX_INT8 = 1", b"GCC: (Debian 12.4.0-1) 12.4.0", True),
        ("AVX512 = 1 | AMX_INT8 = 1", b"GCC: (GNU) 14.1.0", True),
        ("AVX512 = 1 | AMX_INT8 = 1", b"GCC: (Debian 12.2.0-14) 12.2.0\0whole tile configuration", True),
        ("AVX512 = 1 | AMX_INT8 = 1", b"clang version 16", True),
        ("AVX512 = 1", b"GCC: (Debian 12.2.0-14) 12.2.0", True),
    ],
)
@pytest.mark.parametrize("name", ["libggml-cpu.so", "libggml-cpu-sapphirerapids.so"])
def test_weights_are_not_repacked_for_broken_amx_code(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    kernels: str,
    built_by: bytes,
    may: bool,
    name: str,
) -> None:
    (tmp_path / name).write_bytes(b"\x7fELF\0" + built_by + b"\0")
    monkeypatch.setattr(backends, "FOLDER", tmp_path)
    monkeypatch.setattr(backends, "kernels", lambda: kernels)
    with caplog.at_level(logging.WARNING):
        assert backends.may_repack() is may
    assert ("breaks AMX" in caplog.text) is not may
