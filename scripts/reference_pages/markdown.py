"""Parts of Markdown, and words that several pages have."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from textwrap import wrap

from umaserve.settings.sources import Setting

WIDTH = 120
MADE = "Made by `scripts/reference` from what the code declares."
TITLES = {"http": "HTTP and WebSocket", "log": "Logging"}
"""Titles of groups of settings that aren't their names."""


def title(group: str) -> str:
    """The title of a group of settings."""
    return TITLES.get(group, group.capitalize())


def explanation(one: Setting) -> str:
    """What a setting does, in whole sentences; its paragraphs are lines."""
    return one.about or one.help[0].upper() + one.help[1:] + "."


def listed(names: Sequence[str]) -> str:
    """The names as a part of a sentence."""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def escaped(text: str) -> str:
    """Text without what Markdown would take for its own outside of code."""
    parts = re.split("(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([*<\[])", r"\\\1", part) for part in parts)


def prose(text: str) -> str:
    """Paragraphs of text without Markdown, but for code; they are the lines of ``text``."""
    return marked(escaped(text))


def marked(text: str) -> str:
    """Paragraphs of Markdown in lines of the usual width; they are the lines of ``text``."""
    paragraphs = [paragraph for paragraph in text.split("\n") if paragraph]
    lines = (wrap(each, WIDTH, break_on_hyphens=False, break_long_words=False) for each in paragraphs)
    return "\n\n".join(map("\n".join, lines)) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; a bar in a cell is escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)
