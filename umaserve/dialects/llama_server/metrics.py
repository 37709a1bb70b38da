"""llama-server's names for metrics, for dashboards made for them."""

from __future__ import annotations

from collections.abc import Mapping

_COUNTERS = {
    "prompt_tokens_total": ("prompt_tokens_total", "Prompt tokens computed; cached ones are not counted."),
    "prompt_tokens_cached_total": ("prefix_reused_tokens_total", "Prompt tokens found in the cache."),
    "prompt_seconds_total": ("prompt_seconds_total", "Time from prompts' starts to their first tokens."),
    "tokens_predicted_total": ("tokens_generated_total", "Generated tokens."),
    "tokens_predicted_seconds_total": ("generation_seconds_total", "Time from answers' first tokens to their last."),
    "n_decode_total": ("batch_calls_total", "Ticks."),
    "n_tokens_max": ("longest_sequence_tokens", "Tokens of the longest sequence so far, prompt and answer."),
    "spec_decode_num_draft_tokens_total": ("draft_tokens_total", "Draft tokens that were verified."),
    "spec_decode_num_accepted_tokens_total": ("draft_tokens_accepted_total", "Draft tokens that were right."),
    "spec_decode_num_drafts_total": ("drafts_total", "Drafts that were verified, each with one or more draft tokens."),
}
_GAUGES = {
    "requests_processing": ("active_sessions", "Requests that have a slot."),
    "requests_deferred": ("waiting_sessions", "Requests that wait for a slot."),
}
"""llama-server's name, the flat metric of this server's that it stands for, and what it means."""
_MEANS = {
    "prompt_tokens_seconds": ("prompt_tokens_total", "prompt_seconds_total", "Tokens a second of prompt, on average."),
    "predicted_tokens_seconds": (
        "tokens_generated_total",
        "generation_seconds_total",
        "Tokens a second of generation, on average.",
    ),
    "n_busy_slots_per_decode": ("batch_sessions_total", "batch_calls_total", "Requests of a tick, on average."),
}
"""Gauges of two flat metrics: the first divided by the second."""


def llama_metrics(values: Mapping[str, int | float | str]) -> bytes:
    """The metrics in Prometheus' text format; ``values`` is the flat snapshot, in which all are missing while the model
    loads."""
    lines: list[str] = []
    for kind, named in (("counter", _COUNTERS), ("gauge", _GAUGES)):
        for name, (key, about) in named.items():
            lines += _family(name, kind, about, values.get(key, 0))
    for name, (of, by, about) in _MEANS.items():
        total, n = values.get(of, 0), values.get(by, 0)
        assert not isinstance(total, str)
        assert not isinstance(n, str)
        lines += _family(name, "gauge", about, total / n if n else 0.0)
    return "".join(f"{line}\n" for line in lines).encode()


def _family(name: str, kind: str, about: str, value: float | str) -> list[str]:
    full = f"llamacpp:{name}"
    return [f"# HELP {full} {about}", f"# TYPE {full} {kind}", f"{full} {value}"]
