"""llama.cpp's RPC backend, which places parts of the model on other machines, where this build of llama.cpp has it."""

from __future__ import annotations

import contextlib
import ctypes
import socket
from collections.abc import Sequence
from pathlib import Path

from umaserve.core.errors import ModelError
from umaserve.engine.llama import backends
from umaserve.settings.addresses import parse_address

REACH_S = 5.0


def available() -> bool:
    return _library() is not None


def connect(servers: Sequence[str]) -> None:
    """Let models that are loaded from now on use ``servers``, each the HOST:PORT of a running ``rpc-server``."""
    if not servers:
        return
    if not available():
        raise ModelError(
            "rpc: this build of llama.cpp has no RPC backend: build one with CMAKE_ARGS=-DGGML_RPC=on pip "
            "install --force-reinstall --no-binary llama-cpp-python llama-cpp-python"
        )
    rpc = ctypes.CDLL(str(_library()))
    rpc.ggml_backend_rpc_add_server.argtypes = [ctypes.c_char_p]
    rpc.ggml_backend_rpc_add_server.restype = ctypes.c_void_p
    register = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(("ggml_backend_register", backends.LIBRARY))
    for server in servers:
        # llama.cpp aborts the process where no server answers.
        try:
            with contextlib.closing(socket.create_connection(parse_address(server), REACH_S)):
                pass
        except OSError as error:
            raise ModelError(f"rpc {server}: {error}: start llama.cpp's rpc-server there") from None
        added = rpc.ggml_backend_rpc_add_server(server.encode())
        if not added:
            raise ModelError(f"rpc {server}: llama.cpp can't use it: it must be of the same version there as here")
        register(added)


def _library() -> Path | None:
    return next(backends.FOLDER.glob("libggml-rpc.*"), None)
