"""``python -m bench.bundle DIR``: all that ``bench.offline`` needs on a machine without network, in one folder.

- ``umaserve/``, ``bench/``: this source tree's
- ``wheels/``: pip, cmake, ninja and the packages that both import; of llama-cpp-python only the Python part
- ``llama.cpp.tar.xz``: the source of llama.cpp from llama-cpp-python's source distribution, to be compiled there
- ``tokenizer.gguf``: the default model's tokenizer, for a model of random weights
"""

from __future__ import annotations

import argparse
import configparser
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from bench.random_model import write_tokenizer
from bench.report import progress
from umaserve.core.errors import ModelError

ROOT = Path(__file__).parents[1]
SOURCES, TOKENIZER, WHEELS = "llama.cpp.tar.xz", "tokenizer.gguf", "wheels"

BINDINGS = "llama-cpp-python"
TOOLS = ("pip>=23", "cmake>=3.24", "ninja", "gguf>=0.10")
"""CMake from 3.24 on can compile for this machine's GPU alone."""

_SOURCE = ("vendor", "llama.cpp")
_UNUSED = {".git", ".github", "benches", "docs", "examples", "gguf-py", "media", "models", "tests"}
"""Folders of llama.cpp's source without which its server compiles; they are most of it."""
_GLIBC = (39, 35, 34, 31, 28, 27, 24, 17, 12, 5)
"""Minor versions of glibc 2 that wheels are made for. pip takes none but those that are named."""


def requirements() -> list[str]:
    """umaserve's own, as setup.cfg names them."""
    parser = configparser.ConfigParser()
    parser.read_string((ROOT / "setup.cfg").read_text())
    return parser["options"]["install_requires"].split()


def is_needed(name: PurePosixPath) -> bool:
    """Whether a file of the source distribution is a part of llama.cpp that is compiled."""
    return name.parts[1:3] == _SOURCE and len(name.parts) > 3 and name.parts[3] not in _UNUSED


def repack(sdist: Path, target: Path) -> None:
    """Write llama.cpp's source, without what is not compiled, as an archive of one folder ``llama.cpp``."""
    with tarfile.open(sdist) as source, tarfile.open(target, "w:xz") as to:
        for member in source:
            name = PurePosixPath(member.name)
            if is_needed(name) and (member.isfile() or member.issym()):
                member.name = str(PurePosixPath(*name.parts[2:]))
                # Where the old name was too long for the header, it would count more than the new one.
                member.pax_headers = {}
                to.addfile(member, source.extractfile(member) if member.isfile() else None)


def make(folder: Path, python: str | None) -> None:
    """Fill the folder. Raises ``CalledProcessError`` or ``ModelError``."""
    wheels = folder / WHEELS
    shutil.rmtree(wheels, ignore_errors=True)
    wheels.mkdir(parents=True)
    ours = requirements()
    (bindings,) = [line for line in ours if line.startswith(BINDINGS)]
    with tempfile.TemporaryDirectory(prefix="bundle-") as at:
        progress(f"downloading the source distribution of {bindings}")
        _pip("download", "--no-deps", "--no-binary", BINDINGS, "-d", at, bindings)
        (sdist,) = Path(at).glob("*.tar.gz")
        # What is compiled is compiled where it runs. Without it, the wheel fits any Python.
        _pip("wheel", "--no-deps", "-C", "wheel.cmake=false", "-w", str(wheels), str(sdist))
        progress("packing the source of llama.cpp")
        repack(sdist, folder / SOURCES)
    progress("downloading wheels")
    others = [line for line in ours if line != bindings]
    (wheel,) = wheels.glob("llama_cpp_python-*.whl")
    _pip("download", *_target(python), "-d", str(wheels), str(wheel), *others, *TOOLS)
    write_tokenizer(folder / TOKENIZER)
    for package in ("umaserve", "bench"):
        shutil.rmtree(folder / package, ignore_errors=True)
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__", "*.png"))


def _pip(command: str, *arguments: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "pip", command, "--quiet", "--disable-pip-version-check", *arguments], check=True
    )


def _target(python: str | None) -> list[str]:
    """pip's flags for wheels that fit another version of Python than this one."""
    if python is None:
        return ["--only-binary", ":all:"]
    libc = [f"--platform=manylinux_2_{minor}_{platform.machine()}" for minor in _GLIBC]
    return ["--only-binary", ":all:", "--python-version", python, "--implementation", "cp", *libc]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m bench.bundle", description="Collect what bench.offline needs.")
    parser.add_argument("folder", type=Path, help="where to put it; what it has from before is replaced")
    version = "of Python there, such as 3.12 (default: this one's)"
    parser.add_argument("--python", metavar="VERSION", help=version)
    options = parser.parse_args(argv)
    try:
        make(options.folder, options.python)
    except (subprocess.CalledProcessError, ModelError, OSError) as error:
        parser.exit(1, f"{parser.prog}: {error}\n")
    size = sum(file.stat().st_size for file in options.folder.rglob("*") if file.is_file())
    print(f"{options.folder}: {size / 2**20:.0f} MiB. There: cd {options.folder.name} && python3 -m bench.offline")
    return 0


if __name__ == "__main__":
    sys.exit(main())
