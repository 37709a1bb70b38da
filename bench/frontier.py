"""Draws what a stream's gaps cost the storm beside it, and the other way round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_MARKERS = "os"


@dataclass(frozen=True, slots=True)
class Point:
    """One way to run a server."""

    label: str
    rate: float
    """The storm's prompt tokens each second."""
    gap: float
    """The stream's p95, in ms."""
    worst: float
    """The stream's longest, in ms."""


def draw(lines: Mapping[str, Sequence[Point]], path: Path) -> str:
    """Write a PNG with a line for each server, through its points in their order.

    Returns a line for the report, which says where it is, or why it isn't drawn.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return "Not drawn: matplotlib is missing, which umaserve's extra `bench` brings.\n"
    figure = Figure(figsize=(8, 5.5), dpi=150, layout="constrained")
    axes = figure.subplots()
    for (name, points), marker in zip(lines.items(), _MARKERS, strict=False):
        rates, gaps = [point.rate for point in points], [point.gap for point in points]
        (line,) = axes.plot(rates, gaps, marker=marker, label=name)
        axes.vlines(rates, gaps, [point.worst for point in points], color=line.get_color(), linewidth=0.8, alpha=0.5)
        for point in points:
            axes.annotate(
                point.label, (point.rate, point.gap), (5, -10), textcoords="offset points", fontsize=7,
                color=line.get_color(),
            )  # fmt: skip
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")
    axes.set_xlabel("the storm's prompt tokens each second")
    axes.set_ylabel("the stream's gap between tokens, ms: p95, up to the longest")
    axes.grid(which="both", linewidth=0.3)
    axes.legend()
    figure.savefig(path)
    return f"Drawn in {path.name}.\n"
