"""A docstring begins with a verb or with a noun that names the thing: a tool shows its first words without the code."""

from __future__ import annotations

import ast
from pathlib import Path

import umaserve

ROOT = Path(umaserve.__file__).parents[1]
FILES = sorted(path for room in ("umaserve", "bench") for path in (ROOT / room).rglob("*.py"))
NO_SUBJECT = {"as", "he", "it", "its", "of", "ones", "she", "that", "these", "they", "this", "those", "we", "you"}


def first_words(path: Path) -> list[tuple[int, str]]:
    """The line and the first two words of each docstring, those of fields included."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        body = getattr(node, "body", None)
        for one in body if isinstance(body, list) else []:
            if isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant) and isinstance(one.value.value, str):
                found.append((one.lineno, " ".join(one.value.value.lower().split()[:2])))
    return found


def test_a_docstring_names_its_subject() -> None:
    begun = [(f"{path.relative_to(ROOT)}:{line}", words) for path in FILES for line, words in first_words(path)]
    wrong = [(at, words) for at, words in begun if words.split()[0].strip(".,:") in NO_SUBJECT or words == "the same"]
    assert not wrong
