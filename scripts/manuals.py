"""Writes the man pages and the completions for bash, zsh and fish, which ``umaserve`` and its commands' parsers tell.

    python scripts/manuals.py FOLDER

makes ``FOLDER/man/umaserve.1``, ``umaserve-relay.1`` and so on, and ``FOLDER/completions/umaserve.bash`` and its like.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from pathlib import Path
from unittest import mock

import shtab
from argparse_manpage.manpage import Manpage

from umaserve import __version__
from umaserve.cli import main
from umaserve.commands.parser import HELP_ALL, Parser
from umaserve.commands.served_models import COMMANDS as SERVED_MODELS

ABOUT = "serve language models to every program on this machine"
SHELLS = {"bash": "umaserve.bash", "zsh": "_umaserve", "fish": "umaserve.fish"}
FILES = {"PATH", "FILE"}
"""The values that shells complete to files."""


class _FilledError(Exception):
    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self.parser = parser


def filled(*arguments: str) -> argparse.ArgumentParser:
    """The parser of a command, as it is when it would read its flags."""

    def hand_over(parser: argparse.ArgumentParser, *_: object) -> None:
        raise _FilledError(parser)

    with mock.patch.object(Parser, "parse_args", hand_over):
        try:
            main(arguments)
        except _FilledError as filled:
            return filled.parser
    raise AssertionError(f"{arguments} parses nothing")


def commands() -> dict[str, str]:
    """Each command and what it does, as the help of ``umaserve`` lists them."""
    listed = str(filled("serve").description).partition("\ncommands ")[2].partition("\n\n")[0]
    return dict(re.findall(r"^  (\w+) +(.+)$", listed, re.MULTILINE))


def parsers(command: str) -> list[argparse.ArgumentParser]:
    """``models`` has two: one with the daemon's flags, of which few matter there, and one for a running daemon."""
    if command == "models":
        return [filled(command), filled(command, SERVED_MODELS[0])]
    return [filled(command, HELP_ALL)]


# Man pages.


def page(name: str, about: str, all_parsers: list[argparse.ArgumentParser], others: list[str]) -> str:
    """A man page, in roff. What a parser's description shows in indented lines becomes sections of their own."""
    parser, *more = all_parsers
    prose, sections = _divided(str(parser.description))
    parser.description = prose
    made = Manpage(parser, {"project_name": "umaserve", "version": __version__, "manual_title": "umaserve"})
    made.prog, made.description = name, about
    for other in more:
        synopsis = f".B {parser.prog}\n{' '.join(made.synopsis[2:])}\n.PP\n.B {other.prog}\n"
        made.add_section("synopsis", "=", synopsis + " ".join(other.format_usage().split()[3:]))
        made.add_section(", ".join(SERVED_MODELS), "=", _escaped(_divided(str(other.description))[0]))
    for title, lines in sections.items():
        made.add_section(title, "=", f".nf\n{_escaped(lines)}\n.fi")
    made.add_section("see also", "=", " ,\n".join(rf".BR {_escaped(other)} (1)" for other in others))
    return str(made)


def _divided(description: str) -> tuple[str, dict[str, str]]:
    prose, sections = [], {}
    for part in description.strip().split("\n\n"):
        title, _, lines = part.partition("\n")
        if lines.startswith("  "):
            sections[re.split(r"[ :]", title)[0]] = lines
        else:
            prose.append(part)
    return "\n\n".join(prose), sections


def _escaped(text: str) -> str:
    return re.sub(r"^(?=[.'])", r"\\&", text.replace("\\", r"\e").replace("-", r"\-"), flags=re.MULTILINE)


# Completions.


def whole() -> argparse.ArgumentParser:
    """One parser of all commands, that of the daemon with the others below it."""
    parser = Parser("umaserve", parents=parsers("serve"), add_help=False)
    below = parser.add_subparsers(dest="command")
    for name, about in commands().items():
        below.add_parser(name, parents=parsers(name), add_help=False, conflict_handler="resolve", help=about)
    return parser


def _for_shells(parser: argparse.ArgumentParser) -> None:
    """Say which values a flag takes, and what it does in a few words."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                _for_shells(below)
        elif action.metavar in FILES:
            action.complete = shtab.FILE
        elif isinstance(action.metavar, str) and action.metavar.startswith("{"):
            action.choices = action.metavar.strip("{}").split(",")
        action.help = re.split(r"; | \(default", action.help or "")[0]


def write(folder: Path) -> None:
    """Make all files below ``folder``."""
    os.environ["COLUMNS"] = "1000"  # roff breaks the lines
    (folder / "man").mkdir(parents=True, exist_ok=True)
    (folder / "completions").mkdir(exist_ok=True)
    pages = {"umaserve": ("serve", ABOUT)}
    pages |= {f"umaserve-{name}": (name, about) for name, about in commands().items() if name != "serve"}
    for name, (command, about) in pages.items():
        roff = page(name, about, parsers(command), [other for other in pages if other != name])
        (folder / "man" / f"{name}.1").write_text(roff)
    parser = whole()
    _for_shells(parser)
    for shell, name in SHELLS.items():
        (folder / "completions" / name).write_text(shtab.complete(parser, shell))


if __name__ == "__main__":
    write(Path(sys.argv[1]))
