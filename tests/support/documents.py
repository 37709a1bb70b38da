"""The documents, and the blocks of code in those for users."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
FOR_USERS = [ROOT / "README.md", *sorted((ROOT / "docs/guide").glob("*.md"))]
ALL = [*sorted(ROOT.glob("*.md")), ROOT / "bench/README.md", *sorted((ROOT / "docs").rglob("*.md"))]

NOT_RUN = {
    "# needs Linux, Python 3.11 or newer with venv, and a C++ compiler; on Debian or Ubuntu, as root:": "installs "
    "packages and compiles llama.cpp; scripts/test-newcomer runs it",
    "pip install '.[default-model,media,speech]'": "compiles llama.cpp",
    "umaserve tune --model FILE.gguf > umaserve.toml": "measures for two minutes; test_e2e_tune runs it",
    "CMAKE_ARGS=-DGGML_CUDA=on pip install --force-reinstall --no-cache-dir --no-deps llama-cpp-python": "needs a GPU",
    "scripts/wheels    # once, on a machine with a compiler: makes dist/*.whl in half an hour": "compiles llama.cpp",
    "scripts/wheels    # if the package is for other machines than this one": "needs root; scripts/test-deb runs it",
    "scripts/wheels    # into dist/, for the image": "needs podman and a registry of images",
    "pip install openai websockets    # for the examples in Python": "needs Python's registry",
    "useradd --system --user-group --no-create-home --shell /usr/sbin/nologin umaserve": "needs root and systemd",
    "claude mcp add --transport http umaserve http://127.0.0.1:8080/mcp": "needs the agent",
    "umaserve launch claude": "needs the agent; test_e2e_agents runs it",
    "umaserve launch codex": "needs the agent; test_e2e_agents runs it",
    "umaserve launch opencode": "needs the agent; test_e2e_agents runs it",
    "umaserve launch qwen": "needs the agent; test_e2e_agents runs it",
    "umaserve launch aider -- hello.py": "needs the agent, which has 700 MB; test_launch starts a stand-in",
}
"""By the first line of a block that no test runs: why."""


class Block(NamedTuple):
    """A block of code in a document."""

    document: Path
    language: str
    text: str

    @property
    def first_line(self) -> str:
        return self.text.partition("\n")[0]

    @property
    def name(self) -> str:
        """The document and the beginning of the first line, for pytest."""
        return f"{self.document.name}: {self.first_line[:40]}"

    @property
    def starts_programs(self) -> bool:
        """Whether it leaves programs in the background while it runs."""
        return self.language == "sh" and bool(re.search(r" &( |$)", self.text, re.MULTILINE))


def blocks(*documents: Path) -> list[Block]:
    """All blocks of code of ``documents``, without those that no test runs."""
    return [block for block in all_blocks(*documents) if block.first_line not in NOT_RUN]


def all_blocks(*documents: Path) -> list[Block]:
    found = []
    for document in documents:
        for language, text in re.findall(r"^```(\w*)\n(.*?)^```$", document.read_text(), re.MULTILINE | re.DOTALL):
            found.append(Block(document, language, text))
    return found


def tables(document: Path) -> list[list[list[str]]]:
    """The tables of ``document``: of each its rows, and of each row its cells."""
    found: list[list[list[str]]] = []
    for part in re.findall(r"(?:^\|.*\n)+", document.read_text(), re.MULTILINE):
        # A cell may have an escaped bar.
        rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in part.splitlines()]
        found.append([row for row in rows if not all(re.fullmatch(r"-+", cell) for cell in row)])
    return found
