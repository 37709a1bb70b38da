"""The daemon's metrics: totals, sliding windows of latencies, and Prometheus counters and histograms."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Histogram

WINDOW = 1024
MAX_NEW = 256
"""Observations that are buffered before they are counted."""


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
    """Last, minimum, maximum and exponentially weighted mean time of a decode, in milliseconds."""

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


class Share:
    """The share of true values among the last ``WINDOW``."""

    def __init__(self) -> None:
        self._values: deque[bool] = deque(maxlen=WINDOW)

    def add(self, value: bool) -> None:
        self._values.append(value)

    @property
    def ratio(self) -> float:
        """Share of true values, from 0 to 1; 1 without observations."""
        return round(sum(self._values) / len(self._values), 4) if self._values else 1.0


# Those of the histograms by model contain vLLM's, whose metrics are made of them.
_TICK_BUCKETS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0)
_GAP_BUCKETS: tuple[float, ...] = (0.005, 0.01, 0.02, 0.025, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.25, 0.3)
_GAP_BUCKETS += (0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_FIRST_TOKEN_BUCKETS: tuple[float, ...] = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0)
_FIRST_TOKEN_BUCKETS += (2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0)
_REQUEST_BUCKETS: tuple[float, ...] = (0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0)
_REQUEST_BUCKETS += (20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0)


WATCHED_ENDS = (
    *("queue_full", "rate_limited", "memory_pressure", "too_many_sessions", "shutting_down"),
    *("model_not_loaded", "decode_failed", "timed_out"),
)
"""Ends of requests that are refused or fail. These alone begin at 0: for all dialects of a model, a scrape takes 1-2 ms
to write them; the histograms would take 10 ms of the loop."""


class Of(NamedTuple):
    """Labels of an observation: whose request it is of."""

    dialect: str
    model: str
    """Name of the model; empty where none answers the request."""


class ServingMetrics:
    """The scheduler's metrics. Times are in seconds."""

    WEIGHT = 0.1

    def __init__(self, dialects: Sequence[str] = ()) -> None:
        """``dialects``: those that clients may use."""
        self._dialects = dialects
        self.tokens_generated = 0
        self.prompt_tokens = 0
        self.recomputed_tokens = 0
        self.preemptions = 0
        """Places that were taken from sequences that had not ended."""
        self.chunks_encoded = 0
        self.engine_crashes = 0
        self.prefix_reused_tokens = 0
        self.disk_cache_hits = 0
        """Sequences read from disk."""
        self.disk_cache_errors = 0
        """Sequences that could not be read or written."""
        self.disk_cache_tokens = 0
        """Tokens of the sequences read from disk."""
        self.prompt_s = 0.0
        """Time from prompts' starts to their first tokens, of ended requests."""
        self.generation_s = 0.0
        """Time from answers' first tokens to their last, of ended requests."""
        self.last_batch_size = 0
        self.batch_sessions = 0
        """Requests of each tick, summed up."""
        self.longest_sequence = 0
        """Tokens of the longest sequence so far."""
        self.drafts = 0
        """Times that draft tokens of a request were verified."""
        self.draft_tokens = 0
        self.draft_tokens_accepted = 0
        self.ticks_over_budget = 0
        """Ticks that took longer than the time-between-tokens target of one of their streams."""
        self.ticks_throttled = 0
        """Ticks in which prefill was limited for the streams' targets."""
        self.ttft_attained = Share()
        self.tbt_attained = Share()
        """Per request: whether its mean time between tokens met its target."""
        self.request_s = 0.0
        """Exponentially weighted mean duration of a request from its start; 0 before the first has ended."""
        self.ticks = TickTimes()
        self.ttft = Window()
        self.tbt = Window()
        self.queue = Window()
        self.registry = CollectorRegistry()
        """Registry for ``prometheus_client.generate_latest``."""
        self._tick_s = Histogram(
            "umaserve_tick_seconds",
            "Duration of one tick: decode and sampling.",
            registry=self.registry,
            buckets=_TICK_BUCKETS,
        )
        self._queue_s = self._histogram(
            "queue", "Time from a request's arrival until it gets a slot.", _REQUEST_BUCKETS
        )
        self._ttft_s = self._histogram(
            "time_to_first_token", "Time from a request's arrival to its first token.", _FIRST_TOKEN_BUCKETS
        )
        self._tbt_s = self._histogram("time_between_tokens", "Time between two tokens of one stream.", _GAP_BUCKETS)
        self._request_s = self._histogram("request", "Time from a request's arrival to its end.", _REQUEST_BUCKETS)
        self._tbt_of = _Children(self._tbt_s)
        self._new_ticks: list[float] = []
        self._new_gaps: list[tuple[Of, float]] = []
        """Counted in batches, since decoding evicts the code from the processor's caches: between
        two ticks many observations cost hardly more than one."""
        self._requests = self._counter("requests", "Ended requests, by how they ended.", "end")
        self._engine_ends = Counter(
            "umaserve_engine_ends",
            "Engine processes that ended by themselves, by the signal or other cause.",
            ["cause"],
            registry=self.registry,
        )
        self._prompt = self._counter("request_prompt_tokens", "Prompt tokens of ended requests.")
        self._completion = self._counter("request_completion_tokens", "Generated tokens of ended requests.")

    def _histogram(self, name: str, about: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"umaserve_{name}_seconds", about, Of._fields, registry=self.registry, buckets=buckets)

    def _counter(self, name: str, about: str, *labels: str) -> Counter:
        return Counter(f"umaserve_{name}", about, [*Of._fields, *labels], registry=self.registry)

    def begin(self, model: str) -> None:
        """Count the refusals and failures of ``model`` from 0 on: of a counter that begins with its first value,
        Prometheus sees no increase to that."""
        for dialect in self._dialects:
            for end in WATCHED_ENDS:
                self._requests.labels(dialect, model, end)

    def observe_tick(self, seconds: float, rows: int, sessions: int, *, over_budget: bool, throttled: bool) -> None:
        self.last_batch_size = rows
        self.batch_sessions += sessions
        self.ticks_over_budget += over_budget
        self.ticks_throttled += throttled
        self._new_ticks.append(seconds)
        if len(self._new_ticks) >= MAX_NEW:
            self.fold()

    def observe_crash(self, cause: str) -> None:
        self.engine_crashes += 1
        self._engine_ends.labels(cause).inc()

    def observe_start(self, of: Of, waited_s: float) -> None:
        self.queue.add(waited_s)
        self._queue_s.labels(*of).observe(waited_s)

    def observe_first_token(self, of: Of, seconds: float) -> None:
        self.ttft.add(seconds)
        self._ttft_s.labels(*of).observe(seconds)

    def observe_next_token(self, of: Of, seconds: float) -> None:
        self._new_gaps.append((of, seconds))
        if len(self._new_gaps) >= MAX_NEW:
            self.fold()

    def fold(self) -> None:
        """Count the buffered observations."""
        for seconds in self._new_ticks:
            self.ticks.add(seconds)
            self._tick_s.observe(seconds)
        for of, seconds in self._new_gaps:
            self.tbt.add(seconds)
            self._tbt_of[of].observe(seconds)
        self._new_ticks.clear()
        self._new_gaps.clear()

    def observe_end(
        self, of: Of, end: str, prompt_tokens: int, completion_tokens: int, took_s: float, ran_s: float
    ) -> None:
        """Count an ended request. ``took_s`` is its duration from its arrival, ``ran_s`` from its start; 0 if it never
        started."""
        if ran_s:
            self.request_s += (ran_s - self.request_s) * (self.WEIGHT if self.request_s else 1.0)
        self._requests.labels(*of, end).inc()
        self._request_s.labels(*of).observe(took_s)
        self._prompt.labels(*of).inc(prompt_tokens)
        self._completion.labels(*of).inc(completion_tokens)

    def snapshot(self) -> dict[str, int | float | str]:
        self.fold()
        return {
            "tokens_generated_total": self.tokens_generated,
            "prompt_tokens_total": self.prompt_tokens,
            "prefix_reused_tokens_total": self.prefix_reused_tokens,
            "disk_cache_hits_total": self.disk_cache_hits,
            "disk_cache_tokens_total": self.disk_cache_tokens,
            "disk_cache_errors_total": self.disk_cache_errors,
            "prompt_seconds_total": round(self.prompt_s, 3),
            "generation_seconds_total": round(self.generation_s, 3),
            "recomputed_tokens_total": self.recomputed_tokens,
            "preemptions_total": self.preemptions,
            "media_chunks_encoded_total": self.chunks_encoded,
            "engine_crashes_total": self.engine_crashes,
            "batch_calls_total": self.ticks.count,
            "batch_sessions_total": self.batch_sessions,
            "last_batch_size": self.last_batch_size,
            "longest_sequence_tokens": self.longest_sequence,
            "decode_ms_last": round(self.ticks.last, 3),
            "decode_ms_ewma": round(self.ticks.ewma, 3),
            "decode_ms_min": round(self.ticks.min, 3),
            "decode_ms_max": round(self.ticks.max, 3),
            "ttft_ms_p50": self.ttft.percentile(50),
            "ttft_ms_p95": self.ttft.percentile(95),
            "tbt_ms_p50": self.tbt.percentile(50),
            "tbt_ms_p95": self.tbt.percentile(95),
            "queue_ms_p95": self.queue.percentile(95),
            "slo_ttft_attained_ratio": self.ttft_attained.ratio,
            "slo_tbt_attained_ratio": self.tbt_attained.ratio,
            "ticks_over_budget_total": self.ticks_over_budget,
            "prefill_throttled_ticks_total": self.ticks_throttled,
            "drafts_total": self.drafts,
            "draft_tokens_total": self.draft_tokens,
            "draft_tokens_accepted_total": self.draft_tokens_accepted,
        }


class _Children(dict[Of, Histogram]):
    """A cache of a histogram's children, since ``labels`` is slow."""

    def __init__(self, histogram: Histogram) -> None:
        super().__init__()
        self._histogram = histogram

    def __missing__(self, of: Of) -> Histogram:
        child = self[of] = self._histogram.labels(*of)
        return child
