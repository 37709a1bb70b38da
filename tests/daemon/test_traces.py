"""Spans of requests, made of their times at their ends."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from umaserve.core.requests import ChatTurn, Generate, Sampling
from umaserve.daemon.traces import Traces
from umaserve.sessions.caller import Caller
from umaserve.sessions.engine_api import Prepared
from umaserve.sessions.manager import SessionManager
from umaserve.sessions.session import Session

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
ARRIVED, NOW = 100.0, 109.0


class World:
    """A request with times of its own, and the spans that come of it."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self._traces = Traces(SimpleSpanProcessor(self._exporter), lambda: NOW)

    def session(self, traceparent: str = "", **fields: object) -> Session:
        manager = SessionManager(clock=lambda: ARRIVED, model="chat")
        caller = Caller("openai", "ip:127.0.0.1", traceparent=traceparent)
        return manager.start(Generate("r1", **{"prompt": "hello", **fields}), print, caller, ARRIVED)

    def spans(self, session: Session, end: str) -> dict[str, ReadableSpan]:
        self._traces.ended(session, end)
        found = {span.name: span for span in self._exporter.get_finished_spans()}
        assert len(found) == len(self._exporter.get_finished_spans())
        return found


@pytest.fixture
def world() -> World:
    return World()


def decoded(session: Session) -> Session:
    """It has gone through all parts."""
    session.preparing_at, session.prepared_at, session.started_at = 101.0, 102.0, 104.0
    session.first_made_at, session.last_made_at = 105.0, 108.5
    session.prepared = Prepared((1, 2, 3, 4, 5), 8, None)
    session.reused = 3
    session.generated += [7, 8]
    return session


def test_a_request_has_its_parts(world: World) -> None:
    spans = world.spans(decoded(world.session()), "stop")
    whole = spans["text_completion chat"]
    since_1970 = time.time() - NOW
    times = {
        name: (span.start_time / 1e9 - since_1970, span.end_time / 1e9 - since_1970) for name, span in spans.items()
    }
    expected = {
        "text_completion chat": (100, 109),
        "queue": (100, 104),
        "preparation": (101, 102),
        "prefill": (104, 105),
        "decode": (105, 108.5),
    }
    assert times.keys() == expected.keys()
    for name, (begun, ended) in expected.items():
        assert times[name] == pytest.approx((begun, ended), abs=1), name
        assert spans[name].end_time - spans[name].start_time == pytest.approx((ended - begun) * 1e9, abs=1000), name
    assert (whole.kind, whole.parent, whole.status.status_code) == (SpanKind.SERVER, None, StatusCode.UNSET)
    parts = [span for name, span in spans.items() if span is not whole]
    assert all(span.parent is not None and span.parent.span_id == whole.context.span_id for span in parts)


def test_attributes_follow_the_conventions(world: World) -> None:
    sampling = Sampling(temperature=0.5, seed=7)
    turns = (ChatTurn("user", "a secret"),)
    session = decoded(world.session(prompt=turns, max_tokens=8, sampling=sampling, model="gpt-4o", stop=("secret",)))
    told = dict(world.spans(session, "length")["chat chat"].attributes)
    assert told["gen_ai.response.time_to_first_chunk"] == pytest.approx(5.0)
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "umaserve",
        "gen_ai.request.model": "gpt-4o",
        "gen_ai.response.model": "chat",
        "gen_ai.response.id": "r1",
        "gen_ai.request.max_tokens": 8,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.95,
        "gen_ai.request.top_k": 40,
        "gen_ai.request.frequency_penalty": 0.0,
        "gen_ai.request.presence_penalty": 0.0,
        "gen_ai.request.seed": 7,
        "gen_ai.usage.input_tokens": 5,
        "gen_ai.usage.output_tokens": 2,
        "gen_ai.usage.cache_read.input_tokens": 3,
        "gen_ai.response.finish_reasons": ("length",),
        "umaserve.dialect": "openai",
        "umaserve.end": "length",
    }
    assert {name: told.get(name) for name in expected} == expected
    assert told.keys() == {*expected, "gen_ai.response.time_to_first_chunk"}
    assert "secret" not in str(told)


def test_a_request_that_was_refused_has_no_parts_but_the_queue(world: World) -> None:
    session = world.session()
    session.model = ""
    spans = world.spans(session, "queue_full")
    assert spans.keys() == {"text_completion", "queue"}
    whole = spans["text_completion"]
    assert (whole.status.status_code, whole.attributes["error.type"]) == (StatusCode.ERROR, "queue_full")


@pytest.mark.parametrize("end", ["abandoned", "replaced", "left", "cancelled"])
def test_what_its_client_ends_is_no_error(world: World, end: str) -> None:
    whole = world.spans(decoded(world.session()), end)["text_completion chat"]
    assert (whole.status.status_code, whole.attributes["umaserve.end"]) == (StatusCode.UNSET, end)
    assert "error.type" not in whole.attributes


def test_the_parent_is_the_callers(world: World) -> None:
    whole = world.spans(world.session(f"00-{TRACE}-{PARENT}-01"), "stop")["text_completion chat"]
    assert whole.parent is not None
    assert (f"{whole.context.trace_id:032x}", f"{whole.parent.span_id:016x}") == (TRACE, PARENT)


@pytest.mark.parametrize("header", ["nonsense", f"00-{'0' * 32}-{PARENT}-01", f"00-{TRACE}-{PARENT}-01, again", "\xff"])
def test_a_malformed_parent_is_none(world: World, header: str) -> None:
    assert world.spans(world.session(header), "stop")["text_completion chat"].parent is None


def test_what_the_parent_does_not_sample_is_not_made(world: World) -> None:
    assert world.spans(world.session(f"00-{TRACE}-{PARENT}-00"), "stop") == {}


def test_a_clients_words_are_cut(world: World) -> None:
    whole = world.spans(world.session(model="m" * 9999), "stop")["text_completion chat"]
    assert whole.attributes["gen_ai.request.model"] == "m" * 256


@pytest.mark.parametrize(("end", "status"), [("done", StatusCode.UNSET), ("bad_request", StatusCode.ERROR)])
def test_what_no_session_answers_is_one_span(end: str, status: StatusCode) -> None:
    exporter = InMemorySpanExporter()
    caller = Caller("openai", "ip:127.0.0.1", traceparent=f"00-{TRACE}-{PARENT}-01")
    Traces(SimpleSpanProcessor(exporter), lambda: NOW).answered("embeddings", "tiny", caller, ARRIVED, end)
    (span,) = exporter.get_finished_spans()
    assert (span.name, span.status.status_code) == ("embeddings tiny", status)
    assert span.end_time - span.start_time == pytest.approx((NOW - ARRIVED) * 1e9, abs=1000)
    assert (f"{span.context.trace_id:032x}", f"{span.parent.span_id:016x}") == (TRACE, PARENT)
    failed = {} if end == "done" else {"error.type": end}
    assert dict(span.attributes) == failed | {
        "gen_ai.operation.name": "embeddings",
        "gen_ai.provider.name": "umaserve",
        "gen_ai.request.model": "tiny",
        "umaserve.dialect": "openai",
        "umaserve.end": end,
    }


def test_without_an_endpoint_nothing_of_it_is_imported() -> None:
    code = "import sys, umaserve.cli, umaserve.daemon.server; print([m for m in sys.modules if 'opentelemetry' in m])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stdout == "[]\n", run.stderr
