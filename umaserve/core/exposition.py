"""Text that Prometheus reads: the counted metrics, the flat snapshot of a daemon or a relay, and those of each
model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from umaserve.core.metrics import WINDOW

PROMETHEUS = "text/plain; version=1.0.0; charset=utf-8; escaping=underscores"
"""The content type of ``exposition``."""

HELP = {
    "uptime_s": "Seconds since the start.",
    "connections": "Open connections.",
    "sessions_total": "Requests for generated text, a session each; those with several choices have one for each.",
    "rejected_total": "Connections refused because max_sessions were open.",
    "load_progress": "How much of the model is loaded, from 0 to 1.",
    "active_sessions": "Requests that have a slot.",
    "waiting_sessions": "Requests that wait for a slot.",
    "tx_stalled_sessions": "Streams held because their client's unread output is above the high-water mark.",
    "batches_unfinished": "Batches that have not ended.",
    "batch_lines_running": "Lines of batches that run.",
    "batch_lines_total": "Lines of batches that were answered, refusals included.",
    "model_downloads_unfinished": "Downloads of models that run or wait.",
    "model_downloads_total": "Downloads of models that have ended, also those that failed or were cancelled.",
    "model_download_failures_total": "Downloads of models that failed or were cancelled.",
    "tool_servers_connected": "Tool servers that the daemon is connected to.",
    "tool_calls_running": "Calls of tool servers that were not answered yet.",
    "tool_calls_total": "Calls of tool servers that the daemon began.",
    "tool_call_failures_total": "Calls of tool servers that failed, by what the server says or since it was not there.",
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
    "batch_sessions_total": "Requests of each tick, summed up; divided by the ticks: how many a tick has on average.",
    "last_batch_size": "Tokens in the batch of the last tick.",
    "longest_sequence_tokens": "Tokens of the longest sequence so far, prompt and answer.",
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
    "drafts_total": "Drafts that were verified, each with one or more draft tokens.",
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
    "disk_cache_errors_total": "Computed prompts that could not be read from or written to disk.",
    "spoken_answers": "Answers that are being spoken.",
    "speech_seconds_total": "Seconds of speech made.",
    "detached_generations": "Generations kept for WebSocket clients that lost their connection.",
    "large_input_bytes": "Memory that large messages of clients take, beyond the fixed share of each client.",
    "stuck_threads": "Threads that have not advanced for too long; above 0, /health answers 503.",
    "rss_bytes": "Resident memory of the daemon and its engine.",
    "rx_bytes_total": "Bytes received from clients.",
    "tx_bytes_total": "Bytes sent to clients.",
    "relay_uptime_s": "Seconds since the relay's start.",
    "relay_connections": "Open connections, workers included.",
    "relay_workers": "Registered workers.",
    "relay_peers": "Other relays that have reported their load in the last seconds.",
    "relay_queue_length": "Requests that wait for a worker.",
    "relay_in_flight": "Requests that workers are answering.",
    "relay_requests_total": "Requests from clients.",
    "relay_completed_total": "Requests answered to the end.",
    "relay_failed_total": "Requests that ended with an error of the relay.",
    "relay_requeues_total": "Times that a request lost its worker before any output, and was queued again.",
    "relay_client_disconnects_total": "Requests whose client disconnected before the end.",
    "relay_queue_timeouts_total": "Requests that found no worker within queue_timeout.",
    "relay_request_timeouts_total": "Requests that took longer than request_timeout.",
    "relay_late_messages_total": "Messages of workers about requests that were over.",
    "relay_connections_refused_total": "Connections refused because max_connections were open.",
    "relay_rss_bytes": "Resident memory of the process.",
}
"""Meanings of the flat metrics of the daemon and the relay."""


_GAUGES = {"kv_cells_total"}
"""Metrics that are no counters although their names end like those of counters."""
MODEL_STATES = ("unloaded", "loading", "loaded", "unloading", "failed")
MODEL_HELP = {
    "state": "1 for the state that the model is in, 0 for the others.",
    "memory_bytes": "Memory that the model takes; 0 where it is not loaded.",
    "last_used": "When the model last had work, in seconds since 1970; 0: not since the start.",
    "active_sessions": "Requests for the model that have a slot.",
    "waiting_sessions": "Requests for the model that wait for it, or for a slot.",
    "threads": "Compute threads in use for the model.",
    "kv_cells_used": "KV cells of the model that hold tokens of running requests.",
    "kv_cells_cached": "KV cells of the model that hold cached prefixes.",
    "kv_cells_total": "All KV cells of the model.",
    "tokens_generated_total": "Tokens that the model has generated.",
    "engine_crashes_total": "Engine processes of the model that ended by themselves.",
}
"""Meanings of the metrics of each model; in Prometheus' format their names begin with ``umaserve_model_``."""


KEY_HELP = {
    "requests_total": "Requests with the key.",
    "refused_total": "Requests refused for the key's rates.",
    "prompt_tokens_total": "Prompt tokens of the key's requests, as workers report them.",
    "generated_tokens_total": "Tokens generated for the key.",
}
"""Meanings of the relay's metrics of each key; their names begin with ``umaserve_relay_key_``."""


def exposition(
    registry: CollectorRegistry | None,
    values: Mapping[str, int | float | str],
    models: Mapping[str, Mapping[str, int | str]] | None = None,
    keys: Mapping[str, Mapping[str, int]] | None = None,
) -> bytes:
    """``registry``, the flat snapshot and those of the models and keys in Prometheus' text format; strings become one
    info metric."""
    whole = CollectorRegistry()
    if registry is not None:
        whole.register(registry)
    whole.register(_Snapshot(values))
    if models:
        whole.register(_Models(models))
    if keys:
        whole.register(_Keys(keys))
    return generate_latest(whole)


def _kind(name: str) -> type[CounterMetricFamily] | type[GaugeMetricFamily]:
    return CounterMetricFamily if name.endswith("_total") and name not in _GAUGES else GaugeMetricFamily


class _Snapshot(Collector):
    """A collector of flat metrics."""

    def __init__(self, values: Mapping[str, int | float | str]) -> None:
        self._values = values

    def collect(self) -> Iterator[Metric]:
        texts = {}
        for name, value in self._values.items():
            about = HELP.get(name, name)
            if isinstance(value, str):
                texts[name] = value
            else:
                yield _kind(name)(f"umaserve_{name}", about, value=value)
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
            family = _kind(name)(f"umaserve_model_{name}", about, labels=["model"])
            for model, values in self._models.items():
                family.add_metric([model], float(values[name]))
            yield family


class _Keys(Collector):
    """A collector of the keys' metrics."""

    def __init__(self, keys: Mapping[str, Mapping[str, int]]) -> None:
        self._keys = keys

    def collect(self) -> Iterator[Metric]:
        for name, about in KEY_HELP.items():
            family = CounterMetricFamily(f"umaserve_relay_key_{name}", about, labels=["key"])
            for key, values in self._keys.items():
                family.add_metric([key], values[name])
            yield family
