"""The record of what has been tried beside umaserve, and the page that is made of it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

RECORD = Path(__file__).parent / "results.json"
PAGE = Path(__file__).parents[2] / "docs/results/works-with.md"
_HEAD = """\
# Works with

What clients and test suites of others say about a real umaserve. `python -m tests.conformance` starts a daemon for
each, installs what is missing into a cache of its own (`--cache`), runs it unmodified, and writes this page.

Each failure has a reason, which says whose it is. *The model's*: a suite asks for what the default model, which has 135
million parameters, doesn't do. *The suite's*: it asks for what only another server can have. *By intent*: umaserve does
otherwise. *Not there*: umaserve lacks it. A message in place of a reason is a fault of umaserve.
"""
_COLUMNS = ("program", "version", "model", "passed", "failed", "left out", "date")
_COUNTS = ("passed", "failed", "left_out")
_SHOWN = 5
"""Most names of cases that the page gives for one reason."""


@dataclasses.dataclass(frozen=True)
class Group:
    """Cases of one part of a suite, such as a keyword."""

    name: str
    passed: int = 0
    failed: int = 0
    left_out: int = 0


@dataclasses.dataclass(frozen=True)
class Row:
    """What came of one suite."""

    program: str
    version: str = ""
    model: str = ""
    date: str = ""
    not_tried: str = ""
    """The reason, where it could not run; all that follows is empty then."""
    groups: tuple[Group, ...] = ()
    failures: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    """The names of the cases that failed, by the reason."""
    left_out: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    """Likewise, of those that the suite skipped or that umaserve refuses to take."""


def loads(text: str) -> list[Row]:
    """The rows of a record."""
    rows = []
    for fields in json.loads(text):
        groups = tuple(Group(*group) for group in fields.pop("groups"))
        rows.append(Row(**fields, groups=groups))
    return rows


def dumps(rows: Sequence[Row]) -> str:
    """A record of ``rows``, a line for each."""
    lines = []
    for row in rows:
        fields = dataclasses.asdict(row) | {"groups": [dataclasses.astuple(group) for group in row.groups]}
        lines.append(json.dumps(fields, ensure_ascii=False))
    return "[\n" + ",\n".join(lines) + "\n]\n"


def page(rows: Sequence[Row]) -> str:
    """The rows as Markdown: a table of all, then what failed and what was left out, with the reasons."""
    table = [_line(_COLUMNS), _line(["---"] * 3 + ["---:"] * 3 + ["---"])]
    for row in rows:
        counts = ["", "", f"not tried: {row.not_tried}"]
        if not row.not_tried:
            counts = [str(sum(getattr(group, name) for group in row.groups)) for name in _COUNTS]
        table.append(_line([row.program, row.version, row.model, *counts, row.date]))
    parts = [_HEAD, "\n".join(table) + "\n"]
    for title, name in (("What failed", "failures"), ("What was left out", "left_out")):
        told = [(row, getattr(row, name)) for row in rows if getattr(row, name)]
        if told:
            parts.append(f"## {title}\n")
        for row, reasons in told:
            parts.append(f"### {row.program}{f' ({row.model})' if row.model else ''}: {title.lower()}\n")
            parts.append("".join(f"- {_reason(reason, cases)}\n" for reason, cases in reasons.items()))
    for row in rows:
        if len(row.groups) > 1:
            parts.append(f"## {row.program}, part by part\n")
            lines = [_line(["part", "passed", "failed", "left out"]), _line(["---", "---:", "---:", "---:"])]
            lines += [_line(map(str, dataclasses.astuple(group))) for group in row.groups]
            parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _reason(reason: str, cases: Sequence[str]) -> str:
    """A reason with the names of its cases; a long list is cut."""
    names = list(dict.fromkeys(cases))  # Parts of a suite may have the same cases.
    shown = ", ".join(f"`{name}`" for name in names[:_SHOWN])
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{reason} ({len(cases)}): {shown}{more}"
