"""Draws ratios as a heat map: green above 1, red below."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

RANGE = 2.0
"""A ratio of this, or of its inverse, has the full color."""

Grid = Mapping[tuple[str, str], float]
"""Ratios by the labels of row and column."""


def draw(grids: Mapping[str, Grid], path: Path) -> str:
    """Write a PNG with one map beside the other, by their titles.

    Returns a line for the report: where the picture is, or why it could not be drawn.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return "Not drawn: matplotlib is missing, which umaserve's extra `bench` brings.\n"
    figure = Figure(figsize=(1.5 + 4.5 * len(grids), 4), dpi=150, layout="constrained")
    for axes, (title, grid) in zip(figure.subplots(1, len(grids), squeeze=False)[0], grids.items(), strict=True):
        rows = list(dict.fromkeys(row for row, _ in grid))
        columns = list(dict.fromkeys(column for _, column in grid))
        values = [[grid.get((row, column), math.nan) for column in columns] for row in rows]
        shades = [[math.log(value, RANGE) for value in line] for line in values]
        axes.imshow(shades, cmap="RdYlGn", vmin=-1, vmax=1, aspect="auto")
        for y, line in enumerate(values):
            for x, value in enumerate(line):
                axes.text(x, y, f"{value:.2f}", ha="center", va="center", fontsize=8)
        axes.set_xticks(range(len(columns)), columns)
        axes.set_yticks(range(len(rows)), rows)
        axes.set_xlabel("clients")
        axes.set_title(title, fontsize=9)
    figure.savefig(path)
    return f"Drawn in {path.name}.\n"
