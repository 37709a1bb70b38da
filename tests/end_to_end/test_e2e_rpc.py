"""A model that lies partly in another process, by llama.cpp's RPC backend, where this build of llama.cpp has it."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon import FAR_FROM_A_TIE, Daemon

from umaserve.core.errors import ModelError
from umaserve.engine.llama import rpc
from umaserve.engine.llama.model import Model, find
from umaserve.settings.daemon import Config

built = pytest.mark.skipif(not rpc.available(), reason="this llama.cpp was built without GGML_RPC")


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def rpc_server() -> Iterator[str]:
    address = free_address()
    process = subprocess.Popen([sys.executable, rpc_server.__file__, address])
    deadline = time.monotonic() + 30
    host, port = address.split(":")
    while True:
        try:
            socket.create_connection((host, int(port))).close()
            break
        except ConnectionRefusedError:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
    yield address
    process.kill()
    process.wait()


@built
def test_the_answer_is_the_same_with_the_model_on_another_box(tmp_path: Path, rpc_server: str) -> None:
    (tmp_path / "alone").mkdir()
    alone = Daemon(tmp_path / "alone", env={"UMA_THREADS": "1"})
    expected = alone.text(FAR_FROM_A_TIE, max_tokens=8)
    assert alone.stop() == 0
    shared = Daemon(tmp_path, "--rpc", rpc_server, env={"UMA_THREADS": "1"})
    assert shared.text(FAR_FROM_A_TIE, max_tokens=8) == expected
    assert shared.stop() == 0, shared.logs


@built
def test_a_server_that_is_not_there_is_named() -> None:
    address = free_address()
    with pytest.raises(ModelError, match=f"rpc {address}: .*start llama.cpp's rpc-server there"):
        Model(find(""), Config(rpc=(address,)), lambda _fraction: True)


@pytest.mark.skipif(rpc.available(), reason="this llama.cpp was built with GGML_RPC")
def test_a_build_without_it_says_how_to_make_one() -> None:
    with pytest.raises(ModelError, match="CMAKE_ARGS=-DGGML_RPC=on"):
        Model(find(""), Config(rpc=("127.0.0.1:50052",)), lambda _fraction: True)
