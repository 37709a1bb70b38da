"""Traces that a daemon sends to an OpenTelemetry collector, which is the test's own."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from daemon import Daemon
from generate_wire import Conversation
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from program import Program, run

SECRET = ("--worker-secret", "not-so-secret-a-secret-at-all-0123")
PARTS = {"queue", "preparation", "prefill", "decode"}
OFTEN = {"OTEL_BSP_SCHEDULE_DELAY": "50", "UMA_THREADS": "1"}
WAIT_S = 30


class Collector:
    """Takes spans by OTLP over HTTP, and keeps them."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.services: set[str] = set()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                assert self.path == "/v1/traces"
                message = ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["Content-Length"])))
                for resource in message.resource_spans:
                    told = {one.key: one.value.string_value for one in resource.resource.attributes}
                    collector.services.add(told["service.name"])
                    for scope in resource.scope_spans:
                        collector.spans += scope.spans
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Nothing: pytest's output is not for it."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def of(self, trace: str, count: int) -> dict[str, Span]:
        """The spans of a trace by their names, once ``count`` are there."""
        deadline = time.monotonic() + WAIT_S
        while True:
            found = {span.name: span for span in list(self.spans) if span.trace_id.hex() == trace}
            if len(found) >= count:
                return found
            assert time.monotonic() < deadline, found
            time.sleep(0.02)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.close()


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    relay = Program(tmp_path_factory.mktemp("relay"), "relay", "--listen", "127.0.0.1:0", *SECRET)
    yield "http://" + relay.wait_for_line(r"listening at=(\S+)")
    assert relay.stop() == 0, relay.logs


@pytest.fixture(scope="module")
def traced(collector: Collector, relay: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    flags = ("--http", "127.0.0.1:0", "--otel-endpoint", collector.url, "--relay", relay, *SECRET)
    daemon = Daemon(tmp_path_factory.mktemp("traced"), *flags, env=OFTEN)
    yield daemon
    daemon.stop()
    assert "Traceback" not in daemon.logs, daemon.logs


def wait_for_workers(relay: str, count: int) -> None:
    deadline = time.monotonic() + WAIT_S
    while httpx.get(f"{relay}/health").json()["workers"] != count:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def ask(url: str, trace: str) -> None:
    body = {"prompt": "Once upon a time", "temperature": 0, "max_tokens": 3, "model": "default"}
    headers = {"traceparent": f"00-{trace}-00f067aa0ba902b7-01"}
    httpx.post(f"{url}/v1/completions", json=body, headers=headers, timeout=WAIT_S).raise_for_status()


def check(collector: Collector, trace: str, *, relayed: bool = False) -> None:
    spans = collector.of(trace, len(PARTS) + (3 if relayed else 1))
    above = bytes.fromhex("00f067aa0ba902b7")
    if relayed:
        (name,) = (name for name in spans if name.startswith("relay ") and name != "relay queue")
        relay = spans.pop(name)
        assert (relay.parent_span_id, spans.pop("relay queue").parent_span_id) == (above, relay.span_id)
        above = relay.span_id
    (name,) = spans.keys() - PARTS
    whole = spans.pop(name)
    assert name.startswith("text_completion ")
    assert whole.parent_span_id == above
    assert spans.keys() == PARTS
    for span in spans.values():
        assert span.parent_span_id == whole.span_id
        assert whole.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
        assert span.end_time_unix_nano <= whole.end_time_unix_nano
    told = {one.key: one.value.int_value for one in whole.attributes}
    assert told["gen_ai.usage.output_tokens"] == 3
    assert told["gen_ai.usage.input_tokens"] > 3
    assert abs(whole.end_time_unix_nano / 1e9 - time.time()) < 3600
    assert collector.services >= ({"umaserve", "umaserve-relay"} if relayed else {"umaserve"})


def test_a_request_is_a_part_of_its_callers_trace(traced: Daemon, collector: Collector) -> None:
    ask(f"http://{traced.http}", "1" * 32)
    check(collector, "1" * 32)


def test_a_relay_and_a_worker_pass_the_trace_on(
    traced: Daemon, collector: Collector, relay: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_for_workers(relay, 1)
    ask(relay, "2" * 32)
    check(collector, "2" * 32)
    flags = ("--listen", "127.0.0.1:0", "--otel-endpoint", collector.url)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", OFTEN["OTEL_BSP_SCHEDULE_DELAY"])
    front = Program(tmp_path, "relay", *flags, *SECRET)
    place = "http://" + front.wait_for_line(r"listening at=(\S+)")
    worker = Program(tmp_path, "worker", "--relay", place, *SECRET, "--backend", f"http://{traced.http}")
    wait_for_workers(place, 1)
    ask(place, "3" * 32)
    check(collector, "3" * 32, relayed=True)
    assert worker.stop() == front.stop() == 0, worker.logs + front.logs


def test_websockets_have_the_trace_of_their_handshake(traced: Daemon, collector: Collector) -> None:
    headers = {"traceparent": f"00-{'4' * 32}-00f067aa0ba902b7-01"}
    with Conversation(traced, additional_headers=headers) as client:
        client.send("config", prompt="Once upon a time", parameters={"max_tokens": 3})
        assert client.until("completion", "error")[-1]["type"] == "completion"
    check(collector, "4" * 32)


def test_a_collector_that_is_not_there_costs_nothing(own_daemon) -> None:
    daemon = own_daemon("--otel-endpoint", "http://127.0.0.1:9", env=OFTEN)
    for _ in range(2):
        assert daemon.ask(max_tokens=3)[-1]["event"] == "eos"
    assert daemon.stop() == 0, daemon.logs


def test_an_endpoint_without_the_extra_is_refused(tmp_path: Path) -> None:
    (tmp_path / "opentelemetry.py").write_text("raise ImportError('not here')")
    flags = ("--socket", str(tmp_path / "s"), "--otel-endpoint", "http://127.0.0.1:4318")
    refused = run(*flags, cwd=tmp_path)
    assert refused.returncode == 2
    assert "pip install 'umaserve[otel]'" in refused.stderr
