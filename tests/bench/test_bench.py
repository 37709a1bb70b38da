"""The load generator must count every token, however the bytes come, and nothing else; the rest is told from that."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import sys

import pytest
from frames import uds_frame, ws_frame
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Opcode

from bench import __main__ as bench_main
from bench import frontier, idle, sides, storm, wire, workload
from bench.conversations import CONVERSATIONS, SSE, UNIX_SOCKET, WEBSOCKET, ServerSentEvents
from bench.load import connected
from bench.processes import daemon, trace_of
from bench.report import spread
from bench.scenarios import PREFIX_TOKENS
from bench.trace import Stream, Trace

N_TOKENS = 3
HEADS = {
    WEBSOCKET: b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n",
    SSE: b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
}


def server_frame(payload: bytes, opcode: Opcode = Opcode.TEXT) -> bytes:
    return ws_frame(opcode, payload, masked=False)


def message(**fields) -> bytes:
    return server_frame(json.dumps(fields).encode())


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def sse(**content) -> bytes:
    return b"data: " + json.dumps(content).encode() + b"\n\n"


def event(reason: str | None, text: str = " a") -> bytes:
    return sse(choices=[{"text": text, "finish_reason": reason}], usage=None)


def said(delta: dict, reason: str | None = None) -> bytes:
    return sse(choices=[{"delta": delta, "finish_reason": reason}])


def sse_end(generated: int = N_TOKENS, prompt_tokens: int = 7) -> bytes:
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": generated}
    return sse(choices=[], usage=usage) + b"data: [DONE]\n\n"


ANSWERS = {
    UNIX_SOCKET: uds_frame({"event": "token", "text": "a"}) * N_TOKENS
    + uds_frame({"event": "eos", "reason": "length"}),
    WEBSOCKET: HEADS[WEBSOCKET]
    + message(type="init")
    + message(type="token", generated_text="a", finished=False)
    + server_frame(b"are you there?", Opcode.PING)
    + message(type="token", generated_text="a" * 200, finished=False)
    + message(type="token", generated_text="a" * 70_000, finished=False)
    + message(type="token", token="", finished=True)
    + message(type="completion", finish_reason="length"),
    # The second event lies in two chunks, the others share one.
    SSE: HEADS[SSE]
    + chunk(event(None) + event(None)[:9])
    + chunk(event(None)[9:])
    + chunk(b": still here\n\n" + event(None) + event("length", text="") + sse_end())
    + chunk(b""),
}


@pytest.mark.parametrize("dialect", CONVERSATIONS)
@given(data=st.data())
def test_every_token_is_counted_however_the_bytes_are_split(dialect, data):
    answer = ANSWERS[dialect]
    cuts = sorted(data.draw(st.sets(st.integers(1, len(answer) - 1), max_size=40)))
    conversation = CONVERSATIONS[dialect]("Hello", N_TOKENS)
    counts = [
        conversation.receive(answer[begin:end]) for begin, end in zip([0, *cuts], [*cuts, len(answer)], strict=True)
    ]
    assert (sum(counts), conversation.ended) == (N_TOKENS, True)


@pytest.mark.parametrize("dialect", CONVERSATIONS)
def test_every_token_is_counted_byte_by_byte(dialect):
    conversation = CONVERSATIONS[dialect]("Hello", N_TOKENS)
    counts = [conversation.receive(bytes([byte])) for byte in ANSWERS[dialect]]
    assert (sum(counts), max(counts), conversation.ended) == (N_TOKENS, 1, True)


def test_a_websocket_asks_after_the_handshake_answers_pings_and_takes_its_leave():
    conversation = CONVERSATIONS[WEBSOCKET]("Hello", N_TOKENS)
    assert conversation.outbox.endswith(b"\r\n\r\n")
    conversation.outbox = b""
    conversation.receive(HEADS[WEBSOCKET])
    assert b'"prompt":"Hello"' in conversation.outbox
    conversation.outbox = b""
    conversation.receive(ANSWERS[WEBSOCKET].removeprefix(HEADS[WEBSOCKET]))
    assert conversation.outbox == b"\x8a\x8e" + bytes(4) + b"are you there?" + b"\x88\x80" + bytes(4)


@pytest.mark.parametrize(
    ("dialect", "answer"),
    [
        (UNIX_SOCKET, uds_frame({"event": "error", "code": "E_BAD_REQUEST", "message": "no"})),
        (UNIX_SOCKET, uds_frame({"event": "eos", "reason": "stop"})),
        (WEBSOCKET, b"HTTP/1.1 403 Forbidden\r\n\r\n"),
        (WEBSOCKET, HEADS[WEBSOCKET] + message(type="error", error="invalid_request")),
        (WEBSOCKET, HEADS[WEBSOCKET] + message(type="completion", finish_reason="stop")),
        (WEBSOCKET, HEADS[WEBSOCKET] + server_frame(b"\x03\xe8", Opcode.CLOSE)),
        (SSE, b"HTTP/1.1 400 Bad Request\r\n\r\n"),
        (SSE, HEADS[SSE] + chunk(b'data: {"error":{}}\n\n')),
        (SSE, HEADS[SSE] + chunk(event("stop") + sse_end())),
        (SSE, HEADS[SSE] + chunk(event("length") + sse_end(N_TOKENS - 1))),
        (SSE, HEADS[SSE] + chunk(event("length")) + chunk(b"")),
    ],
)
def test_anything_but_a_whole_answer_is_an_error(dialect, answer):
    conversation = CONVERSATIONS[dialect]("Hello", N_TOKENS)
    with pytest.raises(ConnectionError, match=r"^(expected|not) "):
        conversation.receive(answer)


def test_an_answer_takes_its_last_chunk_from_the_connection_before_it_has_ended():
    conversation = ServerSentEvents("Hello", N_TOKENS)
    conversation.receive(ANSWERS[SSE].removesuffix(chunk(b"")))
    assert not conversation.ended
    assert conversation.receive(chunk(b"")) == 0
    assert (conversation.ended, conversation.prompt_tokens) == (True, 7)


def test_a_token_without_an_event_of_its_own_counts_at_the_end():
    conversation = ServerSentEvents("Hello", N_TOKENS)
    assert conversation.receive(HEADS[SSE] + chunk(event(None))) == 1
    assert conversation.receive(chunk(event("length", text="") + sse_end()) + chunk(b"")) == N_TOKENS - 1


def test_a_chat_begins_with_its_first_text_not_with_its_role():
    conversation = ServerSentEvents([{"role": "user", "content": "Hello"}], 2)
    head, _, body = conversation.outbox.partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v1/chat/completions ")
    assert json.loads(body)["messages"] == [{"role": "user", "content": "Hello"}]
    assert conversation.receive(HEADS[SSE] + chunk(said({"role": "assistant", "content": None}))) == 0
    assert conversation.receive(chunk(said({"content": "A"}))) == 1
    assert conversation.receive(chunk(said({"content": " b"}) + said({}, "length") + sse_end(2)) + chunk(b"")) == 1
    assert conversation.ended


@pytest.mark.parametrize("reuse", [False, True])
def test_what_was_computed_is_reused_only_where_the_request_allows_it(reuse):
    body = ServerSentEvents("Hello", 2, reuse=reuse).outbox.partition(b"\r\n\r\n")[2]
    assert json.loads(body)["cache_prompt"] is reuse


def answering(*answers: bytes):
    """A server that gives each request the next answer, on one connection, and then closes it."""

    async def serve(reader, writer):
        for answer in answers:
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(int(head.split(b"Content-Length: ")[1].split(b"\r\n")[0]))
            writer.write(answer)
        writer.close()

    return asyncio.start_server(serve, "127.0.0.1", 0)


def address_of(server) -> str:
    host, port = server.sockets[0].getsockname()
    return f"{host}:{port}"


def test_a_client_asks_again_on_its_connection_and_learns_when_it_is_gone():
    async def main():
        async with await answering(ANSWERS[SSE], ANSWERS[SSE]) as server:
            client = await connected(address_of(server))
            streams = [await client.ask(ServerSentEvents("Hello", N_TOKENS)) for _ in range(2)]
            assert [len(stream.tokens) for stream in streams] == [N_TOKENS, N_TOKENS]
            with pytest.raises(ConnectionResetError, match=r"^the "):
                await client.ask(ServerSentEvents("Hello", N_TOKENS))
            client.leave()

    asyncio.run(main())


def test_an_error_reply_is_the_reason_why_a_client_has_no_answer():
    async def main():
        async with await answering(b"HTTP/1.1 503 Service Unavailable\r\n\r\n") as server:
            client = await connected(address_of(server))
            with pytest.raises(ConnectionError, match=r"expected HTTP/1.1 200 , got b'HTTP/1.1 503 "):
                await client.ask(ServerSentEvents("Hello", N_TOKENS))

    asyncio.run(main())


# What is asked.


def test_the_storms_prompts_are_as_long_as_said_and_begin_differently():
    texts = list(itertools.islice(workload.endless_prompts(120), 60))
    assert {len(text.split()) for text in texts} == {120}
    assert len({tuple(text.split()[:4]) for text in texts}) == len(texts)
    assert texts[:5] == list(itertools.islice(workload.endless_prompts(120), 5))


def test_a_shared_prefix_is_the_same_for_all_and_what_follows_is_not():
    texts = workload.prefixed(150, workload.prompts(16))
    assert len({text.partition("\n\n")[0] for text in texts}) == 1
    assert len(texts[0].partition("\n\n")[0].split()) == 150
    assert len({text.partition("\n\n")[2] for text in texts}) == 16


def test_the_chats_questions_are_different_lines():
    questions = workload.chat_questions(30)
    assert len(set(questions)) == 30
    assert not any("\n" in question for question in questions)


# What is told of it.


def prompt(asked: float, ended: float, prompt_tokens: int = 160) -> Stream:
    return Stream(asked, [(asked + ended) / 2, ended], prompt_tokens)


def test_a_storms_gaps_are_told_from_those_before_it():
    calm = [1 + 0.01 * i for i in range(100)]
    # The storm begins at 2.0: the gap that it falls into is the first of its own.
    stream = Stream(0.9, [*calm, 2.3, 2.4, 2.5, 9.9, 11.0, 11.01])
    found = storm.found(Trace([stream, prompt(2.0, 6.0), prompt(2.0, 12.0, 100), prompt(6.0, 10.0)], 0.0))
    assert found.alone.max == pytest.approx(10)
    assert (found.storm.p50, found.storm.max) == (pytest.approx(310), pytest.approx(7400))
    # Of the one that took from 2 to 12, eight tenths lie in the storm's eight seconds.
    assert found.prompts == pytest.approx(2.8 / 8)
    assert found.prompt_tokens == pytest.approx((160 + 80 + 160) / 8)
    assert found.ttft_p50 == pytest.approx(2000)


def test_a_stream_that_stood_still_all_the_storm_has_its_gap_told():
    found = storm.found(Trace([Stream(0.9, [1.0, 1.1, 12.0]), prompt(2.0, 4.0)], 0.0))
    assert found.storm.max == pytest.approx(10_900)


def test_the_frontiers_points_are_medians_with_the_worst_of_all_pauses():
    gaps = [storm.Gaps(1, gap, worst) for gap, worst in ((50, 90), (60, 70), (40, 80))]
    runs = [storm.Found(gap, gap, 1.0, rate, 5.0) for gap, rate in zip(gaps, (100, 300, 200), strict=True)]
    lines = storm._lines({"umaserve, target 20 ms": runs, "umaserve, target 30 ms": runs[:1]})
    assert lines == {
        "umaserve": [
            frontier.Point("target 20 ms", 200, 50, 90),
            frontier.Point("target 30 ms", 100, 50, 90),
        ]
    }


POINTS = {"umaserve": [frontier.Point("target 30 ms", 120, 33, 60)], "llama-server": []}


def test_the_picture_is_a_png(tmp_path):
    pytest.importorskip("matplotlib")
    assert frontier.draw(POINTS, tmp_path / "x.png") == "Drawn in x.png.\n"
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_the_report_names_the_extra_that_brings_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert "extra `bench`" in frontier.draw(POINTS, tmp_path / "x.png")
    assert not (tmp_path / "x.png").exists()


def test_every_other_round_goes_backwards_and_what_is_not_there_is_left_out():
    order = []
    runs = {name: (lambda name=name: order.append(name) or name) for name in "ab"} | {"c": None}
    assert sides.rounds("it", runs, 3) == {"a": ["a"] * 3, "b": ["b"] * 3}
    assert "".join(order) == "abbaab"


def test_a_spread_is_the_median_with_its_ends():
    assert spread([3.0, 1.0, 200.0]) == "3.0 (1.0 to 200)"
    assert spread([1.0, math.nan]) == "-"


# The process.


def test_a_picture_that_cant_be_written_is_refused_before_anything_is_measured(tmp_path, capsys):
    with pytest.raises(SystemExit):
        bench_main.main(["--only", "storm", "--picture", str(tmp_path / "no" / "x.png")])
    assert "--picture: expected a file in a folder that exists" in capsys.readouterr().err


def test_clients_that_share_a_prefix_have_all_their_answers_from_a_daemon_behind_whose_wire_is_a_stand_in():
    with daemon("bench.standin") as at:
        streams = trace_of("bench.scenarios", "prefixes", at.http, 150, 16).streams
    assert [len(stream.tokens) for stream in streams] == [PREFIX_TOKENS] * 16


def test_without_llama_server_only_the_daemon_is_measured_and_the_report_says_so(monkeypatch, capsys, tmp_path):
    monkeypatch.delenv("LLAMA_SERVER", raising=False)
    assert sides.theirs(lambda at: at) is None
    measured = storm.Found(storm.Gaps(1, 2, 3), storm.Gaps(4, 5, 6), 7.0, 8.0, 9.0)
    monkeypatch.setattr(storm, "ours", lambda measure, **settings: lambda: measured)
    assert bench_main.main(["--only", "storm", "--repeats", "1", "--picture", str(tmp_path / "x.png")]) == 0
    said = capsys.readouterr().out
    lines = [line for line in said.splitlines() if "umaserve, target" in line]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    assert rows[0] == ["umaserve, target 30 ms", "1.0", "2.0", "3.0", "4.0", "5.0", "6.0"]
    assert len(rows) == 2 + len(storm.TARGETS_MS)
    assert "llama-server: not measured, LLAMA_SERVER is not set." in said


def test_the_wire_and_idle_connections_are_measured(monkeypatch, capfd):
    monkeypatch.setattr(wire, "_TOKENS", 40)
    monkeypatch.setattr(idle, "_CONNECTIONS", 20)
    assert bench_main.main(["--only", "wire", "--clients", "1", "--repeats", "1"]) == 0
    assert bench_main.main(["--only", "idle"]) == 0
    said = capfd.readouterr().out
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in said.splitlines() if line.startswith("|")]
    assert [row[1] for row in rows if row[0] == "1"] == [*CONVERSATIONS]
    assert all(float(cell.replace(",", "")) >= 0 for row in rows if row[0] == "1" for cell in row[2:])
    (idle_row,) = [row for row in rows if row[0] == "20"]
    assert float(idle_row[1]) > 0
