"""Slow and hostile clients on the real daemon: none of them costs the others more than its share."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import socket
import stat
import struct
import threading
import time

import pytest
from daemon import Daemon, Wire, stands_still
from frames import uds_frame

from umaserve.sessions.speculation import MAX_DRAFT_TOKENS
from umaserve.system.descriptors import OWN_DESCRIPTORS

LONG = {"max_tokens": 500, "ignore_eos": True}
SMALL_BUFFERS = ("--tx-high-water", "1KiB", "--max-tokens", "2000", "--n-ctx", "4096")


def read_nothing(daemon: Daemon, tokens: int = 1500):
    """A client that asked for more than all buffers hold, and does not read."""
    wire = daemon.connect()
    # Metadata makes each event some 1,100 bytes, so that the kernel's buffers fill in a second or two.
    wire.send({"id": "s", "prompt": "Once", "max_tokens": tokens, "ignore_eos": True, "metadata": {"x": "y" * 1000}})
    return wire


def test_a_stopped_reader_stops_its_own_stream_only_and_goes_on_where_it_was(own_daemon):
    daemon = own_daemon(*SMALL_BUFFERS)
    with read_nothing(daemon, 250) as slow:
        values = daemon.wait_for(lambda values: values["tx_stalled_sessions"] == 1)
        generated = values["tokens_generated_total"]
        assert generated < 250
        assert daemon.ask("Once", max_tokens=20, ignore_eos=True)[-1]["reason"] == "length"
        # One tick of the stopped stream was under way, which may have had guesses.
        assert daemon.metrics()["tokens_generated_total"] <= generated + 20 + 1 + MAX_DRAFT_TOKENS
        events = slow.receive_all()
    *tokens, end = events
    assert end["usage"]["completion_tokens"] == len(tokens) == 250
    alone = daemon.ask("Once", max_tokens=100, ignore_eos=True)
    assert [t["token_id"] for t in tokens[:100]] == [t["token_id"] for t in alone[:-1]]
    daemon.wait_until_quiet()


def test_a_stopped_reader_can_leave(own_daemon):
    daemon = own_daemon(*SMALL_BUFFERS)
    with read_nothing(daemon):
        daemon.wait_for(lambda values: values["tx_stalled_sessions"] == 1)
    assert daemon.wait_until_quiet()["tx_stalled_sessions"] == 0


def test_a_stopped_reader_is_closed_after_the_idle_timeout(own_daemon):
    daemon = own_daemon(*SMALL_BUFFERS, "--idle-timeout", "1")
    with read_nothing(daemon):
        daemon.wait_for(lambda values: values["tx_stalled_sessions"] == 1)
        daemon.wait_until_quiet()
    assert "the peer read too little" in daemon.logs


@pytest.mark.parametrize(
    "start", [b"", b"\x40", uds_frame(b"x" * 40)[:20]], ids=["nothing", "half a header", "half a frame"]
)
def test_silence_is_closed(own_daemon, start: bytes):
    daemon = own_daemon("--idle-timeout", "0.3")
    with daemon.connect() as wire:
        wire.sock.sendall(start)
        assert wire.receive() is None


def test_a_byte_now_and_then_is_silence_too(own_daemon):
    daemon = own_daemon("--idle-timeout", "0.5")
    with daemon.connect() as wire:
        wire.sock.settimeout(0.1)
        for byte in uds_frame(b" " * 200):
            wire.sock.send(bytes([byte]))
            try:
                assert wire.sock.recv(1) == b""
                return
            except TimeoutError:
                continue
    raise AssertionError("a client that trickles was never closed")


def test_a_running_request_is_no_silence(own_daemon):
    daemon = own_daemon("--idle-timeout", "0.2")
    assert daemon.ask("Once", max_tokens=100, ignore_eos=True)[-1]["reason"] == "length"


def test_a_flood_of_requests_is_answered_in_bounded_memory(daemon: Daemon):
    before = daemon.metrics()["rss_bytes"]
    with daemon.connect() as wire:
        wire.send({"id": "r", "prompt": "Once", **LONG})
        wire.receive_until("token")
        flood = uds_frame({"id": "f", "prompt": "Twice"}) * 100
        sender = threading.Thread(target=send_for_ever, args=[wire, flood])
        sender.start()
        # The daemon stops reading from one who does not read.
        daemon.wait_for(stands_still("rx_bytes_total"))
        assert sender.is_alive()
        assert daemon.ask("Thrice", max_tokens=5, ignore_eos=True)[-1]["reason"] == "length"
        assert daemon.metrics()["rss_bytes"] - before < 8 * 2**20
        wire.sock.shutdown(socket.SHUT_RDWR)
        sender.join()
    daemon.wait_until_quiet()


def send_for_ever(wire: Wire, data: bytes) -> None:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        while True:
            wire.sock.sendall(data)


def test_more_sessions_than_the_limit(own_daemon):
    daemon = own_daemon("--max-sessions", "3")
    wires = [daemon.connect() for _ in range(3)]
    with daemon.connect() as refused:
        (error,) = refused.receive_all()
    assert error["code"] == "E_LIMIT_SESSIONS"
    assert "3 connections are open" in error["message"]
    wires.pop().close()
    values = daemon.wait_for(lambda values: values["event"] == "metrics")
    assert values["rejected_total"] >= 1
    for wire in wires:
        wire.close()


def test_out_of_descriptors_accepting_pauses_and_comes_back(own_daemon):
    limit = OWN_DESCRIPTORS
    daemon = own_daemon(preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit)))
    wires = [daemon.connect() for _ in range(limit + 10)]
    started = time.monotonic()
    while "accepting connections is paused" not in daemon.logs:
        assert time.monotonic() - started < 30, daemon.logs
        time.sleep(0.05)
    assert daemon.logs.count("accepting connections is paused") == 1
    # Who came in is served, though nothing can be opened for it.
    wires[0].send({"id": "first", "prompt": "Once", "max_tokens": 2})
    assert wires[0].receive_until("eos", "error")["event"] == "eos"
    for wire in wires:
        wire.close()
    assert daemon.ask("Once", max_tokens=2)[-1]["event"] == "eos"


def test_a_thousand_sessions_leave_nothing_behind(daemon: Daemon):
    descriptors = f"/proc/{daemon.process.pid}/fd"

    def many(n: int) -> None:
        """Connect ``n`` times; every second connection asks for something."""
        for index in range(n):
            with daemon.connect() as wire:
                if index % 4 == 0:
                    wire.send({"id": "m", "prompt": "Hi", "max_tokens": 1})
                    wire.receive_until("eos")
                elif index % 4 == 1:
                    wire.send({"id": "m", "prompt": "Hi", **LONG})
                    wire.receive_until("token")
                elif index % 4 == 2:
                    wire.sock.sendall(b"\x10\0\0\0half")

    others = daemon.metrics()["connections"]
    many(200)  # caches and pools have their size after this
    before = daemon.wait_until_quiet()
    open_before = len(os.listdir(descriptors))
    many(1000)
    after = daemon.wait_until_quiet()
    daemon.wait_for(lambda values: values["connections"] <= others)
    assert len(os.listdir(descriptors)) <= open_before + 1
    assert after["kv_cells_used"] == 0
    assert after["rss_bytes"] - before["rss_bytes"] < 8 * 2**20
    assert after["sessions_total"] - before["sessions_total"] >= 500


def test_the_socket_is_for_its_owner_and_group(daemon: Daemon):
    assert stat.S_IMODE(os.stat(daemon.path).st_mode) == 0o660


def test_the_peer_is_known_and_logged(daemon: Daemon):
    daemon.ask("Once", max_tokens=1, **{"id": "who-asks"})
    assert any("request=who-asks" in line and f"peer=uid:{os.getuid()} " in line for line in daemon.logs.splitlines())


def test_an_id_cannot_forge_a_line_of_the_log(daemon: Daemon):
    daemon.ask("Once", max_tokens=1, **{"id": "x\n2026-01-01T00:00:00 ERROR forged"})
    assert not any(line.startswith("2026-01-01") for line in daemon.logs.splitlines())


SEEDS = [
    uds_frame({"id": "a", "prompt": "Once upon a time", "max_tokens": 3}),
    uds_frame({"id": "a", "prompt": "Hi", "chat": True, "max_tokens": 3, "temperature": 0.5, "stop": ["x", "y"]}),
    uds_frame({"id": "a", "prompt": "Hi", "max_tokens": 3, "json_schema": {"type": "object", "properties": {"a": {}}}}),
    uds_frame({"id": "a", "prompt": "Hi", "max_tokens": 3, "grammar": 'root ::= ("a" | [b-z]+){1,3}'}),
    uds_frame({"id": "a", "prompt": "Hi", "max_tokens": 3, "keep_alive": True, "metadata": {"a": [1]}, "slo": {}}),
    uds_frame({"event": "cancel", "id": "a"}),
    uds_frame({"type": "metrics", "keep_alive": True}),
]


def mutated(rng: random.Random) -> bytes:
    """A conversation with some bytes flipped, cut out or doubled, as a fault on the wire or a fuzzer would."""
    data = bytearray(b"".join(rng.choice(SEEDS) for _ in range(rng.randint(1, 4))))
    for _ in range(rng.randint(0, 4)):
        at = rng.randrange(len(data))
        match rng.randrange(5):
            case 0:
                data[at] ^= 1 << rng.randrange(8)
            case 1:
                del data[at : at + rng.randint(1, 30)]
            case 2:
                data[at:at] = data[at : at + rng.randint(1, 30)]
            case 3:
                data[at:at] = rng.choice([b'"', b"[", b"{", b"(", b"\\", b"{2}", b"\xff", b"-1", b"1e400", b"null"])
            case 4 if len(data) > 8:
                data[:4] = struct.pack("<I", rng.choice([0, 1, len(data) - 4, 2**20 + 1, 2**32 - 1]))
        if not data:
            return b"\0"
    return bytes(data)


def test_mutated_conversations_leave_a_daemon_that_serves(daemon: Daemon):
    expected = daemon.text(max_tokens=5)
    for seed in range(200):
        rng = random.Random(seed)
        data = mutated(rng)
        with daemon.connect() as wire:
            split = rng.randrange(len(data))
            wire.sock.settimeout(10)
            try:
                wire.sock.sendall(data[:split])
                wire.sock.sendall(data[split:])
                if rng.random() < 0.7:
                    wire.sock.shutdown(socket.SHUT_WR)
                    wire.receive_all()
            except (BrokenPipeError, ConnectionResetError):
                continue  # the daemon had its last word before we had ours
        assert daemon.process.poll() is None, f"seed {seed}: {data!r}"
    daemon.wait_until_quiet()
    assert daemon.text(max_tokens=5) == expected
