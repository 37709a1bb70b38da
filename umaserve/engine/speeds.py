"""How fast the daemon's engine is on this box with given settings: its ticks, timed in a process of their own, since
llama.cpp may abort, and libgomp keeps the threads of earlier settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import orjson

from umaserve.system import program

_PROGRAM = "umaserve.engine.timed_ticks"
REFUSED = 3
"""The program's exit status where standard error says all, with no more to add. Python's own for a bug is 1."""


class Speeds(NamedTuple):
    """Measurements with some settings."""

    one: float
    """Tokens per second of one stream, and below of all streams together, and of prompts."""
    many: float
    prompt: float
    memory_bytes: int
    """Resident memory of the process."""
    prompt_tokens: int
    """Length of the prompts, in tokens."""
    others: float
    """Cores that other programs used meanwhile."""
    switches: float
    """How often the threads waited in the kernel for a token of one stream, all together."""


def measured(settings: Mapping[str, object], prompt_tokens: int, *, wanted: Callable[[], bool], max_s: float) -> Speeds:
    """Measure in a new process. ``settings`` are keys of the daemon's configuration, or "config"; the others come from
    the environment. ``prompt_tokens``: the length of the prompts; 0 chooses one for this model and box.

    ``wanted``, ``max_s`` and the errors are those of ``program.run``; a ``ProgramError`` says why it failed.
    """
    arguments = (orjson.dumps(settings).decode(), str(prompt_tokens))
    try:
        output = program.run(_PROGRAM, *arguments, wanted=wanted, max_s=max_s)
    except program.ProgramError as error:
        why = str(error).removeprefix(f"{_PROGRAM} ").removeprefix(f"failed with status {REFUSED}: ")
        raise program.ProgramError(why) from None
    return Speeds(*orjson.loads(output))
