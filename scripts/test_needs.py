"""Prints what tests need besides what ``scripts/run`` installs and the extra ``test``, one word a line:

    python scripts/test_needs.py [FILE, FOLDER or ID OF A TEST]...

extras of setup.cfg, and the names of what else ``scripts/test`` downloads. Without a path: of all tests. Reads the
imports of the tests and of what they import from tests/support, none of which needs to be installed.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1] / "tests"
SUPPORT = {path.stem: path for path in (TESTS / "support").glob("*.py")}
EXTRAS = {
    "asyncio": "uvloop",
    "bench": "matplotlib",
    "peers": "anthropic axe_core_python kubernetes_validate langchain_core langchain_ollama langchain_openai ollama "
    "openai pocketsphinx pydantic pydantic_ai selenium yaml",
}
NEEDS = {module: extra for extra, modules in EXTRAS.items() for module in modules.split()} | {"minilm": "minilm"}
_IMPORT = re.compile(r"""^ *(?:from|import) ([\w.]+)|importorskip\("(\w+)""", re.MULTILINE)
_FOLDER = re.compile(r'Path\(sys\.prefix\) / "([\w.-]+)"')
"""In the virtual environment; the downloads there are called by their folder."""


def needs(paths: Iterable[Path]) -> set[str]:
    """What the test files need."""
    found: set[str] = set()
    seen: set[Path] = set()
    waiting = list(paths)
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        text = path.read_text(encoding="utf-8")
        found.update(_FOLDER.findall(text))
        for module in modules(text):
            if module in NEEDS:
                found.add(NEEDS[module])
            if module in SUPPORT:
                waiting.append(SUPPORT[module])
    return found


def modules(text: str) -> Iterator[str]:
    """What a test file imports, by the name that ``SUPPORT`` and ``NEEDS`` have."""
    for match in _IMPORT.finditer(text):
        yield (match[1] or match[2]).removeprefix("tests.support.").split(".")[0]


def test_files(arguments: Iterable[str]) -> Iterator[Path]:
    """The files of the tests that pytest would run with these arguments."""
    paths = [Path(argument.split("::")[0]) for argument in arguments]
    for path in [path for path in paths if path.exists()] or [TESTS]:
        yield from path.rglob("*.py") if path.is_dir() else [path]


if __name__ == "__main__":
    print(*sorted(needs(test_files(sys.argv[1:]))), sep="\n")
