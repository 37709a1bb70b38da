"""Which settings are tried, one after another, and by which rule one is better than another."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from umaserve.engine.speeds import Speeds
from umaserve.settings.daemon import Config
from umaserve.settings.sources import Conflict
from umaserve.system.program import ProgramError

TUNED = ("weights", "threads", "threads_batch", "flash_attn", "kv_type", "kv_type_k", "kv_type_v", "n_ubatch")
"""The settings that may change. A larger ``n_batch`` gains nothing: a prompt gets a part of a tick, whatever it is."""
MIN_GAIN = 0.05
MAX_LOSS = 0.25
"""Greatest loss of one speed since the start, as a fraction of it, for the sake of the others."""
RULE = f"""\
Method: one setting is changed at a time, starting from the best settings so far. A change is kept if the
geometric mean of the three speeds rises by {MIN_GAIN:.0%} or more, and none of them is more than {MAX_LOSS:.0%}
below that of the present settings. Both are then measured a second time, and the faster of their two
measurements must meet the same rule."""

_KV_TYPES = (("f16", "f16"), ("q8_0", "q8_0"), ("q8_0", "f16"), ("f32", "f32"), ("bf16", "bf16"))
"""Types of K and V. A quantized K alone does not need flash attention."""

Change = Mapping[str, Any]
"""Values of ``TUNED`` that differ from those at the start."""


class NoTimeLeft(Exception):
    """The measurement was not begun, or not finished."""


Measure = Callable[[Change, int], Speeds]
"""Measures with a change, and with prompts of so many tokens (0: its choice). Raises ``NoTimeLeft``, and
``ProgramError`` where it fails."""


@dataclass(slots=True)
class Row:
    """Result of one change."""

    change: Change
    speeds: Speeds | None
    note: str = ""
    """Why there are no speeds, or why they were not taken."""


@dataclass(slots=True)
class Found:
    """All that was measured so far."""

    rows: list[Row] = field(default_factory=list)
    """Rows of all that was tried; the first one is of the settings at the start."""
    best: int = 0
    """The index of a row with speeds."""
    not_measured: list[Change] = field(default_factory=list)
    """Changes that were not measured, for lack of time."""


def search(config: Config, cores: int, weights: str, measure: Measure, found: Found) -> None:
    """Try changes of ``config``, and add to ``found`` what comes of each. ``weights``: the value of this setting with
    which another file is loaded; empty: there is none. Raises as ``measure`` if the settings at the start can't be
    measured."""
    start = measure({}, 0)
    found.rows.append(Row({}, start))
    for step in _steps(config, cores, weights, start.prompt_tokens, found):
        change = {**found.rows[found.best].change, **step}
        try:
            dataclasses.replace(config, **change)
        except Conflict:
            continue  # such as quantized KV cells without flash attention
        try:
            row = Row(change, measure(change, start.prompt_tokens))
        except NoTimeLeft:
            found.not_measured.append(change)
            continue
        except ProgramError as error:
            row = Row(change, None, str(error))
        found.rows.append(row)
        if _is_confirmed(row, found, measure):
            found.best = len(found.rows) - 1


def together(speeds: Speeds, start: Speeds) -> float:
    """How many times as fast as ``start``: the geometric mean of the three speeds' ratios."""
    return math.prod(_ratios(speeds, start)) ** (1 / 3)


def is_better(speeds: Speeds, best: Speeds, start: Speeds) -> bool:
    """Whether ``speeds`` are better than ``best`` by ``RULE``, from one measurement of each."""
    return together(speeds, best) >= 1 + MIN_GAIN and min(_ratios(speeds, start)) >= 1 - MAX_LOSS


def _ratios(speeds: Speeds, start: Speeds) -> tuple[float, float, float]:
    return speeds.one / start.one, speeds.many / start.many, speeds.prompt / start.prompt


def _is_confirmed(row: Row, found: Found, measure: Measure) -> bool:
    """Whether ``row`` is better than the best, also after a second measurement of both. Other programs can only make a
    measurement slower, so the faster of two is nearer to the truth."""
    start, best = found.rows[0], found.rows[found.best]
    assert start.speeds is not None
    assert best.speeds is not None
    if row.speeds is None or not is_better(row.speeds, best.speeds, start.speeds):
        return False
    try:
        for one in (best, row):
            assert one.speeds is not None
            again = measure(one.change, one.speeds.prompt_tokens)
            others, switches = (min(pair) for pair in zip(one.speeds[-2:], again[-2:], strict=True))
            one.speeds = Speeds._make(map(max, one.speeds, again))._replace(others=others, switches=switches)
    except NoTimeLeft:
        row.note = "no time left to measure it again"
        return False
    except ProgramError as error:
        row.note = f"measured again: {error}"
        return False
    return is_better(row.speeds, best.speeds, start.speeds)


def _steps(config: Config, cores: int, weights: str, prompt_tokens: int, found: Found) -> Iterator[Change]:
    """Changes to try next, from the best found so far; what promises most comes first."""
    if weights:
        yield {"weights": weights}
    yield from _threads(config, cores, found)
    yield {"flash_attn": "auto" if config.flash_attn == "off" else "off"}
    for k, v in _KV_TYPES:
        if (k, v) != config.kv_types:
            yield {"kv_type": v, "kv_type_k": "" if k == v else k, "kv_type_v": ""}
    # A prompt in one pass is measured only with those that are shorter than it.
    yield from ({"n_ubatch": n} for n in (256, 128) if n < min(config.n_ubatch, prompt_tokens))


def _threads(config: Config, cores: int, found: Found) -> Iterator[Change]:
    """Fewer threads than cores are faster where cores share a memory bus or, as hyper-threads, an arithmetic unit."""
    before = len(found.rows)
    first = config.threads or cores
    for n in sorted({cores, cores - 1, cores // 2, cores // 4, 1} - {0, first}, reverse=True):
        yield {"threads": n, "threads_batch": 0}
    # A single token is limited by memory and prompts by arithmetic, so that each may want another number.
    best = found.rows[found.best]
    assert best.speeds is not None
    measured = [row for row in found.rows[before:] if row.speeds is not None]
    fastest = max(measured, key=lambda row: row.speeds.one if row.speeds else 0.0, default=best)
    assert fastest.speeds is not None
    if fastest.speeds.one >= best.speeds.one * (1 + MIN_GAIN):
        in_force = dataclasses.replace(config, **best.change)
        yield {
            "threads": fastest.change["threads"],
            "threads_batch": in_force.threads_batch or in_force.threads or cores,
        }
