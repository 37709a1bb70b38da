"""vLLM's names for metrics, for gateways and dashboards made for them: all from what is counted anyway."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from umaserve.models.model_host import ModelHost

BLOCK_CELLS = 16
"""Gateways count KV cells by blocks, and compare prompts block by block. Here any number of cells is one; 16 is vLLM's
own number."""
_GAPS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_FIRST_TOKENS: tuple[float, ...] = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0)
_FIRST_TOKENS += (2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0)
_REQUESTS: tuple[float, ...] = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0)
_REQUESTS += (30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0)
HISTOGRAMS = {
    "time_to_first_token_seconds": ("time_to_first_token", "Time to first token.", _FIRST_TOKENS),
    "inter_token_latency_seconds": ("time_between_tokens", "Time between two tokens of one stream.", _GAPS),
    "e2e_request_latency_seconds": ("request", "Time from a request's arrival to its end.", _REQUESTS),
    "request_queue_time_seconds": ("queue", "Time from a request's arrival until it gets a slot.", _REQUESTS),
}
"""vLLM's name, the histogram of this server's that it is made of, what it means, and vLLM's buckets."""
_LABEL = "model_name"


@dataclass(frozen=True, slots=True)
class Use:
    """Facts of a model beyond its flat metrics: what it has, and what its requests use."""

    cell_type: str
    adapters: Sequence[str] = ()
    """The names of all its LoRA adapters."""
    running: Sequence[str] = ()
    """Adapters of requests that have a slot."""
    waiting: Sequence[str] = ()
    """Adapters of requests that wait."""


def use_of(host: ModelHost) -> Use:
    """Use of a model. Names that clients sent count only where the model has such an adapter."""
    adapters = () if host.info is None else host.info.adapters
    running: set[str] = set()
    waiting: set[str] = set()
    for session in host.sessions.running():
        lora = session.request.lora
        wanted = adapters if lora is None else [name for name, scale in lora if scale]
        (waiting if session.slot is None else running).update(wanted)
    kv_types = "/".join(dict.fromkeys(host.spec.config.kv_types))
    return Use(kv_types, adapters, sorted(running & {*adapters}), sorted(waiting & {*adapters}))


def vllm_metrics(
    registry: CollectorRegistry, models: Mapping[str, Mapping[str, int | str]], uses: Mapping[str, Use]
) -> bytes:
    """The metrics in Prometheus' text format, of each model by its name. ``registry`` has the histograms by dialect and
    model, ``models`` is as in ``exposition``."""
    whole = CollectorRegistry()
    whole.register(_Vllm(registry, models, uses))
    return generate_latest(whole)


class _Vllm(Collector):
    def __init__(
        self, registry: CollectorRegistry, models: Mapping[str, Mapping[str, int | str]], uses: Mapping[str, Use]
    ) -> None:
        self._counted = {family.name: family for family in registry.collect()}
        self._models = models
        self._uses = uses

    def collect(self) -> Iterator[Metric]:
        yield self._gauge("num_requests_running", "Requests that have a slot.", "active_sessions")
        yield self._gauge("num_requests_waiting", "Requests that wait for the model or a slot.", "waiting_sessions")
        usage = GaugeMetricFamily(
            "vllm:kv_cache_usage_perc", "Share of the KV cells that running requests use, from 0 to 1.", labels=[_LABEL]
        )
        for model, values in self._models.items():
            usage.add_metric([model], int(values["kv_cells_used"]) / max(1, int(values["kv_cells_total"])))
        yield usage
        prompts = CounterMetricFamily("vllm:prompt_tokens", "Prompt tokens of ended requests.", labels=[_LABEL])
        made = CounterMetricFamily("vllm:generation_tokens", "Generated tokens.", labels=[_LABEL])
        prompt_tokens = self._sums("umaserve_request_prompt_tokens", "_total")
        for model, values in self._models.items():
            prompts.add_metric([model], prompt_tokens[model, ""])
            made.add_metric([model], float(values["tokens_generated_total"]))
        yield prompts
        yield made
        for name, (ours, about, bounds) in HISTOGRAMS.items():
            yield self._histogram(f"vllm:{name}", f"umaserve_{ours}_seconds", about, bounds)
        yield self._adapters()
        yield self._cache_config()

    def _gauge(self, name: str, about: str, flat: str) -> Metric:
        family = GaugeMetricFamily(f"vllm:{name}", about, labels=[_LABEL])
        for model, values in self._models.items():
            family.add_metric([model], float(values[flat]))
        return family

    def _histogram(self, name: str, ours: str, about: str, bounds: Sequence[float]) -> Metric:
        family = HistogramMetricFamily(name, about, labels=[_LABEL])
        buckets, sums = self._sums(ours, "_bucket"), self._sums(ours, "_sum")
        for model in self._models:
            told = [(bound, buckets[model, bound]) for bound in (*map(floatToGoString, bounds), "+Inf")]
            family.add_metric([model], told, sums[model, ""])
        return family

    def _sums(self, name: str, suffix: str) -> Mapping[tuple[str, str], float]:
        """Sums of a metric's samples over all dialects, by the model and the bucket's bound."""
        sums: dict[tuple[str, str], float] = defaultdict(float)
        for sample in self._counted[name].samples:
            if sample.name == name + suffix:
                sums[sample.labels["model"], sample.labels.get("le", "")] += sample.value
        return sums

    def _adapters(self) -> Metric:
        labels = [_LABEL, "max_lora", "running_lora_adapters", "waiting_lora_adapters"]
        about = "The LoRA adapters in use; the value is the time, in seconds since 1970."
        family = GaugeMetricFamily("vllm:lora_requests_info", about, labels=labels)
        for model in self._models:
            use = self._uses[model]
            if use.adapters:
                values = [model, str(len(use.adapters)), ",".join(use.running), ",".join(use.waiting)]
                family.add_metric(values, time.time())
        return family

    def _cache_config(self) -> Metric:
        labels = [_LABEL, "block_size", "num_gpu_blocks", "cache_dtype", "enable_prefix_caching"]
        family = GaugeMetricFamily("vllm:cache_config_info", "The KV cache of the loaded model.", labels=labels)
        for model, values in self._models.items():
            if cells := int(values["kv_cells_total"]):
                blocks = str(cells // BLOCK_CELLS)
                family.add_metric([model, str(BLOCK_CELLS), blocks, self._uses[model].cell_type, "True"], 1)
        return family
