"""The dashboard and the alerts of ``conf/``, in Debian's Prometheus, which scrapes a daemon."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import httpx
import pytest
from daemon import Daemon

from umaserve.core.errors import Fault
from umaserve.core.exposition import HELP
from umaserve.settings.daemon import Config
from umaserve.settings.worker import WorkerConfig

if shutil.which("prometheus") is None or shutil.which("promtool") is None:
    pytest.skip("there is no Debian prometheus here: scripts/peers installs it", allow_module_level=True)

CONF = Path(__file__).parents[2] / "conf"
RULES, DASHBOARD = CONF / "prometheus-rules.yml", CONF / "grafana.json"
RULES_TEST = Path(__file__).parent / "prometheus" / "rules_test.yml"
SETTINGS = f"""
global: {{scrape_interval: 200ms, scrape_timeout: 200ms, evaluation_interval: 200ms}}
rule_files: ["{RULES}"]
scrape_configs: [{{job_name: umaserve, static_configs: [{{targets: ["%s"]}}]}}]
"""
NAME = re.compile(r"\bumaserve_\w+")
WAIT_S = 30


class Prometheus:
    """It scrapes ``daemon`` as often as it can."""

    def __init__(self, folder: Path, daemon: Daemon) -> None:
        (folder / "prometheus.yml").write_text(SETTINGS % daemon.http)
        self._log = folder / "log"
        paths = (f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}")
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                ["prometheus", *paths, "--web.listen-address=127.0.0.1:0"], stderr=log, stdin=subprocess.DEVNULL
            )
        (place,) = self.until(lambda: re.findall(r'msg="Listening on" address=(\S+)', self._log.read_text()))
        self._client = httpx.Client(base_url=f"http://{place}/api/v1/", timeout=WAIT_S)

    def until(self, condition: Callable[[], Any]) -> Any:
        """What ``condition`` returns, once that is true."""
        deadline = time.monotonic() + WAIT_S
        while not (found := condition()):
            assert self.process.poll() is None, self._log.read_text()
            assert time.monotonic() < deadline, f"never so\n{self._log.read_text()}"
            time.sleep(0.05)
        return found

    def query(self, expression: str) -> list[float]:
        reply = self._client.get("query", params={"query": expression}).json()
        assert reply["status"] == "success", f"{expression}: {reply}"
        return [float(one["value"][1]) for one in reply["data"]["result"]]

    def alerts(self) -> list[dict[str, Any]]:
        """All rules, as Prometheus has read them."""
        (group,) = self._client.get("rules").json()["data"]["groups"]
        return group["rules"]

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(WAIT_S)
        self._client.close()


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Prometheus, Daemon]]:
    """A daemon that has answered twice, each time between two scrapes."""
    folder = tmp_path_factory.mktemp("scraped")
    daemon = Daemon(folder, "--http", "127.0.0.1:0", "--vllm-metrics", env={"UMA_THREADS": "1"})
    (folder / "prometheus").mkdir()
    prometheus = Prometheus(folder / "prometheus", daemon)
    try:
        for count in (1, 2):
            assert daemon.ask(max_tokens=8, ignore_eos=True)[-1]["event"] == "eos"
            prometheus.until(lambda count=count: prometheus.query("sum(umaserve_requests_total)") == [count])
        yield prometheus, daemon
    finally:
        prometheus.stop()
        assert daemon.stop() == 0, daemon.logs
    assert "Traceback" not in daemon.logs, daemon.logs


def queries() -> list[str]:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    found = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    return [query.replace("$instance", ".*").replace("$__rate_interval", "1m") for query in found]


def test_each_query_of_the_dashboard_has_data(scraped: tuple[Prometheus, Daemon]) -> None:
    prometheus, _daemon = scraped
    found = {query: prometheus.query(query) for query in queries()}
    # A rate may be 0; a share or a quantile of nothing is no number.
    assert [query for query, values in found.items() if not values or any(value != value for value in values)] == []
    assert len(found) > 40


def test_all_metrics_are_read_under_their_names(scraped: tuple[Prometheus, Daemon]) -> None:
    prometheus, _daemon = scraped
    assert prometheus.query("vllm:num_requests_waiting") == [0]
    assert prometheus.query("histogram_quantile(1, vllm:e2e_request_latency_seconds_bucket)")[0] > 0


def test_no_alert_fires_where_all_is_well(scraped: tuple[Prometheus, Daemon]) -> None:
    prometheus, daemon = scraped
    prometheus.until(lambda: all(rule["health"] == "ok" for rule in prometheus.alerts()))
    assert {rule["name"]: rule["state"] for rule in prometheus.alerts() if rule["state"] != "inactive"} == {}
    page = httpx.get(f"http://{daemon.http}/metrics").text
    known = {*NAME.findall(page), *(f"umaserve_{name}" for name in HELP if name.startswith("relay_"))}
    asked = {name for rule in prometheus.alerts() for name in NAME.findall(rule["query"])}
    assert asked <= known


def test_each_alert_says_what_is_wrong_and_what_to_do(scraped: tuple[Prometheus, Daemon]) -> None:
    prometheus, daemon = scraped
    settings = {one.name for config in (Config, WorkerConfig) for one in fields(config)}
    ends = {fault.name.lower() for fault in Fault}
    page = httpx.get(f"http://{daemon.http}/metrics").text
    counted_later = {"umaserve_engine_ends_total", "threads_reason", "q8_0"}
    for rule in prometheus.alerts():
        told = rule["annotations"]
        assert told.keys() == {"summary", "description"}, rule["name"]
        words = set(re.findall(r"\b[a-z0-9]+_\w+\b", told["description"]))
        assert words <= settings | ends | counted_later | {*NAME.findall(page)}, rule["name"]


def test_each_alert_fires_when_it_should(scraped: tuple[Prometheus, Daemon]) -> None:
    prometheus, _daemon = scraped
    run = subprocess.run(["promtool", "test", "rules", str(RULES_TEST)], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    tested = re.findall(r"^  - name: (\w+)$", RULES_TEST.read_text(), re.MULTILINE)
    assert tested == [one["name"] for one in prometheus.alerts()]
    checked = subprocess.run(["promtool", "check", "rules", str(RULES)], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
