"""Draws a stream's gaps between tokens against the throughput of the prompts beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_MARKERS = "os"
_LABELS = (("left", 5, (-10, -10)), ("right", -5, (5, -10)))
"""Places of each line's labels: the side of their points, how far to the right, how far up for even and odd ones."""


@dataclass(frozen=True, slots=True)
class Point:
    """One way to run a server."""

    label: str
    rate: float
    """Prompt tokens per second."""
    gap: float
    """The 95th percentile of the stream's gaps between tokens, in ms."""
    worst: float
    """The longest of them, in ms."""


def draw(lines: Mapping[str, Sequence[Point]], path: Path) -> str:
    """Write a PNG with a line for each server, through its points in order.

    Returns a line for the report: where the picture is, or why it could not be drawn.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return "Not drawn: matplotlib is missing, which umaserve's extra `bench` brings.\n"
    figure = Figure(figsize=(8, 5.5), dpi=150, layout="constrained")
    axes = figure.subplots()
    for (name, points), marker, (side, right, up) in zip(lines.items(), _MARKERS, _LABELS, strict=False):
        rates, gaps = [point.rate for point in points], [point.gap for point in points]
        (line,) = axes.plot(rates, gaps, marker=marker, label=name)
        axes.vlines(rates, gaps, [point.worst for point in points], color=line.get_color(), linewidth=0.8, alpha=0.5)
        for index, point in enumerate(points):
            axes.annotate(
                point.label, (point.rate, point.gap), (right, up[index % 2]), textcoords="offset points",
                fontsize=7, color=line.get_color(), horizontalalignment=side,
            )  # fmt: skip
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")
    axes.set_xlabel("prompt throughput, tokens/s")
    axes.set_ylabel("gap between tokens, ms: p95, and a line up to the longest")
    axes.grid(which="both", linewidth=0.3)
    axes.legend(loc="upper left")
    figure.savefig(path)
    return f"Drawn in {path.name}.\n"
