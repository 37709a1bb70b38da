"""Ratios of umaserve to what it is measured beside, the files that keep them, and which have become worse."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

import orjson

LEAST_SPREAD = 0.05
"""Least spread of a ratio: two pairs may agree by chance."""


class Ratio(NamedTuple):
    """The median of the pairs' ratios, with the smallest and the largest. More than 1: umaserve is better."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f})"

    @property
    def spread(self) -> float:
        return max(self.high - self.low, LEAST_SPREAD * self.median)


def ratio_of(ours: Sequence[float], theirs: Sequence[float], *, lower_is_better: bool) -> Ratio | None:
    """The ratio over the pairs of runs; ``None`` where one of them has no value (NaN or 0)."""
    pairs = zip(theirs, ours, strict=True) if lower_is_better else zip(ours, theirs, strict=True)
    ratios = [better / worse if worse > 0 < better else float("nan") for better, worse in pairs]
    if any(ratio != ratio for ratio in ratios):
        return None
    return Ratio(statistics.median(ratios), min(ratios), max(ratios))


@dataclass(frozen=True, slots=True)
class Record:
    """The figures of one run, by their names."""

    processor: str
    date: str
    """UTC, as ISO 8601 has it: later ones sort after earlier ones."""
    commit: str
    figures: Mapping[str, Ratio]
    weights: Mapping[str, str] = field(default_factory=dict)
    """What umaserve loaded of each model: its file as it is, mapped, or a converted copy. Empty in old records."""


def verdict(now: Ratio, before: Ratio | None) -> str:
    """How a figure compares with the recorded one: a change counts where it is more than the spread of both."""
    if before is None:
        return "new"
    change = now.median - before.median
    if abs(change) <= max(now.spread, before.spread):
        return ""
    return "better" if change > 0 else "worse"


def worse(now: Mapping[str, Ratio], record: Record) -> list[str]:
    """A line for each figure that is worse than the recorded one by more than the spread."""
    lines = []
    for name, ratio in now.items():
        before = record.figures.get(name)
        if before is not None and verdict(ratio, before) == "worse":
            lost = 1 - ratio.median / before.median
            spread = max(ratio.spread, before.spread) / before.median
            lines.append(f"{name}: {ratio}, was {before}: {lost:.0%} worse, the spread is {spread:.0%}")
    return lines


def latest(folder: Path, processor: str) -> Record | None:
    """The last record of this kind of processor. Raises ``ValueError`` where a file is no record."""
    records = [_read(path) for path in folder.glob("*.json")]
    return max((one for one in records if one.processor == processor), key=lambda one: one.date, default=None)


def write(folder: Path, record: Record) -> Path:
    """Keep a record in a file of its own, named by its date and commit."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{record.date.replace(':', '')}-{record.commit}.json"
    # orjson knows no named tuples.
    content = {**asdict(record), "figures": {name: list(ratio) for name, ratio in record.figures.items()}}
    path.write_bytes(orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    return path


def _read(path: Path) -> Record:
    try:
        content = orjson.loads(path.read_bytes())
        figures = {str(name): Ratio(*map(float, values)) for name, values in content["figures"].items()}
        weights = {str(model): str(loaded) for model, loaded in content.get("weights", {}).items()}
        return Record(str(content["processor"]), str(content["date"]), str(content["commit"]), figures, weights)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{path}: expected a record of scripts/speed, got {error!r}") from None
