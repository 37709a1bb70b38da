"""The wheels of ``scripts/wheels``, installed where there is no compiler."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from daemon import Daemon

DIST = Path(__file__).parents[2] / "dist"

pytestmark = pytest.mark.skipif(
    not all(map(any, (DIST.glob("umaserve-*.whl"), DIST.glob(f"llama_cpp_python-*_{platform.machine()}.whl")))),
    reason="no wheels for this architecture in dist/: scripts/wheels makes them",
)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment that they were installed into, with nothing but Python to be found."""
    folder = tmp_path_factory.mktemp("machine")
    programs, environment = folder / "bin", folder / "environment"
    programs.mkdir()
    (programs / "python3").symlink_to(os.path.realpath(sys.executable))
    bare = {"PATH": str(programs), "HOME": str(folder), "PIP_NO_CACHE_DIR": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    subprocess.run(["python3", "-m", "venv", environment], env=bare, cwd=folder, check=True)
    install = [environment / "bin" / "pip", "install", "-q", "--prefer-binary", "--find-links", DIST]
    subprocess.run([*install, "umaserve[default-model]"], env=bare, cwd=folder, check=True)
    return environment / "bin" / "python"


def test_what_was_installed_answers(installed: Path, tmp_path: Path) -> None:
    own_folder = {"PYTHONPATH": "", "PATH": "", "UMA_THREADS": "1"}
    daemon = Daemon(tmp_path, "--log-level", "debug", python=str(installed), env=own_folder, cwd=tmp_path)
    assert daemon.text(max_tokens=4)
    assert daemon.stop() == 0
    assert f"loaded CPU backend from {installed.parents[1]}/lib/python" in daemon.logs


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the processors named are those of x86-64")
def test_there_is_code_for_every_processor_and_what_it_needs(installed: Path) -> None:
    (packages,) = installed.parents[1].glob("lib/python*/site-packages")
    kinds = {library.stem.removeprefix("libggml-cpu-") for library in packages.glob("llama_cpp/lib/libggml-cpu-*")}
    assert kinds >= {"x64", "sse42", "sandybridge", "haswell", "skylakex", "icelake", "zen4", "sapphirerapids"}
    assert list(packages.glob("llama_cpp_python.libs/libgomp-*"))
    # Else weights would not be repacked on processors with AMX.
    assert b"whole tile configuration" in (packages / "llama_cpp/lib/libggml-cpu-sapphirerapids.so").read_bytes()
