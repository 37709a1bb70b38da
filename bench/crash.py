"""How long do streams wait when their engine crashes: from the signal to each stream's next token."""

from __future__ import annotations

import itertools
import os
import signal
import statistics
import threading
import time

from bench.processes import Served, daemon, with_children
from bench.report import progress, spread, table
from umaserve.client import Client

STREAMS = 1, 8
SIGNALS = signal.SIGKILL, signal.SIGABRT
"""The second one makes the streams suspects, which are tried one after the other."""
REPEATS = 5
BEFORE = 32
"""Tokens of each stream before the signal, at least: they are computed again."""
AFTER = 96
_PROMPT = " ".join(map(str, range(1, 101)))


def main() -> None:
    rows = []
    with daemon("umaserve", UMA_WEIGHTS="as-is", UMA_PARALLEL=str(max(STREAMS))) as at:
        for streams in STREAMS:
            for number in SIGNALS:
                progress(f"{streams} streams, {number.name}")
                found = [_waits(at, streams, number) for _ in range(REPEATS)]
                longest = [max(waits) for waits in found]
                rows.append(
                    [str(streams), number.name, spread([statistics.median(one) for one in found]), spread(longest)]
                )
    print(table(["streams", "signal", "median wait, s", "longest wait, s"], rows))


def _waits(at: Served, streams: int, number: signal.Signals) -> list[float]:
    """Of each stream, in seconds."""
    running = threading.Barrier(streams + 1)
    waits: list[float] = []

    def stream() -> None:
        with Client(at.socket).generate(_PROMPT, max_tokens=BEFORE + AFTER, ignore_eos=True) as answer:
            times = []
            for index, _token in enumerate(answer, 1):
                if index == BEFORE:
                    running.wait()
                if index >= BEFORE:
                    times.append(time.perf_counter())
        waits.append(max(later - earlier for earlier, later in itertools.pairwise(times)))

    threads = [threading.Thread(target=stream) for _ in range(streams)]
    for thread in threads:
        thread.start()
    running.wait()
    (engine,) = with_children(at.pid)[1:]
    os.kill(engine, number)
    for thread in threads:
        thread.join()
    return waits


if __name__ == "__main__":
    main()
