"""The contract uds-framed-json on the real daemon: framing, events, errors, cancelling, both modes."""

from __future__ import annotations

import json
import socket
import struct
import time

import pytest
from daemon import Daemon, Wire
from frames import uds_frame

LONG = {"max_tokens": 500, "ignore_eos": True}


def test_a_client_written_from_the_contract_alone(daemon: Daemon):
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.connect(daemon.path)
    request = json.dumps({"id": "a", "prompt": "Once upon a time", "max_tokens": 8}).encode()
    sock.sendall(struct.pack("<I", len(request)) + request)
    stream = sock.makefile("rb")
    text, event = "", {}
    while event.get("event") not in ("eos", "error"):
        (length,) = struct.unpack("<I", stream.read(4))
        event = json.loads(stream.read(length))
        text += event.get("text", "")
    assert event["event"] == "eos"
    assert event["reason"] == "length"
    assert len(text) > 8
    assert stream.read() == b""
    stream.close()
    sock.close()


def test_the_shape_of_the_events(daemon: Daemon):
    *tokens, end = daemon.ask(max_tokens=4, cache_prompt=False)
    assert [sorted(token) for token in tokens] == [["event", "id", "text", "token_id"]] * 4
    usage = {"prompt_tokens": 4, "completion_tokens": 4, "total_tokens": 8, "prefix_reused_tokens": 0}
    assert end == {"event": "eos", "id": "t", "reason": "length", "usage": usage}


def test_bytes_one_at_a_time_and_two_requests_in_one_write(daemon: Daemon):
    whole = daemon.text(max_tokens=6)
    with daemon.connect() as wire:
        for byte in uds_frame({"id": "1", "prompt": "Once upon a time", "max_tokens": 6, "keep_alive": True}):
            wire.sock.sendall(bytes([byte]))
        tokens = []
        while (event := wire.receive())["event"] == "token":
            tokens.append(event["text"])
        assert "".join(tokens) == whole
        wire.sock.sendall(
            uds_frame({"id": "2", "prompt": "Once upon a time", "max_tokens": 6})
            + uds_frame({"event": "cancel", "id": "2"})
        )
        assert wire.receive_until("eos")["reason"] == "cancelled"
        assert wire.receive() is None


def test_whole_text_in_one_event(daemon: Daemon):
    (end,) = daemon.ask(max_tokens=6, stream=False)
    assert end["text"] == daemon.text(max_tokens=6)
    assert end["usage"]["completion_tokens"] == 6


def test_metadata_on_every_event_of_its_request(daemon: Daemon):
    events = daemon.ask(max_tokens=3, metadata={"user": [1, "é"]})
    assert all(event["metadata"] == {"user": [1, "é"]} for event in events)


ERRORS = {
    "E_PROTO_INVALID_JSON": b'{"id": "x", "prompt": NaN}',
    "E_PROTO_BAD_REQUEST": {"id": "x", "prompt": "Hi", "temperature": "warm"},
    "E_LIMIT_PROMPT_TOO_LARGE": {"id": "x", "prompt": "a" * (256 * 1024 + 1)},
}


@pytest.mark.parametrize("code", ERRORS)
def test_each_error_is_sent_and_then_the_stream_ends(daemon: Daemon, code: str):
    with daemon.connect() as wire:
        wire.sock.sendall(uds_frame(ERRORS[code]))
        (error,) = wire.receive_all()
    assert error["event"] == "error"
    assert error["code"] == code
    if code != "E_PROTO_INVALID_JSON":
        assert error["id"] == "x"
        assert error["message"].startswith(("prompt: ", "temperature: expected a number from 0 to 10, got a string"))


def test_a_frame_too_large_is_refused_on_its_header_while_the_client_still_sends(daemon: Daemon):
    before = daemon.metrics()["rss_bytes"]
    with daemon.connect() as wire:
        wire.sock.sendall(struct.pack("<I", 2**31))
        for _ in range(64):
            wire.sock.sendall(b"x" * 65536)
        (error,) = wire.receive_all()
    assert error["code"] == "E_PROTO_FRAME_TOO_LARGE"
    assert str(2**31) in error["message"]
    assert daemon.metrics()["rss_bytes"] - before < 4 * 2**20


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"logit_bias": {"999999": 1}}, "logit_bias: expected token ids below 49152"),
        ({"grammar": "root ::= ("}, "grammar: expected a closing parenthesis"),
        ({"grammar": "root ::= " + "(" * 1000 + '"a"' + ")?" * 1000}, "grammar: expected rules, groups and"),
        ({"grammar": "root ::= root"}, "grammar: expected a grammar of at least one text"),
        ({"json_schema": {"type": "array", "uniqueItems": True}}, "json_schema.uniqueItems: expected"),
        ({"json_schema": {"$ref": "https://example.com/x"}}, "json_schema.$ref: expected"),
        ({"json_schema": {"$ref": "#/nowhere"}}, "json_schema: expected"),
        ({"max_tokens": 0}, "max_tokens: expected a whole number from 1, got 0"),
        ({"prompt": ""}, "prompt: expected a non-empty string"),
    ],
)
def test_what_only_the_engine_can_judge_is_a_bad_request_too(daemon: Daemon, fields: dict, words: str):
    (error,) = daemon.ask(**({"prompt": "Hi"} | fields))
    assert error["code"] == "E_PROTO_BAD_REQUEST"
    assert error["message"].startswith(words)


def test_a_second_request_is_busy_and_the_first_goes_on(daemon: Daemon):
    with daemon.connect() as wire:
        wire.send({"id": "first", "prompt": "Once", "max_tokens": 20, "ignore_eos": True})
        wire.send({"id": "second", "prompt": "Twice"})
        events = wire.receive_all()
    errors = [event for event in events if event["event"] == "error"]
    assert [(error["id"], error["code"]) for error in errors] == [("second", "E_PROTO_BUSY")]
    assert sum(event["event"] == "token" for event in events) == 20
    assert events[-1]["reason"] == "length"


def test_cancel_in_decode(daemon: Daemon):
    with daemon.connect() as wire:
        wire.send({"id": "c", "prompt": "Once", **LONG})
        wire.receive_until("token")
        wire.send({"event": "cancel", "id": "another"})
        wire.receive_until("token")
        wire.send({"event": "cancel", "id": "c"})
        end = wire.receive_until("eos")
        assert wire.receive() is None
    assert end["reason"] == "cancelled"
    assert 2 <= end["usage"]["completion_tokens"] < 500
    daemon.wait_until_quiet()


def test_cancel_in_prefill(daemon: Daemon):
    with daemon.connect() as wire:
        wire.send({"id": "c", "prompt": "one two three " * 1500, **LONG})
        daemon.wait_for(lambda values: values["kv_cells_used"] > 0)
        wire.send({"event": "cancel", "id": "c"})
        end = wire.receive()
    assert end["reason"] == "cancelled"
    assert end["usage"]["completion_tokens"] == 0
    assert daemon.wait_until_quiet()["kv_cells_used"] == 0


def test_cancel_while_waiting(own_daemon):
    daemon = own_daemon("--parallel", "1")
    with daemon.connect() as running, daemon.connect() as waiting:
        running.send({"id": "r", "prompt": "Once", **LONG})
        running.receive_until("token")
        waiting.send({"id": "w", "prompt": "Twice", **LONG})
        daemon.wait_for(lambda values: values["waiting_sessions"] == 1)
        waiting.send({"event": "cancel", "id": "w"})
        assert waiting.receive()["reason"] == "cancelled"
        assert daemon.metrics()["active_sessions"] == 1
        running.receive_until("token")


@pytest.mark.parametrize("prompt", ["Once", "one two three " * 1500], ids=["in decode", "in prefill"])
def test_a_client_that_goes_away_frees_its_sequence(daemon: Daemon, prompt: str):
    with daemon.connect() as wire:
        wire.send({"id": "g", "prompt": prompt, **LONG})
        daemon.wait_for(lambda values: values["kv_cells_used"] > 0)
    ticks = daemon.metrics()["batch_calls_total"]
    assert daemon.wait_until_quiet()["batch_calls_total"] - ticks <= 2


def test_a_client_that_only_finished_sending_gets_its_answer(daemon: Daemon):
    with daemon.connect() as wire:
        wire.send({"id": "h", "prompt": "Once", "max_tokens": 5})
        wire.sock.shutdown(socket.SHUT_WR)
        assert wire.receive_all()[-1]["reason"] == "length"


@pytest.mark.parametrize("fields", [{"max_tokens": 1}, {"grammar": "root ::= ("}], ids=["eos", "error"])
def test_the_last_words_reach_a_client_that_finishes_sending_at_any_time(daemon: Daemon, fields: dict):
    for round_ in range(40):
        with daemon.connect() as wire:
            wire.send({"id": "h", "prompt": "Once", **fields})
            time.sleep(round_ % 8 * 0.002)
            wire.sock.shutdown(socket.SHUT_WR)
            assert wire.receive_all()[-1]["event"] in ("eos", "error"), round_


def test_keep_alive_by_flag_and_by_field(own_daemon):
    daemon = own_daemon("--keep-alive")
    with daemon.connect() as wire:
        for id_ in ("1", "2"):
            wire.send({"id": id_, "prompt": "Once", "max_tokens": 2})
            assert wire.receive_until("eos")["id"] == id_
        wire.send({"type": "metrics", "keep_alive": True})
        assert wire.receive()["event"] == "metrics"
        wire.send({"id": "3", "prompt": "Once", "max_tokens": 2, "keep_alive": False})
        assert wire.receive_until("eos")["id"] == "3"
        assert wire.receive() is None
    with daemon.connect() as wire:
        wire.send({"type": "metrics"})
        assert [event["event"] for event in wire.receive_all()] == ["metrics"]


METRICS = [
    "state",
    "model",
    "uptime_s",
    "active_sessions",
    "waiting_sessions",
    "sessions_total",
    "rejected_total",
    "tokens_generated_total",
    "prompt_tokens_total",
    "prefix_reused_tokens_total",
    "recomputed_tokens_total",
    "preemptions_total",
    "batch_calls_total",
    "batch_sessions_total",
    "last_batch_size",
    "longest_sequence_tokens",
    "decode_ms_last",
    "decode_ms_ewma",
    "decode_ms_min",
    "decode_ms_max",
    "ttft_ms_p50",
    "ttft_ms_p95",
    "tbt_ms_p50",
    "tbt_ms_p95",
    "queue_ms_p95",
    "slo_ttft_attained_ratio",
    "slo_tbt_attained_ratio",
    "ticks_over_budget_total",
    "prefill_throttled_ticks_total",
    "drafts_total",
    "draft_tokens_total",
    "draft_tokens_accepted_total",
    "kv_cells_used",
    "kv_cells_cached",
    "kv_cells_total",
    "host_cache_bytes",
    "disk_cache_bytes",
    "disk_cache_errors_total",
    "disk_cache_hits_total",
    "disk_cache_tokens_total",
    "threads",
    "threads_reason",
    "spoken_answers",
    "speech_seconds_total",
    "large_input_bytes",
    "stuck_threads",
    "rss_bytes",
    "rx_bytes_total",
    "tx_bytes_total",
    "tx_stalled_sessions",
]


def test_metrics_are_flat_and_close_the_connection(daemon: Daemon):
    daemon.text(max_tokens=3)
    with daemon.connect() as wire:
        wire.send({"type": "metrics"})
        (values,) = wire.receive_all()
    assert set(METRICS) <= set(values)
    # Beside the contract's flat names.
    of_models = values.pop("models")
    assert list(of_models) == [values["model"]]
    assert all(isinstance(value, int | float | str) for value in values.values())
    assert values["state"] == "ready"
    assert values["model"].startswith("SmolLM2-135M")
    assert values["tokens_generated_total"] > 0
    assert values["decode_ms_min"] <= values["decode_ms_ewma"] <= values["decode_ms_max"]


class Lines:
    """A client of the newline mode."""

    def __init__(self, daemon: Daemon):
        self.wire = Wire(daemon.path)
        self.file = self.wire.sock.makefile("rwb")

    def say(self, text: str | bytes) -> None:
        self.file.write(text if isinstance(text, bytes) else text.encode() + b"\n")
        self.file.flush()

    def line(self) -> str:
        return self.file.readline().decode()


def test_newline_mode(own_daemon):
    daemon = own_daemon("--protocol", "newline", "--max-tokens", "8", wait=False)
    daemon.wait_for_socket()
    lines = Lines(daemon)
    lines.say("metrics")
    assert json.loads(lines.line())["state"] in ("loading", "ready")
    lines.say("My favourite colour is")
    answer = lines.line()
    assert len(answer) > 5
    lines.say("")
    assert lines.line().startswith("error: E_PROTO_BAD_REQUEST: prompt: expected a non-empty string")
    lines.say(b"\xff\n")
    assert lines.line().startswith("error: E_PROTO_BAD_REQUEST: prompt: expected UTF-8")
    # Several lines at once are answered one after the other, also when the client then stops sending.
    lines.say(b"My favourite colour is\nMy favourite colour is\r\n")
    lines.wire.sock.shutdown(socket.SHUT_WR)
    assert [lines.line(), lines.line(), lines.line()] == [answer, answer, ""]
    last = Lines(daemon)
    last.say(b"My favourite colour is")
    last.wire.sock.shutdown(socket.SHUT_WR)
    assert last.line() == answer


def test_a_line_too_long(own_daemon):
    daemon = own_daemon("--protocol", "newline", "--max-prompt-bytes", "100", "--max-frame-bytes", "1000", wait=False)
    daemon.wait_for_socket()
    lines = Lines(daemon)
    lines.say("x" * 101)
    assert lines.line() == "error: E_LIMIT_PROMPT_TOO_LARGE: prompt: expected at most 100 bytes, got 101\n"
    lines.say(b"x" * 1001)
    assert lines.line() == "error: E_PROTO_FRAME_TOO_LARGE: line: expected at most 1000 bytes, got more\n"
    assert lines.line() == ""


def test_requests_wait_while_the_model_loads(own_daemon):
    daemon = own_daemon(wait=False)
    daemon.wait_for_socket()
    with daemon.connect() as wire:
        wire.send({"id": "early", "prompt": "Once", "max_tokens": 3})
        values = daemon.metrics()
        assert values["state"] == "loading"
        assert 0 <= values["load_progress"] <= 1
        assert set(METRICS) <= set(values)
        assert values["kv_cells_total"] == 0
        assert wire.receive_until("eos", "error")["reason"] == "length"
