"""Installs what a suite needs into the cache, once, and again when its requirements change."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from tests.conformance.suites import NPM, PYPI, Suite

_PIP = ("-m", "pip", "install", "-q", "--disable-pip-version-check")
_NPM = ("npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--no-package-lock", "--loglevel=error")
_INSTALLS_S = 1800
OPEN_RESPONSES, JSON_SCHEMA_BENCH = "OPEN_RESPONSES", "JSON_SCHEMA_BENCH"
"""The variables that name a checkout each."""


class CantInstall(Exception):
    """The reason why a suite can't be tried on this machine."""


class Place(NamedTuple):
    """Where a suite is: ``python`` runs its tests, ``folder`` has its files, ``version`` names what was installed."""

    python: Path
    folder: Path
    version: str


def installed(suite: Suite, cache: Path) -> Place:
    """Raises ``CantInstall``, which says what is missing."""
    missing = [tool for tool in suite.tools if shutil.which(tool) is None]
    if missing:
        raise CantInstall(f"needs {' and '.join(missing)}")
    cache.mkdir(parents=True, exist_ok=True)
    python = Path(sys.executable)
    match suite.kind:
        case "client":
            python = _environment(cache / suite.name, "".join(f"{one}\n" for one in ("pytest", *suite.requirements)))
            return Place(python, cache / suite.name, _versions(suite, python))
        case "pypi":
            return Place(python, cache, _versions(suite, _environment(cache / "pypi", PYPI.read_text())))
        case "npm":
            return Place(python, cache, _node_packages(suite, cache / "npm"))
        case "schemas":
            return Place(python, *(_schemas(cache) if suite.packages else _real_schemas()))
        case "calls":
            return Place(python, *_package(suite, cache))
        case "go":
            return Place(python, *_module(suite))
        case "llama-server":
            folder, version = _source(cache, "llama-cpp-python")
            tests = folder / "vendor/llama.cpp/tools/server/tests"
            # The tests' own fixtures ask for modules that only they use.
            python = _environment(cache / "llama-server", (tests / "requirements.txt").read_text())
            return Place(python, tests, version)
        case "compliance":
            return Place(python, *_compliance(cache))
        case _:
            return Place(python, cache, _versions(suite, python))


def _environment(folder: Path, requirements: str) -> Path:
    """Python of an environment with these requirements."""
    python, stamp = folder / "bin" / "python", folder / "requirements.txt"
    if not stamp.exists() or stamp.read_text() != requirements:
        shutil.rmtree(folder, ignore_errors=True)
        _run(sys.executable, "-m", "venv", folder)
        wanted = folder / "wanted.txt"
        wanted.write_text(requirements)
        _run(python, *_PIP, "-r", wanted)
        wanted.rename(stamp)
    return python


def _versions(suite: Suite, python: Path) -> str:
    """The versions of a suite's packages, as ``python`` finds them."""
    if python == Path(sys.executable):
        return ", ".join(f"{name} {metadata.version(name)}" for name in suite.packages)
    program = "import sys; from importlib.metadata import version; print(*map(version, sys.argv[1:]))"
    versions = _run(python, "-c", program, *suite.packages).split()
    return ", ".join(map(" ".join, zip(suite.packages, versions, strict=True)))


def _node_packages(suite: Suite, folder: Path) -> str:
    stamp = folder / "package.json"
    if not stamp.exists() or stamp.read_text() != NPM.read_text():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        with tempfile.TemporaryDirectory(dir=folder) as made:
            shutil.copy(NPM, made)
            _run(*_NPM, "--prefix", made)
            for each in Path(made).iterdir():
                each.rename(folder / each.name)
    told = [json.loads((folder / "node_modules" / name / "package.json").read_text()) for name in suite.packages]
    return ", ".join(f"{package['name']} {package['version']}" for package in told)


def _schemas(cache: Path) -> tuple[Path, str]:
    """The folder of JSON-Schema-Test-Suite, and where it comes from: the source of ``jsonschema`` has a copy."""
    source, version = _source(cache, "jsonschema")
    return source / "json/tests/draft2020-12", version


def _package(suite: Suite, cache: Path) -> tuple[Path, str]:
    """The folder of a package without what it requires, and its version."""
    folder = cache / suite.name
    if not folder.exists():
        _run(sys.executable, *_PIP, "--no-deps", "--target", folder, *suite.packages)
    (told,) = folder.glob("*.dist-info")
    return folder, told.stem.replace("-", " ")


def _real_schemas() -> tuple[Path, str]:
    """The folder of JSONSchemaBench's schemas with values, and its version."""
    checkout = os.environ.get(JSON_SCHEMA_BENCH)
    if not checkout:
        raise CantInstall(f"needs a checkout of github.com/guidance-ai/jsonschemabench, named by {JSON_SCHEMA_BENCH}")
    return Path(checkout) / "maskbench/data", "MaskBench, 300 schemas"


def _source(cache: Path, package: str) -> tuple[Path, str]:
    """The folder of a package's source, which has others' tests in it, and its version."""
    source = cache / package
    if not source.exists():
        with tempfile.TemporaryDirectory(dir=cache) as fetched:
            download = ("-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps")
            _run(sys.executable, *download, "--no-binary", package, "-d", fetched, package)
            (archive,) = Path(fetched).glob("*.tar.gz")
            with tarfile.open(archive) as file:
                file.extractall(fetched, filter="data")
            (folder,) = (each for each in Path(fetched).iterdir() if each.is_dir())
            (folder / "version").write_text(folder.name.replace("-", " "))
            folder.rename(source)
    return source, f"copy in {(source / 'version').read_text()}"


def _compliance(cache: Path) -> tuple[Path, str]:
    """The folder of Open Responses' tests and of what runs them, and their version."""
    checkout = os.environ.get(OPEN_RESPONSES)
    if not checkout:
        raise CantInstall(f"needs a checkout of github.com/openresponses/openresponses, named by {OPEN_RESPONSES}")
    folder = cache / "open-responses"
    shutil.rmtree(folder, ignore_errors=True)
    for part in ("bin", "src/lib", "src/generated"):
        shutil.copytree(Path(checkout) / part, folder / part)
    _run(*_NPM, "--prefix", folder, "bun", "zod@3")
    _run("node", "install.js", cwd=folder / "node_modules/bun")
    return folder, f"openresponses {json.loads((Path(checkout) / 'package.json').read_text())['version']}"


def _module(suite: Suite) -> tuple[Path, str]:
    """The folder of a Go module in Go's own cache, and its version."""
    (name,) = suite.packages
    told = json.loads(_run("go", "mod", "download", "-json", f"{name}@latest", cwd=Path(tempfile.gettempdir())))
    return Path(told["Dir"]), told["Version"]


def _run(*command: str | Path, cwd: Path | None = None) -> str:
    """What a command prints."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ended = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=_INSTALLS_S, check=False
    )
    if ended.returncode:
        *_, last = ["ended without a word", *ended.stderr.strip().splitlines()]
        raise CantInstall(f"{Path(command[0]).name} said: {last}")
    return ended.stdout
