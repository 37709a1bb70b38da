"""``scripts/wheels``, with stand-ins for pip, CMake and the compiler."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"
VARIANTS = "vendor/llama.cpp/ggml/src/CMakeLists.txt"
SOURCE = {
    "CMakeLists.txt": "set(LLAMA_BUILD_COMMON ON)\n",
    "vendor/llama.cpp/ggml/src/ggml-cpu/amx/mmq.cpp": "    _tile_loadconfig(&tc);\n",
    VARIANTS: "ggml_add_cpu_backend_variant(armv8.0_1)\nggml_add_cpu_backend_variant(armv9.2_1    DOTPROD SME)\n",
}
PYTHON = """
echo "$*" >>calls
case "$*" in
-m\\ venv*) mkdir -p "$4/bin" && cp "$0" "$4/bin/python" ;;
*\\ download\\ *) mkdir build/wheels/sdist && cp sdist.tar.gz build/wheels/sdist ;;
*\\ -w\\ */raw\\ *) mkdir build/wheels/raw && touch build/wheels/raw/llama_cpp_python-1-py3-none-linux_x86_64.whl ;;
*\\ -w\\ dist\\ *) touch dist/umaserve-1-py3-none-any.whl ;;
esac
"""
CMAKE = """
echo "-- Adding CPU backend variant ggml-cpu-armv8.0_1: -march=armv8-a "
echo "-- Adding CPU backend variant ggml-cpu-armv9.2_1: -march=armv9.2-a+dotprod+sme GGML_USE_DOTPROD;GGML_USE_SME"
"""
COMPILER = """
case "$*" in
-print-file-name=*) echo /cross/lib/libgomp.so.1 ;;
*+sme*) echo "error: unknown value '$1'" >&2 && echo "note: valid are others" >&2 && exit 1 ;;
esac
"""


class Checkout:
    """A folder with the script and its stand-ins, on a machine of the architecture ``machine``."""

    def __init__(self, folder: Path, machine: str) -> None:
        self.folder = folder
        self.programs = folder / "programs"
        for name in ("programs", "scripts", "dist"):
            (folder / name).mkdir()
        for name in ("wheels", "bare-venv", "compiler"):
            shutil.copy(SCRIPTS / name, folder / "scripts")
        with tarfile.open(folder / "sdist.tar.gz", "w:gz") as sdist:
            for name, text in SOURCE.items():
                entry = tarfile.TarInfo(f"llama_cpp_python-1/{name}")
                entry.size = len(text)
                sdist.addfile(entry, io.BytesIO(text.encode()))
        self.program("uname", f"echo {machine}")
        self.program("standin-python", PYTHON)
        self.program("cmake", CMAKE)
        self.program("c++", COMPILER)
        self.program("aarch64-linux-gnu-g++", COMPILER)
        self.program("auditwheel", 'echo "auditwheel $* $LD_LIBRARY_PATH" >>calls')
        self.program("progress", 'log=$1 && shift && "$@" >"$log" || { cat "$log" >&2 && exit 1; }')
        (self.programs / "progress").rename(folder / "scripts" / "progress")

    def program(self, name: str, text: str) -> None:
        (self.programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (self.programs / name).chmod(0o755)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": f"{self.programs}:{os.defpath}", "PYTHON": "standin-python", "LD_LIBRARY_PATH": ""}
        script = [self.folder / "scripts" / "wheels", *arguments]
        return subprocess.run(script, env=environment, capture_output=True, text=True, timeout=60)

    @property
    def variants(self) -> str:
        """What is left of the list of llama.cpp's variants."""
        return (self.folder / "build/wheels/source" / VARIANTS).read_text()

    @property
    def calls(self) -> str:
        """Of Python and auditwheel."""
        return (self.folder / "calls").read_text()


@pytest.mark.parametrize(("machine", "compiler"), [("x86_64", "aarch64-linux-gnu-g++"), ("aarch64", "c++")])
def test_processors_that_the_compiler_does_not_know_are_left_out(tmp_path: Path, machine: str, compiler: str) -> None:
    checkout = Checkout(tmp_path, machine)
    done = checkout.run("arm64")
    assert done.returncode == 0, done.stderr
    assert f"leaving out armv9.2_1, which {compiler} can't compile: error: unknown value '-march=" in done.stderr
    assert "armv8.0_1" not in done.stderr
    assert "note:" not in done.stderr
    assert "armv8.0_1" in checkout.variants
    assert "armv9.2_1" not in checkout.variants


def test_wheels_for_another_architecture_have_its_tag_and_its_libraries(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path, "x86_64")
    assert checkout.run("arm64").returncode == 0
    assert "-m wheel tags --remove --platform-tag linux_aarch64 " in checkout.calls
    (repaired,) = [line for line in checkout.calls.splitlines() if line.startswith("auditwheel ")]
    assert repaired.endswith(" /cross/lib")


def test_wheels_of_the_other_architecture_stay(tmp_path: Path) -> None:
    own, other = (tmp_path / f"dist/llama_cpp_python-0-py3-none-any_{machine}.whl" for machine in ("aarch64", "x86_64"))
    checkout = Checkout(tmp_path, "x86_64")
    own.touch()
    other.touch()
    assert checkout.run("arm64").returncode == 0
    assert not own.exists()
    assert other.exists()


@pytest.mark.parametrize(("machine", "arguments"), [("x86_64", ()), ("aarch64", ()), ("aarch64", ("arm64",))])
def test_wheels_for_this_architecture_are_taken_as_pip_has_made_them(
    tmp_path: Path, machine: str, arguments: tuple[str, ...]
) -> None:
    checkout = Checkout(tmp_path, machine)
    done = checkout.run(*arguments)
    assert done.returncode == 0, done.stderr
    assert "wheel tags" not in checkout.calls
    assert "auditwheel repair" in checkout.calls


def test_for_x86_64_all_processors_are_compiled(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path, "x86_64")
    checkout.program("cmake", "exit 1")
    assert checkout.run().returncode == 0
    assert checkout.variants == SOURCE[VARIANTS]


def test_an_architecture_that_it_does_not_know_is_refused(tmp_path: Path) -> None:
    done = Checkout(tmp_path, "x86_64").run("riscv64")
    assert done.returncode == 2
    assert "riscv64: it takes arm64, or nothing" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "compiler", "package"),
    [((), "c++, g++ or clang++", "g++"), (("arm64",), "aarch64-linux-gnu-g++", "g++-aarch64-linux-gnu")],
)
def test_a_compiler_that_is_missing_is_named_before_anything_is_fetched(
    tmp_path: Path, arguments: tuple[str, ...], compiler: str, package: str
) -> None:
    checkout = Checkout(tmp_path, "x86_64")
    for name in ("c++", "g++", "clang++", "aarch64-linux-gnu-g++"):
        checkout.program(name, "exit 1")
    done = checkout.run(*arguments)
    assert done.returncode == 1
    assert f"no C++ compiler ({compiler})" in done.stderr
    assert done.stderr.endswith(f"apt install {package}\n")
    assert " download " not in checkout.calls


def test_an_environment_that_was_half_made_is_made_anew(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path, "x86_64")
    half_made = tmp_path / "build/wheels/venv/bin"
    half_made.mkdir(parents=True)
    checkout.program("half-made-python", 'echo "No module named pip" >&2 && exit 1')
    (checkout.programs / "half-made-python").rename(half_made / "python")
    done = checkout.run()
    assert done.returncode == 0, done.stderr
    assert f"-m venv --clear {tmp_path}/build/wheels/venv" in checkout.calls


def test_a_source_that_has_changed_is_an_error(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path, "x86_64")
    checkout.program("cmake", CMAKE.replace("armv9.2_1", "armv9.3_1"))
    done = checkout.run("arm64")
    assert done.returncode == 1
    assert "no such line to change" in done.stderr
    assert "armv9.3_1" in done.stderr
