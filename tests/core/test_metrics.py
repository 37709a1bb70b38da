"""Percentiles and tick times, against values worked out by hand."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from umaserve.core.errors import Fault
from umaserve.core.exposition import HELP, MODEL_HELP, MODEL_STATES, exposition
from umaserve.core.metrics import WATCHED_ENDS, WINDOW, Of, ServingMetrics, Share, TickTimes, Window
from umaserve.relay.pool.outcomes import COUNTED
from umaserve.system.memory import resident_bytes

# A busy box makes no test fail.

UDS, OPENAI = Of("uds", "chat"), Of("openai", "code")


def window(milliseconds: list[float]) -> Window:
    window = Window()
    for ms in milliseconds:
        window.add(ms / 1000)
    return window


PERCENTILES = [
    # The nearest rank: the smallest value that at least so many percent do not exceed.
    ([], 50, 0.0),
    ([7], 0, 7),
    ([7], 50, 7),
    ([7], 100, 7),
    ([1, 2], 50, 1),
    ([1, 2], 51, 2),
    ([1, 2, 3], 50, 2),
    ([15, 20, 35, 40, 50], 5, 15),
    ([15, 20, 35, 40, 50], 30, 20),
    ([15, 20, 35, 40, 50], 40, 20),
    ([50, 15, 40, 20, 35], 41, 35),
    (list(range(1, 101)), 95, 95),
    (list(range(1, 101)), 99, 99),
    (list(range(1, 21)), 95, 19),
    (list(range(1, 22)), 95, 20),
]


@pytest.mark.parametrize(("values", "percent", "expected"), PERCENTILES)
def test_percentiles_are_of_the_nearest_rank(values: list[float], percent: float, expected: float) -> None:
    assert window(values).percentile(percent) == expected


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=200), st.integers(1, 100))
def test_a_percentile_is_the_smallest_value_that_so_many_do_not_exceed(values: list[int], percent: int) -> None:
    found = window(values).percentile(percent)
    assert found in values
    assert sum(value <= found for value in values) * 100 >= percent * len(values)
    assert sum(value < found for value in values) * 100 < percent * len(values)


def test_a_window_forgets_the_oldest() -> None:
    full = window([1000.0] * WINDOW)
    for _ in range(WINDOW // 2):
        full.add(0.001)
    assert (full.percentile(50), full.percentile(51)) == (1.0, 1000.0)
    for _ in range(WINDOW // 2):
        full.add(0.001)
    assert full.percentile(100) == 1.0


def test_tick_times() -> None:
    times = TickTimes()
    assert (times.count, times.last, times.ewma, times.min, times.max) == (0, 0, 0, 0, 0)
    times.add(0.020)
    assert (times.count, times.last, times.ewma, times.min, times.max) == (1, 20, 20, 20, 20)
    times.add(0.010)
    assert (times.count, times.last, times.ewma, times.min, times.max) == (2, 10, 19, 10, 20)
    times.add(0.030)
    assert (times.count, times.last, times.min, times.max) == (3, 30, 10, 30)
    assert times.ewma == pytest.approx(20.1)


def test_a_share_is_of_the_latest_and_whole_where_nothing_was_missed() -> None:
    share = Share()
    assert share.ratio == 1.0
    for value in (True, False, False):
        share.add(value)
    assert share.ratio == 0.3333
    for _ in range(WINDOW - 1):
        share.add(True)
    assert share.ratio == round(1 - 1 / WINDOW, 4)


def test_the_snapshot_is_flat_and_rounded() -> None:
    metrics = ServingMetrics()
    metrics.tokens_generated = 3
    metrics.observe_tick(0.0123456789, 3, 2, over_budget=True, throttled=False)
    metrics.observe_first_token(UDS, 0.25)
    metrics.observe_start(UDS, 0.125)
    snapshot = metrics.snapshot()
    assert snapshot["tokens_generated_total"] == 3
    assert snapshot["decode_ms_last"] == 12.346
    assert (snapshot["batch_calls_total"], snapshot["last_batch_size"]) == (1, 3)
    assert snapshot["batch_sessions_total"] == 2
    assert (snapshot["ticks_over_budget_total"], snapshot["prefill_throttled_ticks_total"]) == (1, 0)
    assert snapshot["queue_ms_p95"] == 125.0
    assert (snapshot["ttft_ms_p50"], snapshot["ttft_ms_p95"], snapshot["tbt_ms_p50"]) == (250.0, 250.0, 0.0)
    assert all(isinstance(value, int | float | str) for value in snapshot.values())


def test_the_mean_time_of_a_request_follows_the_latest_and_skips_what_never_started() -> None:
    metrics = ServingMetrics()
    metrics.observe_end(UDS, "shutting_down", 0, 0, 1.0, 0.0)
    assert metrics.request_s == 0
    metrics.observe_end(UDS, "stop", 1, 1, 9.0, 2.0)
    assert metrics.request_s == 2.0
    metrics.observe_end(OPENAI, "stop", 1, 1, 9.0, 4.0)
    assert metrics.request_s == pytest.approx(2.2)
    metrics.observe_end(OPENAI, "cancelled", 0, 0, 1.0, 0.0)
    assert metrics.request_s == pytest.approx(2.2)


# What Prometheus reads.


def exposed(metrics: ServingMetrics, values: dict[str, int | float | str]) -> dict[str, Metric]:
    text = exposition(metrics.registry, {**metrics.snapshot(), **values}).decode()
    families = list(text_string_to_metric_families(text))
    assert len({family.name for family in families}) == len(families), "no name comes twice"
    assert all(family.name.startswith("umaserve") and family.documentation for family in families)
    return {family.name: family for family in families}


def sample(family: Metric, name: str, **labels: str) -> float:
    (value,) = [one.value for one in family.samples if one.name == name and one.labels == labels]
    return value


def test_the_exposition_has_each_flat_value_by_its_kind() -> None:
    metrics = ServingMetrics()
    metrics.tokens_generated = 3
    families = exposed(metrics, {"rss_bytes": 12345, "uptime_s": 0.25, "model": 'a "name"\\', "state": "ready"})
    assert (families["umaserve_tokens_generated"].type, families["umaserve_rss_bytes"].type) == ("counter", "gauge")
    assert sample(families["umaserve_tokens_generated"], "umaserve_tokens_generated_total") == 3
    assert sample(families["umaserve_rss_bytes"], "umaserve_rss_bytes") == 12345
    assert sample(families["umaserve_uptime_s"], "umaserve_uptime_s") == 0.25
    assert sample(families["umaserve_info"], "umaserve_info", model='a "name"\\', state="ready") == 1
    cells = exposed(metrics, {"kv_cells_total": 400})["umaserve_kv_cells_total"]
    assert (cells.type, sample(cells, "umaserve_kv_cells_total")) == ("gauge", 400), "cells are no events"
    for name, value in metrics.snapshot().items():
        family = families[f"umaserve_{name}".removesuffix("_total")]
        assert sample(family, f"umaserve_{name}") == value


HISTOGRAMS = {
    "umaserve_queue_seconds": ServingMetrics.observe_start,
    "umaserve_time_to_first_token_seconds": ServingMetrics.observe_first_token,
    "umaserve_time_between_tokens_seconds": ServingMetrics.observe_next_token,
    "umaserve_request_seconds": lambda metrics, of, seconds: metrics.observe_end(of, "stop", 1, 1, seconds, 0.01),
}


@pytest.mark.parametrize("name", HISTOGRAMS)
def test_histograms_are_by_dialect_and_model(name: str) -> None:
    metrics = ServingMetrics()
    for of, seconds in ((UDS, 0.02), (UDS, 1.5), (OPENAI, 0.3)):
        HISTOGRAMS[name](metrics, of, seconds)
    family = exposed(metrics, {})[name]
    assert family.type == "histogram"
    assert sample(family, f"{name}_count", **UDS._asdict()) == 2
    assert sample(family, f"{name}_sum", **UDS._asdict()) == pytest.approx(1.52)
    assert sample(family, f"{name}_count", **OPENAI._asdict()) == 1
    buckets = [one.value for one in family.samples if one.name.endswith("_bucket") and one.labels["dialect"] == "uds"]
    assert buckets == sorted(buckets)
    assert sample(family, f"{name}_bucket", **UDS._asdict(), le="+Inf") == 2
    assert sample(family, f"{name}_bucket", **UDS._asdict(), le="0.5") == 1


def test_counters_are_by_dialect_model_and_how_a_request_ended() -> None:
    metrics = ServingMetrics()
    metrics.observe_end(UDS, "stop", 5, 7, 1.0, 1.0)
    metrics.observe_end(UDS, "stop", 1, 2, 1.0, 1.0)
    metrics.observe_end(OPENAI, "timed_out", 3, 0, 1.0, 1.0)
    families = exposed(metrics, {})
    requests = families["umaserve_requests"]
    assert requests.type == "counter"
    assert sample(requests, "umaserve_requests_total", **UDS._asdict(), end="stop") == 2
    assert sample(requests, "umaserve_requests_total", **OPENAI._asdict(), end="timed_out") == 1
    for name, expected in (("prompt", 6), ("completion", 9)):
        family = families[f"umaserve_request_{name}_tokens"]
        assert sample(family, f"umaserve_request_{name}_tokens_total", **UDS._asdict()) == expected


def test_refusals_and_failures_of_a_loaded_model_count_from_0_on() -> None:
    metrics = ServingMetrics(["uds", "openai"])
    metrics.begin("chat")
    metrics.observe_end(UDS, "queue_full", 0, 0, 0.0, 0.0)
    metrics.begin("chat")
    requests = exposed(metrics, {})["umaserve_requests"]
    found = {tuple(one.labels.values()): one.value for one in requests.samples if one.name.endswith("_total")}
    expected = {(dialect, "chat", end): 0 for dialect in ("uds", "openai") for end in WATCHED_ENDS}
    named = {(one.labels["dialect"], one.labels["model"], one.labels["end"]) for one in requests.samples}
    assert named == expected.keys()
    assert sum(found.values()) == sample(requests, "umaserve_requests_total", **UDS._asdict(), end="queue_full") == 1


def test_the_ends_that_alerts_and_the_dashboard_ask_for_are_among_them() -> None:
    conf = Path(__file__).parents[2] / "conf"
    text = "".join((conf / name).read_text() for name in ("prometheus-rules.yml", "grafana.json"))
    asked = {end for ends in re.findall(r'end=~\\?"([a-z_|]+)', text) for end in ends.split("|")}
    assert "queue_full" in asked
    assert asked <= {*WATCHED_ENDS}
    assert {*WATCHED_ENDS} <= {fault.name.lower() for fault in Fault}


def test_ticks_are_a_histogram_too() -> None:
    metrics = ServingMetrics()
    metrics.observe_tick(0.02, 1, 1, over_budget=False, throttled=False)
    family = exposed(metrics, {})["umaserve_tick_seconds"]
    assert (family.type, sample(family, "umaserve_tick_seconds_count")) == ("histogram", 1)


def test_each_metric_is_explained() -> None:
    assert ServingMetrics().snapshot().keys() <= HELP.keys()
    assert {f"relay_{name}_total" for name in COUNTED} <= HELP.keys()
    page = exposition(None, {"connections": 1, "model": "a"}).decode()
    assert f"# HELP umaserve_connections {HELP['connections']}" in page


def test_the_exposition_has_families_of_models() -> None:
    chat = {"state": "loaded", **{name: 3 for name in MODEL_HELP if name != "state"}}
    odd = {**chat, "state": "failed", "tokens_generated_total": 0}
    page = exposition(None, {}, {"chat": chat, 'a"b\\': odd}).decode()
    families = {family.name: family for family in text_string_to_metric_families(page)}
    for name, about in MODEL_HELP.items():
        family = families[f"umaserve_model_{name if name == 'kv_cells_total' else name.removesuffix('_total')}"]
        assert family.documentation == about
        assert {sample.labels["model"] for sample in family.samples} == {"chat", 'a"b\\'}
    states = {
        (one.labels["model"], one.labels["state"]) for one in families["umaserve_model_state"].samples if one.value
    }
    assert states == {("chat", "loaded"), ('a"b\\', "failed")}
    assert len(families["umaserve_model_state"].samples) == 2 * len(MODEL_STATES)
    made = {one.labels["model"]: one.value for one in families["umaserve_model_tokens_generated"].samples}
    assert made == {"chat": 3, 'a"b\\': 0}


def test_an_exposition_leaves_nothing_behind() -> None:
    metrics = ServingMetrics()
    assert exposed(metrics, {"connections": 1}).keys() == exposed(metrics, {"connections": 2}).keys()


def test_resident_bytes_are_told_without_a_descriptor_left(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_more(*_: object) -> str:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(Path, "read_text", no_more)
    assert resident_bytes() > 2**20


def test_resident_bytes_are_whole_pages_of_this_process() -> None:
    resident = resident_bytes()
    # An interpreter with its libraries is at least so large, and no test needs more than the most.
    assert 5 * 2**20 < resident < 2**40
    assert resident % os.sysconf("SC_PAGE_SIZE") == 0


def test_resident_bytes_of_children_count_until_they_end() -> None:
    command = [sys.executable, "-c", "print(flush=True); input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert resident_bytes([child.pid]) > resident_bytes() + 2**20
    assert resident_bytes([child.pid]) < resident_bytes() + 2**20
