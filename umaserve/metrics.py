"""The daemon's metrics: totals, sliding windows of latencies, and Prometheus counters and histograms."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

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
        """From 0 to 1; 1 without observations."""
        return round(sum(self._values) / len(self._values), 4) if self._values else 1.0


PROMETHEUS = "text/plain; version=1.0.0; charset=utf-8; escaping=underscores"
"""The content type of ``exposition``."""

_TOKEN_BUCKETS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0)
_WAIT_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)


HELP = {
    "uptime_s": "Seconds since the start.",
    "connections": "Open connections.",
    "sessions_total": "Sessions opened: one for each connection over a message protocol, and for each further request.",
    "rejected_total": "Connections refused because max_sessions were open.",
    "load_progress": "How much of the model is loaded, from 0 to 1.",
    "active_sessions": "Requests that have a slot.",
    "waiting_sessions": "Requests that wait for a slot.",
    "tx_stalled_sessions": "Streams held because their client's unread output is above the high-water mark.",
    "tokens_generated_total": "Generated tokens.",
    "prompt_tokens_total": "Prompt tokens computed; reused ones are not counted.",
    "prefix_reused_tokens_total": "Prompt tokens that were not computed, since a cached prefix has them.",
    "prompt_seconds_total": "Seconds from prompts' starts to their first tokens, of all requests that have ended.",
    "generation_seconds_total": "Seconds from answers' first tokens to their last, of all requests that have ended.",
    "preemptions_total": "Times that a running request lost its slot to another one.",
    "recomputed_tokens_total": "Tokens computed again for requests that were preempted.",
    "media_chunks_encoded_total": "Chunks of images and sounds that the projector has encoded.",
    "engine_crashes_total": "Engine processes that ended by themselves.",
    "batch_calls_total": "Ticks.",
    "last_batch_size": "Tokens in the batch of the last tick.",
    "decode_ms_last": "Duration of the last tick in milliseconds.",
    "decode_ms_ewma": "Exponentially weighted mean duration of a tick in milliseconds.",
    "decode_ms_min": "Shortest tick in milliseconds.",
    "decode_ms_max": "Longest tick in milliseconds.",
    "ttft_ms_p50": f"Time to first token in milliseconds, median of the last {WINDOW} requests.",
    "ttft_ms_p95": f"Time to first token in milliseconds, 95th percentile of the last {WINDOW} requests.",
    "tbt_ms_p50": f"Time between tokens in milliseconds, median of the last {WINDOW} tokens.",
    "tbt_ms_p95": f"Time between tokens in milliseconds, 95th percentile of the last {WINDOW} tokens.",
    "queue_ms_p95": f"Wait for a slot in milliseconds, 95th percentile of the last {WINDOW} requests.",
    "slo_ttft_attained_ratio": f"Share of the last {WINDOW} requests whose first token met its target.",
    "slo_tbt_attained_ratio": f"Share of the last {WINDOW} requests whose mean time between tokens met its target.",
    "ticks_over_budget_total": "Ticks that took longer than the tightest target for the time between tokens.",
    "prefill_throttled_ticks_total": "Ticks with fewer prompt tokens than were waiting, to meet the streams' targets.",
    "draft_tokens_total": "Draft tokens that were verified.",
    "draft_tokens_accepted_total": "Draft tokens that were right.",
    "threads": "Compute threads in use.",
    "kv_cells_used": "KV cells that hold tokens of running requests.",
    "kv_cells_cached": "KV cells that hold cached prefixes.",
    "kv_cells_total": "All KV cells.",
    "host_cache_bytes": "Host memory that holds computed prompts.",
    "disk_cache_bytes": "Disk space of computed prompts.",
    "disk_cache_hits_total": "Computed prompts that were read from disk.",
    "disk_cache_tokens_total": "Their tokens.",
    "spoken_answers": "Answers that are being spoken.",
    "speech_seconds_total": "Seconds of speech made.",
    "detached_generations": "Generations kept for WebSocket clients that lost their connection.",
    "large_input_bytes": "Memory that large messages of clients take, beyond what each client has anyway.",
    "stuck_threads": "Threads that have not advanced for too long; above 0, /health answers 503.",
    "rss_bytes": "Resident memory of the daemon and its engine.",
    "rx_bytes_total": "Bytes received from clients.",
    "tx_bytes_total": "Bytes sent to clients.",
    "relay_uptime_s": "Seconds since the relay's start.",
    "relay_connections": "Open connections, workers included.",
    "relay_workers": "Registered workers.",
    "relay_queue_length": "Requests that wait for a worker.",
    "relay_in_flight": "Requests that workers are answering.",
    "relay_requests_total": "Requests from clients.",
    "relay_completed_total": "Requests answered to the end.",
    "relay_failed_total": "Requests that ended with an error of the relay.",
    "relay_requeues_total": "Times that a request lost its worker before any output, and waited for another one.",
    "relay_client_disconnects_total": "Requests whose client left before the end.",
    "relay_queue_timeouts_total": "Requests that found no worker within queue_timeout.",
    "relay_request_timeouts_total": "Requests that took longer than request_timeout.",
    "relay_late_messages_total": "Messages of workers about requests that were over.",
    "relay_connections_refused_total": "Connections refused because max_connections were open.",
    "relay_rss_bytes": "Resident memory of the process.",
}
"""What the flat metrics of the daemon and the relay mean."""


MODEL_STATES = ("unloaded", "loading", "loaded", "unloading", "failed")
MODEL_HELP = {
    "state": "1 for the state that the model is in, 0 for the others.",
    "memory_bytes": "Memory that the model takes; 0 where it is not loaded.",
    "last_used": "When the model had work last, in seconds since 1970; 0: not since the start.",
    "active_sessions": "Requests for the model that have a slot.",
    "waiting_sessions": "Requests for the model that wait for it, or for a slot.",
    "threads": "Compute threads in use for the model.",
    "kv_cells_used": "KV cells of the model that hold tokens of running requests.",
    "kv_cells_cached": "KV cells of the model that hold cached prefixes.",
    "kv_cells_total": "All KV cells of the model.",
    "tokens_generated_total": "Tokens that the model has generated.",
    "engine_crashes_total": "Engine processes of the model that ended by themselves.",
}
"""What the metrics of each model mean; in Prometheus' format their names begin with ``umaserve_model_``."""


class ServingMetrics:
    """The scheduler's metrics. Times are in seconds."""

    WEIGHT = 0.1

    def __init__(self) -> None:
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
        self.disk_cache_tokens = 0
        """Their tokens."""
        self.prompt_s = 0.0
        """Time from prompts' starts to their first tokens, of ended requests."""
        self.generation_s = 0.0
        """Time from answers' first tokens to their last, of ended requests."""
        self.last_batch_size = 0
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
        """For ``prometheus_client.generate_latest``."""
        self._tick_s = Histogram(
            "umaserve_tick_seconds",
            "Duration of one tick: decode and sampling.",
            registry=self.registry,
            buckets=_TOKEN_BUCKETS,
        )
        self._queue_s = self._histogram(
            "queue", "Time from a request's arrival until its prompt gets a slot.", _WAIT_BUCKETS
        )
        self._ttft_s = self._histogram(
            "time_to_first_token", "Time from a request's arrival to its first token.", _WAIT_BUCKETS
        )
        self._tbt_s = self._histogram("time_between_tokens", "Time between two tokens of one stream.", _TOKEN_BUCKETS)
        self._tbt_of = _Children(self._tbt_s)
        self._new_ticks: list[float] = []
        self._new_gaps: list[tuple[str, float]] = []
        """With their dialects. Counted in batches, since decoding evicts the code from the processor's caches: between
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
        return Histogram(f"umaserve_{name}_seconds", about, ["dialect"], registry=self.registry, buckets=buckets)

    def _counter(self, name: str, about: str, *labels: str) -> Counter:
        return Counter(f"umaserve_{name}", about, ["dialect", *labels], registry=self.registry)

    def observe_tick(self, seconds: float, rows: int, *, over_budget: bool, throttled: bool) -> None:
        self.last_batch_size = rows
        self.ticks_over_budget += over_budget
        self.ticks_throttled += throttled
        self._new_ticks.append(seconds)
        if len(self._new_ticks) >= MAX_NEW:
            self.fold()

    def observe_crash(self, cause: str) -> None:
        self.engine_crashes += 1
        self._engine_ends.labels(cause).inc()

    def observe_start(self, dialect: str, waited_s: float) -> None:
        self.queue.add(waited_s)
        self._queue_s.labels(dialect).observe(waited_s)

    def observe_first_token(self, dialect: str, seconds: float) -> None:
        self.ttft.add(seconds)
        self._ttft_s.labels(dialect).observe(seconds)

    def observe_next_token(self, dialect: str, seconds: float) -> None:
        self._new_gaps.append((dialect, seconds))
        if len(self._new_gaps) >= MAX_NEW:
            self.fold()

    def fold(self) -> None:
        """Count the buffered observations."""
        for seconds in self._new_ticks:
            self.ticks.add(seconds)
            self._tick_s.observe(seconds)
        for dialect, seconds in self._new_gaps:
            self.tbt.add(seconds)
            self._tbt_of[dialect].observe(seconds)
        self._new_ticks.clear()
        self._new_gaps.clear()

    def observe_end(self, dialect: str, end: str, prompt_tokens: int, completion_tokens: int, took_s: float) -> None:
        """Count an ended request. ``took_s`` is its duration from its start; 0 if it never started."""
        if took_s:
            self.request_s += (took_s - self.request_s) * (self.WEIGHT if self.request_s else 1.0)
        self._requests.labels(dialect, end).inc()
        self._prompt.labels(dialect).inc(prompt_tokens)
        self._completion.labels(dialect).inc(completion_tokens)

    def snapshot(self) -> dict[str, int | float | str]:
        self.fold()
        return {
            "tokens_generated_total": self.tokens_generated,
            "prompt_tokens_total": self.prompt_tokens,
            "prefix_reused_tokens_total": self.prefix_reused_tokens,
            "disk_cache_hits_total": self.disk_cache_hits,
            "disk_cache_tokens_total": self.disk_cache_tokens,
            "prompt_seconds_total": round(self.prompt_s, 3),
            "generation_seconds_total": round(self.generation_s, 3),
            "recomputed_tokens_total": self.recomputed_tokens,
            "preemptions_total": self.preemptions,
            "media_chunks_encoded_total": self.chunks_encoded,
            "engine_crashes_total": self.engine_crashes,
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
            "slo_ttft_attained_ratio": self.ttft_attained.ratio,
            "slo_tbt_attained_ratio": self.tbt_attained.ratio,
            "ticks_over_budget_total": self.ticks_over_budget,
            "prefill_throttled_ticks_total": self.ticks_throttled,
            "draft_tokens_total": self.draft_tokens,
            "draft_tokens_accepted_total": self.draft_tokens_accepted,
        }


class _Children(dict[str, Histogram]):
    """A cache of a histogram's children by dialect, since ``labels`` is slow."""

    def __init__(self, histogram: Histogram) -> None:
        super().__init__()
        self._histogram = histogram

    def __missing__(self, dialect: str) -> Histogram:
        child = self[dialect] = self._histogram.labels(dialect)
        return child


def exposition(
    registry: CollectorRegistry | None,
    values: Mapping[str, int | float | str],
    models: Mapping[str, Mapping[str, int | str]] | None = None,
) -> bytes:
    """``registry``, the flat snapshot and those of the models in Prometheus' text format; strings become one info
    metric."""
    whole = CollectorRegistry()
    if registry is not None:
        whole.register(registry)
    whole.register(_Snapshot(values))
    if models:
        whole.register(_Models(models))
    return generate_latest(whole)


class _Snapshot(Collector):
    """A collector of flat metrics; those named ``…_total`` are counters."""

    def __init__(self, values: Mapping[str, int | float | str]) -> None:
        self._values = values

    def collect(self) -> Iterator[Metric]:
        texts = {}
        for name, value in self._values.items():
            about = HELP.get(name, name)
            if isinstance(value, str):
                texts[name] = value
            elif name.endswith("_total"):
                yield CounterMetricFamily(f"umaserve_{name}", about, value=value)
            else:
                yield GaugeMetricFamily(f"umaserve_{name}", about, value=value)
        yield InfoMetricFamily("umaserve", "State of the server, and what it serves.", value=texts)


class _Models(Collector):
    """A collector of the models' metrics."""

    def __init__(self, models: Mapping[str, Mapping[str, int | str]]) -> None:
        self._models = models

    def collect(self) -> Iterator[Metric]:
        states = GaugeMetricFamily("umaserve_model_state", MODEL_HELP["state"], labels=["model", "state"])
        for model, values in self._models.items():
            for state in MODEL_STATES:
                states.add_metric([model, state], int(values["state"] == state))
        yield states
        for name, about in MODEL_HELP.items():
            if name == "state":
                continue
            kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            family = kind(f"umaserve_model_{name}", about, labels=["model"])
            for model, values in self._models.items():
                family.add_metric([model], float(values[name]))
            yield family
