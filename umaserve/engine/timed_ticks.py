"""The program that times an engine's ticks; ``speeds`` runs it.

Arguments: the settings that differ from those of the environment, as a JSON object, and the length of the prompts, see
``speeds.measured``. Its output is a JSON array: ``Speeds``.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence

import orjson

from umaserve.core.errors import ConfigError, ModelError, RequestError
from umaserve.core.requests import Generate, TokenIds
from umaserve.engine.engine import LlamaEngine, load
from umaserve.engine.speeds import REFUSED, Speeds
from umaserve.sessions.engine_api import Outcome, Run, Tick
from umaserve.sessions.kv_operations import Copy, Divide, KVOperation, Release
from umaserve.settings.daemon import SETTINGS
from umaserve.system import program
from umaserve.system.cores import CoreCounter
from umaserve.system.memory import resident_bytes
from umaserve.system.threads import own_switches

PROMPT_TOKENS = 512
SHORT_PROMPT_TOKENS = 64
"""Length in tokens of prompts where the long ones would take more than ``MAX_PROMPT_S``; and of a first one, which is
not measured: it reads the weights from disk."""
MAX_PROMPT_S = 4.0
MIN_PROMPT_TOKENS = 16
MEASURED_S = 1.0
"""Seconds of measurement for each of the three speeds."""
MIN_TIMES, MAX_TIMES = 2, 64


class Measurement:
    """Decodes prompts and streams of an engine; what their tokens say doesn't matter."""

    def __init__(self, engine: LlamaEngine) -> None:
        self._engine = engine
        self._core_use = CoreCounter(time.monotonic)
        capacity = engine.capacity
        request = Generate("", TokenIds((0,)))
        self._samplers = [engine.prepare(request).sampler for _ in range(capacity.slots)]
        self._lengths = [0] * capacity.slots
        parts, each = capacity.divisions[0] if capacity.divisions else (0, 0)
        if parts < capacity.slots:
            # The cells are too few for parts of all sequences, so these share them, as they do without divisions.
            each = capacity.cells // capacity.slots
            if parts:
                engine.run(Tick([Divide(0)], []))
        # The first sequence has a prompt, and is then both the one stream and one of all.
        self._max_prompt = min(each, capacity.sequence_tokens) - 2 * MAX_TIMES
        if self._max_prompt < MIN_PROMPT_TOKENS:
            least = capacity.slots * (MIN_PROMPT_TOKENS + 2 * MAX_TIMES)
            raise ModelError(f"too few KV cells to measure with: raise n_ctx to {least} or more, or lower parallel")

    def speeds(self, prompt_tokens: int) -> Speeds:
        """Measure the speeds, as ``speeds.measured``."""
        first = min(SHORT_PROMPT_TOKENS, self._max_prompt)
        self._prompt_s(first)
        if not prompt_tokens:
            first_s = min(self._prompt_s(first) for _ in range(2))
            is_fast = first_s * PROMPT_TOKENS / first <= MAX_PROMPT_S
            prompt_tokens = min(PROMPT_TOKENS if is_fast else SHORT_PROMPT_TOKENS, self._max_prompt)
        prompt_s = _fastest_s(lambda: self._prompt_s(prompt_tokens))
        before, length = own_switches(), self._lengths[0]
        one_s = _fastest_s(lambda: self._tick_s({0: 1}))
        switches = (own_switches() - before) / (self._lengths[0] - length)
        streams = range(len(self._lengths))
        self._begin_others(prompt_tokens)
        many_s = _fastest_s(lambda: self._tick_s(dict.fromkeys(streams, 1)))
        use = self._core_use()
        return Speeds(
            one=1 / one_s,
            many=len(streams) / many_s,
            prompt=prompt_tokens / prompt_s,
            memory_bytes=resident_bytes(),
            prompt_tokens=prompt_tokens,
            others=0.0 if use is None else use.others,
            switches=switches,
        )

    def _prompt_s(self, n: int, slot: int = 0) -> float:
        self._engine.run(Tick([Release(slot)], []))
        self._lengths[slot] = 0
        seconds = 0.0
        while left := n - self._lengths[slot]:
            seconds += self._tick_s({slot: min(left, self._engine.capacity.batch_tokens)})
        return seconds

    def _begin_others(self, prompt_tokens: int) -> None:
        """Give all other sequences a beginning: the prompt of the first one where the model can cut that off."""
        others = range(1, len(self._lengths))
        if self._engine.capacity.cached_cells:
            self._tick_s({}, [Copy(0, slot, prompt_tokens) for slot in others])
            self._lengths[1:] = [prompt_tokens] * len(others)
        else:
            for slot in others:
                self._prompt_s(MIN_PROMPT_TOKENS, slot)

    def _tick_s(self, rows: Mapping[int, int], kv_operations: Sequence[KVOperation] = ()) -> float:
        """Decode so many tokens more of each of these sequences; returns the seconds that takes."""
        vocabulary = self._engine.info.vocabulary
        runs: list[Run] = []
        for slot, n in rows.items():
            start = self._lengths[slot]
            tokens = [position * 37 % vocabulary for position in range(start, start + n)]
            runs.append(Run(slot, start, tokens, self._samplers[slot]))
            self._lengths[slot] += n
        result = self._engine.run(Tick(kv_operations, runs, self._engine.capacity.threads))
        if result.outcome is not Outcome.DONE:
            raise ModelError(f"llama.cpp could not decode with these settings ({result.outcome.name})")
        return result.seconds


def _fastest_s(decode_s: Callable[[], float]) -> float:
    """Seconds of the fastest decode: other programs can only make one slower."""
    times: list[float] = []
    until = time.monotonic() + MEASURED_S
    while len(times) < MIN_TIMES or (len(times) < MAX_TIMES and time.monotonic() < until):
        times.append(decode_s())
    return min(times)


def main(arguments: Sequence[str]) -> int:
    """Run the program; returns the exit status. Errors are on standard error."""
    settings, prompt_tokens = arguments
    program.begin()
    try:
        engine = load(SETTINGS.load(orjson.loads(settings), os.environ).config, lambda _fraction: True)
        sys.stdout.buffer.write(orjson.dumps(list(Measurement(engine).speeds(int(prompt_tokens)))))
    except (ConfigError, ModelError, RequestError) as error:
        print(error, file=sys.stderr)
        return REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
