"""llama.cpp's backends, and what it can compute with. Builds for any processor (``GGML_BACKEND_DL``, as of
``scripts/wheels``) have them as libraries, of which llama.cpp loads the one that is fastest here."""

from __future__ import annotations

import ctypes
import logging
import os
import re
from pathlib import Path

import llama_cpp

from umaserve.core.errors import ModelError
from umaserve.engine.llama import llama_log

log = logging.getLogger(__name__)

FOLDER = Path(llama_cpp.__file__).parent / "lib"

LIBRARY = llama_cpp.llama_cpp._lib
"""llama.cpp with all that it is linked to. Opened by path, libggml.so would be another copy with backends of its own:
wheels have no links, and its other names are files too."""

# Prototypes declared here, as in ``gguf``.
_device_count = ctypes.CFUNCTYPE(ctypes.c_size_t)(("ggml_backend_dev_count", LIBRARY))
_device = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t)(("ggml_backend_dev_get", LIBRARY))
_device_type = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(("ggml_backend_dev_type", LIBRARY))
_device_memory = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_size_t)
)(("ggml_backend_dev_memory", LIBRARY))
_GPU = 1
"""GGML_BACKEND_DEVICE_TYPE_GPU: a device with memory of its own."""

_GCC = re.compile(rb"GCC: \([^)]*\) (\d+)\.(\d+)")
_FIXED_TILE_CONFIG = {11: 5, 12: 4, 13: 3}
"""First minor release of each GCC that keeps an AMX tile's whole configuration (GCC bug 114098)."""
_WHOLE_TILE_CONFIG = b"whole tile configuration"
"""Text in a library in which ``scripts/wheels`` has made any GCC keep the whole configuration."""


def load() -> None:
    """Load llama.cpp's backends, before any use of a model or a device. By itself llama.cpp would look for libraries in
    the working directory. Raises ``ModelError``."""
    llama_log.log_all()
    if not LIBRARY.ggml_backend_reg_count():
        LIBRARY.ggml_backend_load_all_from_path(os.fsencode(FOLDER))
        if not LIBRARY.ggml_backend_reg_count():
            raise ModelError(f"llama.cpp: no backend in {FOLDER} works on this machine: reinstall llama-cpp-python")
    llama_cpp.llama_backend_init()


def have_gpu() -> bool:
    """Whether this build of llama.cpp can place layers on GPUs."""
    load()
    return bool(llama_cpp.llama_supports_gpu_offload())


def memories() -> dict[str, int]:
    """llama.cpp's kinds of memory for tensors, one of each device, by their names."""
    load()
    for function in (LIBRARY.ggml_backend_dev_get, LIBRARY.ggml_backend_dev_buffer_type):
        function.restype = ctypes.c_void_p
    LIBRARY.ggml_backend_dev_count.restype = ctypes.c_size_t
    LIBRARY.ggml_backend_dev_get.argtypes = [ctypes.c_size_t]
    LIBRARY.ggml_backend_dev_buffer_type.argtypes = LIBRARY.ggml_backend_buft_name.argtypes = [ctypes.c_void_p]
    LIBRARY.ggml_backend_buft_name.restype = ctypes.c_char_p
    devices = map(LIBRARY.ggml_backend_dev_get, range(LIBRARY.ggml_backend_dev_count()))
    found = (LIBRARY.ggml_backend_dev_buffer_type(device) for device in devices)
    return {LIBRARY.ggml_backend_buft_name(memory).decode(): memory for memory in found if memory}


def free_gpu_bytes() -> int:
    """Bytes of memory that all GPUs together have free."""
    load()
    return sum(_free_bytes(device) for device in map(_device, range(_device_count())) if _device_type(device) == _GPU)


def _free_bytes(device: int) -> int:
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    _device_memory(device, free, total)
    return free.value


def kernels() -> str:
    """The instructions that llama.cpp computes with."""
    load()
    return str(llama_cpp.llama_print_system_info().decode(errors="replace"))


def build() -> list[int]:
    """Size and time of llama.cpp's library, which tell its builds apart: it may be another one than its bindings'
    version says."""
    status = os.stat(LIBRARY._name)
    return [status.st_size, status.st_mtime_ns]


def may_repack() -> bool:
    """Whether llama.cpp may repack weights for this processor.

    Built for AMX by a GCC that drops most of the tile configuration, it crashes with a segmentation fault at the first
    batch of two tokens. Without repacking, that code is never reached.
    """
    if "AMX_INT8 = 1" not in kernels():
        return True
    libraries = [library.read_bytes() for library in FOLDER.glob("libggml-cpu*")]
    found = next(filter(None, map(_GCC.search, libraries)), None)
    if found is None or any(_WHOLE_TILE_CONFIG in library for library in libraries):
        return True
    major, minor = int(found[1]), int(found[2])
    if major >= 14 or minor >= _FIXED_TILE_CONFIG.get(major, 1000):
        return True
    log.warning(
        "llama.cpp was built by GCC %d.%d, which breaks AMX: weights are not repacked. Rebuild llama-cpp-python with "
        "GCC 12.4, 13.3, 14 or clang for the full speed of this processor",
        major,
        minor,
    )
    return False
