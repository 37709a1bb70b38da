"""How results are shown: tables for a terminal that are Markdown too, and the machine they come from."""

from __future__ import annotations

import importlib.metadata
import math
import os
import platform
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from umaserve import __version__
from umaserve.system.cores import usable_cores


def progress(text: str) -> None:
    """Tell whoever waits what runs now."""
    print(f"{text} …", file=sys.stderr, flush=True)


def number(value: float) -> str:
    """About three digits, in full from 100 on; a dash for what could not be measured."""
    if math.isnan(value):
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def ratio(pairs: Sequence[tuple[float, float]]) -> str:
    """What the second is of the first: the pairs' median, with the smallest and the largest."""
    ratios = [after / before for before, after in pairs]
    if math.isnan(sum(ratios)):
        return "-"
    return f"{statistics.median(ratios):.1%} ({min(ratios):.1%} to {max(ratios):.1%})"


def spread(values: Sequence[float]) -> str:
    """The median, with the smallest and the largest."""
    if math.isnan(sum(values)):
        return "-"
    return f"{number(statistics.median(values))} ({number(min(values))} to {number(max(values))})"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table, its columns aligned to the right."""
    widths = [max(3, *map(len, column)) for column in zip(header, *rows, strict=True)]
    rule = ["-" * (width - 1) + ":" for width in widths]
    lines = [header, rule, *rows]
    return "".join(f"| {' | '.join(map(str.rjust, line, widths))} |\n" for line in lines)


def machine() -> str:
    """Processor, memory, system and versions, in one line."""
    system = platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    return (
        f"{_field('/proc/cpuinfo', 'model name')}, {usable_cores()} of {os.cpu_count()} cores usable, "
        f"{int(_field('/proc/meminfo', 'MemTotal').split()[0]) / 2**20:.0f} GiB; {system}, Linux {platform.release()}; "
        f"umaserve {__version__}, llama-cpp-python {importlib.metadata.version('llama-cpp-python')}, "
        f"Python {platform.python_version()}"
    )


def load_average() -> str:
    """The run queue's length over the last 1, 5 and 15 minutes: what else runs."""
    return " ".join(f"{load:.2f}" for load in os.getloadavg())


def _field(file: str, name: str) -> str:
    """The first value of ``name`` in a file of /proc; processors other than x86 have no "model name"."""
    for line in Path(file).read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return platform.machine()
