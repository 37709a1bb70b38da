"""Metrics with vLLM's names, made of this server's own."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from umaserve.core.metrics import Of, ServingMetrics
from umaserve.core.requests import Generate
from umaserve.daemon.vllm_metrics import HISTOGRAMS, Use, use_of, vllm_metrics
from umaserve.sessions.caller import Caller
from umaserve.sessions.manager import SessionManager

IDLE = {
    "active_sessions": 0,
    "waiting_sessions": 0,
    "kv_cells_used": 0,
    "kv_cells_cached": 0,
    "kv_cells_total": 0,
    "tokens_generated_total": 0,
}
BUSY = {
    "active_sessions": 2,
    "waiting_sessions": 3,
    "kv_cells_used": 256,
    "kv_cells_cached": 700,
    "kv_cells_total": 1024,
    "tokens_generated_total": 7,
}
MODELS = {"chat": BUSY, 'a"b\\': IDLE}
USES = {"chat": Use("q8_0", ("en", "de"), ("de",), ()), 'a"b\\': Use("f16"), "gone": Use("f16", ("x",))}


def told(metrics: ServingMetrics) -> dict[str, Metric]:
    metrics.fold()
    page = vllm_metrics(metrics.registry, MODELS, USES).decode()
    families = {family.name: family for family in text_string_to_metric_families(page)}
    assert all(name.startswith("vllm:") and family.documentation for name, family in families.items())
    assert {sample.labels["model_name"] for family in families.values() for sample in family.samples} == {*MODELS}
    return families


def by_model(family: Metric, suffix: str = "", **labels: str) -> dict[str, float]:
    found = [one for one in family.samples if one.name == family.name + suffix and labels.items() <= one.labels.items()]
    return {one.labels["model_name"]: one.value for one in found}


def test_gauges_and_totals_are_of_each_model() -> None:
    metrics = ServingMetrics()
    metrics.observe_end(Of("uds", "chat"), "stop", 5, 7, 1.0, 1.0)
    metrics.observe_end(Of("openai", "chat"), "stop", 6, 7, 1.0, 1.0)
    families = told(metrics)
    assert by_model(families["vllm:num_requests_running"]) == {"chat": 2, 'a"b\\': 0}
    assert by_model(families["vllm:num_requests_waiting"]) == {"chat": 3, 'a"b\\': 0}
    assert by_model(families["vllm:kv_cache_usage_perc"]) == {"chat": 0.25, 'a"b\\': 0}, "kept cells are free"
    assert by_model(families["vllm:prompt_tokens"], "_total") == {"chat": 11, 'a"b\\': 0}
    assert by_model(families["vllm:generation_tokens"], "_total") == {"chat": 7, 'a"b\\': 0}
    assert families["vllm:generation_tokens"].type == "counter"


OBSERVED = {
    "vllm:time_to_first_token_seconds": ServingMetrics.observe_first_token,
    "vllm:inter_token_latency_seconds": ServingMetrics.observe_next_token,
    "vllm:e2e_request_latency_seconds": lambda metrics, of, took: metrics.observe_end(of, "stop", 1, 1, took, took),
    "vllm:request_queue_time_seconds": ServingMetrics.observe_start,
}


@pytest.mark.parametrize("name", OBSERVED)
def test_histograms_are_of_all_dialects_with_vllms_buckets(name: str) -> None:
    metrics = ServingMetrics()
    # Neither on a bound of our own that vLLM lacks, nor the same on both sides of one that it has.
    for dialect, seconds in (("uds", 0.001), ("uds", 0.9), ("openai", 1.2), ("openai", 1e6)):
        OBSERVED[name](metrics, Of(dialect, "chat"), seconds)
    family = told(metrics)[name]
    assert family.type == "histogram"
    bounds = HISTOGRAMS[name.removeprefix("vllm:")][2]
    for model in MODELS:
        buckets = [one for one in family.samples if one.name.endswith("_bucket") and one.labels["model_name"] == model]
        assert [float(one.labels["le"]) for one in buckets] == [*bounds, float("inf")]
        expected = [1 + (b >= 0.9) + (b >= 1.2) for b in bounds] + [4] if model == "chat" else [0] * len(buckets)
        assert [one.value for one in buckets] == expected
    assert by_model(family, "_count") == {"chat": 4, 'a"b\\': 0}
    assert by_model(family, "_sum") == {"chat": pytest.approx(1e6 + 2.101), 'a"b\\': 0}


def test_adapters_and_cells_are_told_where_there_are_any() -> None:
    before = time.time()
    families = told(ServingMetrics())
    labels = {"max_lora": "2", "running_lora_adapters": "de", "waiting_lora_adapters": ""}
    assert by_model(families["vllm:lora_requests_info"], **labels).keys() == {"chat"}
    assert before <= by_model(families["vllm:lora_requests_info"])["chat"] <= time.time()
    labels = {"block_size": "16", "num_gpu_blocks": "64", "cache_dtype": "q8_0", "enable_prefix_caching": "True"}
    assert by_model(families["vllm:cache_config_info"], **labels) == {"chat": 1}


def test_the_adapters_of_requests_are_those_that_the_model_has() -> None:
    manager = SessionManager(clock=lambda: 0.0)

    def ask(lora: tuple[tuple[str, float], ...] | None, slot: int | None) -> None:
        session = manager.start(Generate("r", "hello", lora=lora), print, Caller("uds", "uid:1"), 0.0)
        session.slot = slot

    host = SimpleNamespace(
        sessions=manager,
        info=SimpleNamespace(adapters=("en", "de", "fr")),
        spec=SimpleNamespace(config=SimpleNamespace(kv_types=("f16", "f16"))),
    )
    ask((("de", 0.5), ("en", 0.0), ("other", 1.0)), 0)
    ask((("fr", 1.0), ("x,y", 1.0)), None)
    assert use_of(host) == Use("f16", ("en", "de", "fr"), ["de"], ["fr"])
    ask(None, 1)
    assert use_of(host).running == ["de", "en", "fr"], "without a choice, all of them"
    host.info = None
    assert use_of(host) == Use("f16", (), [], [])
