"""llama.cpp's own RPC server on this box's processor. Arguments: HOST:PORT."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import llama_cpp

LIBRARIES = Path(llama_cpp.__file__).parent / "lib"


def main() -> None:
    ggml = ctypes.CDLL(str(LIBRARIES / "libggml.so"))
    ggml.ggml_backend_dev_by_type.restype = ctypes.c_void_p
    rpc = ctypes.CDLL(str(LIBRARIES / "libggml-rpc.so"))
    start = rpc.ggml_backend_rpc_start_server
    text, size = ctypes.c_char_p, ctypes.c_size_t
    start.argtypes = [text, text, size, size, ctypes.POINTER(ctypes.c_void_p)]
    devices = (ctypes.c_void_p * 1)(ggml.ggml_backend_dev_by_type(0))
    start(sys.argv[1].encode(), None, 1, 1, devices)


if __name__ == "__main__":
    main()
