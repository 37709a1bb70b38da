"""What ``umaserve tune`` shows: a table with a bar for each line, and the lines of a configuration file."""

from __future__ import annotations

import dataclasses
import os

from umaserve.commands.barriers import SLEEPING
from umaserve.commands.tune_search import TUNED, Change, Found, Row, together
from umaserve.engine.speeds import Speeds
from umaserve.settings.daemon import SETTINGS, Config

PRESENT = "present settings"
BAR = 20
"""Characters of the longest bar."""
_BUSY_CORES = 0.2
"""Used by other programs, from which on they are named as the reason for low numbers."""


def named(change: Change) -> str:
    """A change in one line, as in a configuration file."""
    # 0 threads of a batch are those of one token, and no type of K or V is that of both.
    unset = (("threads_batch", 0), ("kv_type_k", ""), ("kv_type_v", ""))
    shown = {key: value for key, value in change.items() if (key, value) not in unset}
    return ", ".join(f"{key} = {_value(key, value)}" for key, value in shown.items()) or PRESENT


def table(found: Found, streams: int) -> str:
    """Lines of text: what was measured with each change, with a bar for how fast all of it is together. The best one is
    marked."""
    start = found.rows[0].speeds
    assert start is not None
    ratios = [0.0 if row.speeds is None else together(row.speeds, start) for row in found.rows]
    heads = ["settings", "one stream", f"{streams} streams", "prompts", "memory", "three speeds together"]
    units = ["", "tokens/s", "tokens/s", "tokens/s", "MiB", ""]
    lines = [heads, units]
    for index, (row, ratio) in enumerate(zip(found.rows, ratios, strict=True)):
        if row.speeds is None:
            shown = f"failed: {row.note}"
        else:
            marks = ["best"] * (index == found.best) + ["busy"] * (row.speeds.others >= _BUSY_CORES) + [row.note]
            bar = "█" * round(BAR * ratio / max(ratios))
            shown = f"{bar:<{BAR}} {ratio:4.0%} {', '.join(filter(None, marks))}"
        lines.append([named(row.change), *_numbers(row), shown])
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads) - 1)]
    return "\n".join(_aligned(line, widths) for line in lines)


def notes(found: Found) -> str:
    """What the reader of the table has to know, in lines of text."""
    measured = [row.speeds for row in found.rows if row.speeds is not None]
    lines = [f"Prompts have {measured[0].prompt_tokens} tokens. Memory is the whole process's."]
    if found.not_measured:
        names = "; ".join(map(named, found.not_measured))
        lines.append(f"Not measured, since no time was left (give more with --seconds): {names}.")
    busy = max(speeds.others for speeds in measured)
    if busy >= _BUSY_CORES:
        lines.append(
            f"Busy: other programs used up to {busy:.1f} cores meanwhile, so these numbers are too low and may "
            "mislead. Stop those programs, and tune again."
        )
    sleeping = max(speeds.switches for speeds in measured)
    if sleeping >= SLEEPING:
        lines.append(
            f"Barriers sleep: up to {sleeping:.0f} context switches per token, which costs up to half of the speed."
            " Stop other programs that compute here; more threads than cores have the same effect."
        )
    best = found.rows[found.best]
    if any(str(best.change.get(key, "")).startswith("q") for key in ("kv_type", "kv_type_k")):
        lines.append("Quantized KV cells (kv_type) cost a little of the answers' quality.")
    return "\n".join(lines)


def weights_note(chosen: str, why: str) -> str:
    """Which value of ``weights`` the daemon chooses here, and by what decodes; empty where none were measured."""
    return f"Weights that the daemon chooses here: {chosen} ({why})." if why else ""


def toml(config: Config, best: Change) -> str:
    """The lines of a configuration file for the best settings, those that stay as they are included."""
    settings = dataclasses.replace(config, **best)
    lines = [f"{key} = {_value(key, getattr(settings, key))}\n" for key in TUNED]
    if config.model:
        lines.insert(0, f"model = {_value('model', os.path.abspath(config.model))}\n")
    return "".join(lines)


def _value(key: str, value: object) -> str:
    return SETTINGS.by_key[key].kind.render(value)


def _numbers(row: Row) -> list[str]:
    speeds: Speeds | None = row.speeds
    if speeds is None:
        return ["-"] * 4
    return [*(f"{speed:.1f}" for speed in (speeds.one, speeds.many, speeds.prompt)), str(speeds.memory_bytes >> 20)]


def _aligned(line: list[str], widths: list[int]) -> str:
    first, *numbers = (
        cell.rjust(width) if column else cell.ljust(width)
        for column, (cell, width) in enumerate(zip(line[:-1], widths, strict=True))
    )
    return "  ".join([first, *numbers, line[-1]]).rstrip()
