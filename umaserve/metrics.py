"""What the daemon counts: totals, and sliding windows of latencies."""

from __future__ import annotations

import math
import os
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

WINDOW = 1024


class Window:
    """The last ``WINDOW`` observations, in milliseconds."""

    def __init__(self) -> None:
        self._values: deque[float] = deque(maxlen=WINDOW)

    def add(self, seconds: float) -> None:
        self._values.append(seconds * 1000)

    def percentile(self, percent: float) -> float:
        """Nearest-rank percentile in milliseconds; 0 without observations."""
        if not self._values:
            return 0.0
        ordered = sorted(self._values)
        return round(ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)], 3)


class TickTimes:
    """Last, smallest, largest and exponentially weighted mean time of a decode, in milliseconds."""

    WEIGHT = 0.1

    def __init__(self) -> None:
        self.last = self.ewma = self.min = self.max = 0.0
        self.count = 0

    def add(self, seconds: float) -> None:
        ms = seconds * 1000
        self.ewma = ms if self.count == 0 else self.ewma + self.WEIGHT * (ms - self.ewma)
        self.min = ms if self.count == 0 else min(self.min, ms)
        self.max = max(self.max, ms)
        self.last = ms
        self.count += 1


@dataclass(slots=True)
class ServingMetrics:
    """What the scheduler counts as it goes."""

    tokens_generated: int = 0
    prompt_tokens: int = 0
    prefix_reused_tokens: int = 0
    last_batch_size: int = 0
    ticks: TickTimes = field(default_factory=TickTimes)
    ttft: Window = field(default_factory=Window)
    tbt: Window = field(default_factory=Window)
    queue: Window = field(default_factory=Window)

    def snapshot(self) -> dict[str, int | float | str]:
        return {
            "tokens_generated_total": self.tokens_generated,
            "prompt_tokens_total": self.prompt_tokens,
            "prefix_reused_tokens_total": self.prefix_reused_tokens,
            "batch_calls_total": self.ticks.count,
            "last_batch_size": self.last_batch_size,
            "decode_ms_last": round(self.ticks.last, 3),
            "decode_ms_ewma": round(self.ticks.ewma, 3),
            "decode_ms_min": round(self.ticks.min, 3),
            "decode_ms_max": round(self.ticks.max, 3),
            "ttft_ms_p50": self.ttft.percentile(50),
            "ttft_ms_p95": self.ttft.percentile(95),
            "tbt_ms_p50": self.tbt.percentile(50),
            "tbt_ms_p95": self.tbt.percentile(95),
            "queue_ms_p95": self.queue.percentile(95),
        }


def resident_bytes() -> int:
    """Resident set size of this process (proc(5), statm)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
