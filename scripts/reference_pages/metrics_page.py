"""``docs/api/metrics.md``: every metric that Prometheus reads."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from markdown import MADE, escaped, prose, table
from prometheus_client.metrics import MetricWrapperBase

from umaserve.core.exposition import HELP, KEY_HELP, MODEL_HELP, exposition
from umaserve.core.metrics import ServingMetrics
from umaserve.daemon.vllm_metrics import vllm_metrics
from umaserve.dialects.llama_server.metrics import llama_metrics

INTRODUCTION = """\
# Reference of metrics

What `GET /metrics` of a daemon and of a relay tells Prometheus. `umaserve metrics` prints the daemon's without
`umaserve_` before their names. [Service](../guide/service.md) says what to watch.
"""


class Metric(NamedTuple):
    """A metric, as a table has it."""

    name: str
    kind: str
    about: str


PREFIXES = {
    "umaserve_model_": ("Each model", "Label `model`; `umaserve_model_state` also has the label `state`."),
    "umaserve_relay_key_": ("Each key of the relay", "Label `key`. A client sees its own; `/admin/metrics` has all."),
    "umaserve_relay_": ("The relay", ""),
    "umaserve": ("The daemon", ""),
}
"""What the metrics are of, by the first of these that their names begin with."""


def metrics_page() -> str:
    """The page's text."""
    metrics = ServingMetrics()
    names = dict.fromkeys(HELP, 0)
    told = _told(exposition(None, names, {"": dict.fromkeys(MODEL_HELP, 0)}, {"": dict.fromkeys(KEY_HELP, 0)}))
    by_prefix: dict[str, list[Metric]] = {prefix: [] for prefix in reversed(PREFIXES)}
    for metric in told:
        by_prefix[next(prefix for prefix in PREFIXES if metric.name.startswith(prefix))].append(metric)
    parts = [_part(*PREFIXES[prefix], _table(each)) for prefix, each in by_prefix.items()]
    counted = _part("The daemon: histograms, and counters with labels", "Times are in seconds.", _counted(metrics))
    parts.insert(1, counted)
    parts += [
        _part("llama-server's names", "With `--llama-metrics`.", _table(_told(llama_metrics({})))),
        _part(
            "vLLM's names",
            "With `--vllm-metrics`, by the label `model_name`.",
            _table(_told(vllm_metrics(metrics.registry, {}, {}))),
        ),
    ]
    return "\n".join([INTRODUCTION, MADE + "\n", *parts])


def _part(title: str, about: str, table: str) -> str:
    return "\n".join([f"## {title}\n", *([prose(about)] if about else []), table])


def _counted(metrics: ServingMetrics) -> str:
    rows = []
    for metric in metrics.registry._collector_to_names:
        assert isinstance(metric, MetricWrapperBase)
        (family,) = metric.describe()
        name = family.name + ("_total" if family.type == "counter" else "")
        labels = ", ".join(f"`{label}`" for label in metric._labelnames)
        rows.append([f"`{name}`", family.type, labels, escaped(family.documentation)])
    return table(["metric", "kind", "labels", "meaning"], rows)


def _told(page: bytes) -> list[Metric]:
    """The metrics of a page in Prometheus' text format."""
    text = page.decode()
    kinds = dict(re.findall(r"^# TYPE (\S+) (\w+)$", text, re.MULTILINE))
    return [Metric(name, kinds[name], about) for name, about in re.findall(r"^# HELP (\S+) (.+)$", text, re.MULTILINE)]


def _table(metrics: Iterable[Metric]) -> str:
    return table(["metric", "kind", "meaning"], [[f"`{name}`", kind, escaped(about)] for name, kind, about in metrics])
