"""WebSocket (RFC 6455) on the real daemon: handshakes, frames, control frames, pings, and every way to close."""

from __future__ import annotations

import json
import random
import signal
import socket
import struct
import threading
from functools import partial

import pytest
from daemon import Daemon, stands_still
from frames import ws_frame
from websockets.exceptions import ConnectionClosed
from websockets.frames import Opcode
from websockets.sync.client import ClientConnection, connect

ANSWER_S = 60
MIB = 2**20
MASK = b"\xa5\0\xff7"
KEY = "dGhlIHNhbXBsZSBub25jZQ=="  # RFC 6455 1.3, with its answer below
ACCEPT = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
HANDSHAKE = {
    "Host": "localhost",
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Key": KEY,
    "Sec-WebSocket-Version": "13",
}


def request(path: str = "/debug/echo", method: str = "GET", more: str = "", **changes: str | None) -> bytes:
    """A good handshake but for ``changes`` (``None`` leaves a header out) and the lines in ``more``."""
    headers = HANDSHAKE | {name.replace("_", "-"): value for name, value in changes.items()}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items() if value is not None)
    return f"{method} {path} HTTP/1.1\r\n{lines}{more}\r\n".encode()


masked = partial(ws_frame, mask=MASK)
"""A frame as a client sends it."""


class RawClient:
    """Bytes to and from the daemon, and frames once it has upgraded."""

    def __init__(self, daemon: Daemon):
        host, port = daemon.http.split(":")
        self.sock = socket.create_connection((host, int(port)), ANSWER_S)
        self.stream = self.sock.makefile("rb")

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_) -> None:
        self.stream.close()
        self.sock.close()

    def reset(self) -> None:
        """End the connection at once, as a client that crashed does."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.stream.close()
        self.sock.close()

    def response(self) -> tuple[int, dict[str, str]]:
        """The status and the headers of a response, whose body is left unread."""
        status = int(self.stream.readline().split()[1])
        headers = {}
        while line := self.stream.readline().strip().decode():
            name, _, value = line.partition(": ")
            headers[name.lower()] = value
        return status, headers

    def upgrade(self, path: str = "/debug/echo", then: bytes = b"") -> RawClient:
        self.sock.sendall(request(path) + then)
        status, headers = self.response()
        assert (status, headers["sec-websocket-accept"]) == (101, ACCEPT)
        assert "sec-websocket-extensions" not in headers
        return self

    def send(self, *frames: bytes) -> None:
        self.sock.sendall(b"".join(frames))

    def receive(self) -> tuple[Opcode, bytes] | None:
        """The next frame; ``None`` at the end of the stream."""
        head = self.stream.read(2)
        if not head:
            return None
        assert head[0] & 0x80, "the server sends no fragments"
        assert head[1] < 0x80, "the server masks nothing"
        length = head[1]
        if length > 125:
            length = int.from_bytes(self.stream.read({126: 2, 127: 8}[length]), "big")
        return Opcode(head[0] & 0x0F), self.stream.read(length)

    def receive_close(self) -> int:
        """The code of the close frame that must come next, and after it the end of the stream."""
        frame = self.receive()
        assert frame is not None
        opcode, data = frame
        assert opcode is Opcode.CLOSE, frame
        assert self.stream.read() == b""
        return int.from_bytes(data[:2], "big")


@pytest.fixture
def echo(daemon: Daemon):
    with RawClient(daemon) as client:
        yield client.upgrade()


def conversation(daemon: Daemon, path: str = "/debug/echo", **options) -> ClientConnection:
    return connect(f"ws://{daemon.http}{path}", max_size=None, **options)


# -- the handshake -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/debug/echo", "/generate"])
@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"Sec_WebSocket_Key": None}, 400),
        ({"Sec_WebSocket_Key": "c2hvcnQ="}, 400),
        ({"Sec_WebSocket_Key": "not base64 at all, no!"}, 400),
        ({"more": f"Sec-WebSocket-Key: {KEY}\r\n"}, 400),
        ({"more": "Sec-WebSocket-Extensions: ;;;,,\r\n"}, 400),
        ({"Connection": "keep-alive"}, 400),
        ({"Host": None}, 400),
        ({"Sec_WebSocket_Version": "12"}, 426),
        ({"Sec_WebSocket_Version": None}, 426),
        ({"Upgrade": None, "Connection": None}, 426),
        ({"Upgrade": "h2c"}, 426),
        ({"method": "POST"}, 405),
        ({"method": "PUT"}, 405),
    ],
)
def test_a_malformed_handshake_gets_an_error_of_http(daemon: Daemon, path: str, changes: dict, status: int):
    with RawClient(daemon) as client:
        client.send(request(path, **changes))
        found, headers = client.response()
        body = json.loads(client.stream.read(int(headers["content-length"])))
    assert found == status
    # Each contract has an error object of its own; what has no whole head has OpenAI's.
    assert (body if isinstance(body["error"], str) else body["error"])["message"]
    if status == 426:
        assert headers["upgrade"] == "websocket"
    if "Sec_WebSocket_Version" in changes:
        assert headers["sec-websocket-version"] == "13"


def test_permessage_deflate_is_offered_and_not_negotiated(daemon: Daemon):
    with conversation(daemon, compression="deflate") as client:
        assert "permessage-deflate" in client.request.headers["Sec-WebSocket-Extensions"]
        assert "Sec-WebSocket-Extensions" not in client.response.headers
        client.send("a" * 1000)
        assert client.recv(ANSWER_S) == "a" * 1000


def test_our_subprotocol_is_chosen_among_those_offered(daemon: Daemon):
    with conversation(daemon, "/generate", subprotocols=["chat", "umaserve"]) as client:
        assert client.subprotocol == "umaserve"


def test_frames_right_behind_the_handshake_are_not_lost(daemon: Daemon):
    with RawClient(daemon) as client:
        client.upgrade(then=masked(Opcode.TEXT, b"at once") + masked(Opcode.PING, b"?"))
        assert client.receive() == (Opcode.TEXT, b"at once")
        assert client.receive() == (Opcode.PONG, b"?")


def test_a_handshake_byte_by_byte(daemon: Daemon):
    with RawClient(daemon) as client:
        for byte in request() + masked(Opcode.TEXT, b"slowly"):
            client.send(bytes([byte]))
        assert client.response()[0] == 101
        assert client.receive() == (Opcode.TEXT, b"slowly")


def test_the_echo_is_there_only_when_asked_for(own_daemon):
    with RawClient(own_daemon("--http", "127.0.0.1:0")) as client:
        client.send(request())
        assert client.response()[0] == 404


# -- messages ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("message", ["", "é", b"\xff\0", "x" * 125, "x" * 126, b"y" * 65536, "x" * MIB])
def test_messages_of_every_size_come_back_as_they_are(daemon: Daemon, message: str | bytes):
    with conversation(daemon) as client:
        client.send(message)
        assert client.recv(ANSWER_S) == message


def test_fragments_are_one_message_also_within_a_character(daemon: Daemon):
    text = "naïve 日本 🦙"
    with conversation(daemon) as client:
        client.send(["a", "", "bc", "d" * 1000])
        assert client.recv(ANSWER_S) == "abc" + "d" * 1000
        client.send([b"\0", b"\xff"])
        assert client.recv(ANSWER_S) == b"\0\xff"
    with RawClient(daemon) as raw:
        raw.upgrade()
        pieces = [bytes([byte]) for byte in text.encode()]
        raw.send(masked(Opcode.TEXT, fin=False), *(masked(Opcode.CONT, piece, fin=False) for piece in pieces))
        raw.send(masked(Opcode.CONT))
        assert raw.receive() == (Opcode.TEXT, text.encode())


def test_control_frames_inside_a_message(echo: RawClient):
    echo.send(masked(Opcode.TEXT, b"one ", fin=False), masked(Opcode.PING, b"1"))
    assert echo.receive() == (Opcode.PONG, b"1")
    echo.send(
        masked(Opcode.PONG, b"unasked"),
        masked(Opcode.CONT, b"two ", fin=False),
        masked(Opcode.PING, b"2"),
    )
    assert echo.receive() == (Opcode.PONG, b"2")
    echo.send(masked(Opcode.CONT, b"three"))
    assert echo.receive() == (Opcode.TEXT, b"one two three")


def test_any_split_of_the_bytes_gives_the_same_frames(daemon: Daemon):
    sent = b"".join(
        [
            masked(Opcode.TEXT, b"one"),
            masked(Opcode.BINARY, b"\xff" * 300, fin=False),
            masked(Opcode.PING, b"?"),
            masked(Opcode.CONT, b"\xfe" * 70000),
            masked(Opcode.TEXT, "zwölf".encode()),
        ]
    )
    for seed in range(20):
        rng = random.Random(seed)
        places = sorted(rng.randrange(len(sent)) for _ in range(rng.randrange(6)))
        with RawClient(daemon) as client:
            client.upgrade()
            client.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for start, end in zip([0, *places], [*places, len(sent)], strict=True):
                client.send(sent[start:end])
            received = [client.receive() for _ in range(4)]
        assert received == [
            (Opcode.TEXT, b"one"),
            (Opcode.PONG, b"?"),
            (Opcode.BINARY, b"\xff" * 300 + b"\xfe" * 70000),
            (Opcode.TEXT, "zwölf".encode()),
        ], f"seed {seed}"


def test_who_sends_without_reading_gets_everything_in_the_end(daemon: Daemon, echo: RawClient):
    message = b"z" * 60000
    # More than the kernel's buffers and the high-water mark hold: the daemon must stop reading for a while.
    sender = threading.Thread(target=echo.send, args=[masked(Opcode.TEXT, message)] * 200, daemon=True)
    before = daemon.metrics()["rss_bytes"]
    sender.start()
    daemon.wait_for(stands_still("rx_bytes_total"))
    assert daemon.metrics()["rss_bytes"] - before < 8 * MIB
    assert sender.is_alive()
    for _ in range(200):
        assert echo.receive() == (Opcode.TEXT, message)
    sender.join(ANSWER_S)
    assert not sender.is_alive()


# -- closing -----------------------------------------------------------------------------------------------------

UNMASKED = b"\x81\x05hello"
BREACHES = {
    "unmasked": (1002, UNMASKED),
    "a reserved bit": (1002, masked(0x40 | Opcode.TEXT, b"hello")),
    "an unknown opcode": (1002, masked(0x3)),
    "a continuation of nothing": (1002, masked(Opcode.CONT, b"hello")),
    "a message inside a message": (
        1002,
        masked(Opcode.TEXT, b"one", fin=False) + masked(Opcode.TEXT, b"two"),
    ),
    "a ping in fragments": (1002, masked(Opcode.PING, b"?", fin=False)),
    "a ping too long": (1002, masked(Opcode.PING, bytes(126))),
    "a close code of one byte": (1002, masked(Opcode.CLOSE, b"\x03")),
    "a close code that may not be sent": (1002, masked(Opcode.CLOSE, (1005).to_bytes(2, "big"))),
    "a close reason that is no text": (1007, masked(Opcode.CLOSE, (1000).to_bytes(2, "big") + b"\xff")),
    "text that is not UTF-8": (1007, masked(Opcode.TEXT, b"\xc3\x28")),
    "half a character at the end": (1007, masked(Opcode.TEXT, b"\xe6\x97")),
    "a message too long": (1009, b"\x81\xff" + (128 * MIB + 1).to_bytes(8, "big") + bytes(4)),
    "a length of 2**63": (1002, b"\x81\xff" + (2**63).to_bytes(8, "big") + bytes(4)),
}


@pytest.mark.parametrize("path", ["/debug/echo", "/generate"])
@pytest.mark.parametrize("breach", BREACHES)
def test_a_breach_is_answered_with_its_close_code_and_the_end(daemon: Daemon, path: str, breach: str):
    code, data = BREACHES[breach]
    with RawClient(daemon) as client:
        client.upgrade(path).send(data)
        assert client.receive_close() == code


def test_fragments_may_not_be_too_long_together(echo: RawClient):
    echo.send(masked(Opcode.TEXT, b"x" * MIB, fin=False), masked(Opcode.CONT, b"x"))
    assert echo.receive_close() == 1009


def test_what_came_whole_before_a_breach_is_still_answered(echo: RawClient):
    echo.send(masked(Opcode.TEXT, b"good"), UNMASKED, masked(Opcode.TEXT, b"late"))
    assert echo.receive() == (Opcode.TEXT, b"good")
    assert echo.receive_close() == 1002


def test_binary_is_not_taken_where_messages_are_json(daemon: Daemon):
    with conversation(daemon, "/generate") as client:
        client.send(b'{"type":"config","prompt":"Hi"}')
        with pytest.raises(ConnectionClosed) as closed:
            client.recv(ANSWER_S)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1003


@pytest.mark.parametrize("path", ["/debug/echo", "/generate"])
@pytest.mark.parametrize(("sent", "code"), [(b"", None), (b"\x03\xe8bye", 1000), (b"\x0f\xa0", 4000)])
def test_a_goodbye_is_answered_with_its_own_code(daemon: Daemon, path: str, sent: bytes, code: int | None):
    with RawClient(daemon) as client:
        # What comes after a goodbye counts no more.
        client.upgrade(path).send(masked(Opcode.CLOSE, sent), masked(Opcode.TEXT, b"late"))
        frame_ = client.receive()
        assert frame_ is not None
        assert frame_[0] is Opcode.CLOSE
        assert frame_[1][:2] == (b"" if code is None else code.to_bytes(2, "big"))
        assert client.stream.read() == b""


def test_a_goodbye_in_the_middle_of_a_stream_ends_the_generation(daemon: Daemon):
    with conversation(daemon, "/generate") as client:
        parameters = {"max_tokens": 500, "ignore_eos": True}
        client.send(json.dumps({"type": "config", "prompt": "Once", "parameters": parameters}))
        assert json.loads(client.recv(ANSWER_S))["type"] == "init"
        client.recv(ANSWER_S)
        client.close(1000)
    daemon.wait_until_quiet()


# -- pings, silence, shutdown ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory):
    """A daemon that pings soon and gives up soon; stopped at the end of the file, or by its last test."""
    flags = (
        "--http",
        "127.0.0.1:0",
        "--debug-echo",
        "--ping-interval",
        "0.2",
        "--idle-timeout",
        "2",
        "--resume-window",
        "0",
    )
    daemon = Daemon(tmp_path_factory.mktemp("impatient"), *flags, env={"UMA_THREADS": "1"})
    yield daemon
    daemon.stop()
    assert "Traceback" not in daemon.logs, daemon.logs


def test_who_answers_no_ping_is_closed(impatient: Daemon):
    with RawClient(impatient) as client:
        client.upgrade("/generate")
        assert client.receive() == (Opcode.PING, b"")
        assert client.stream.read() == b""
    assert "no answer to a ping" in impatient.logs


def test_who_answers_pings_stays_until_the_idle_timeout(impatient: Daemon):
    with RawClient(impatient) as client:
        client.upgrade("/generate")
        pings = 0
        while (frame_ := client.receive()) is not None and frame_[0] is Opcode.PING:
            pings += 1
            client.send(masked(Opcode.PONG, frame_[1]))
        # Three unanswered ones would have been the end; pongs are signs of life, but nobody asked for anything.
        assert pings >= 3
        assert frame_ is not None
        assert frame_ == (Opcode.CLOSE, (1001).to_bytes(2, "big"))
        assert client.stream.read() == b""


def test_a_paused_generation_is_no_silence(impatient: Daemon):
    with RawClient(impatient) as client:
        config = {"type": "config", "prompt": "Once", "parameters": {"max_tokens": 500, "ignore_eos": True}}
        pause = {"type": "control", "action": "pause"}
        client.upgrade("/generate").send(*(masked(Opcode.TEXT, json.dumps(m).encode()) for m in (config, pause)))
        pings = 0
        # Of two intervals one has an answer in it, so 7 pings take longer than the idle timeout.
        while pings < 7:
            frame_ = client.receive()
            assert frame_ is not None
            assert frame_[0] is not Opcode.CLOSE
            if frame_[0] is Opcode.PING:
                pings += 1
                client.send(masked(Opcode.PONG, frame_[1]))
    impatient.wait_until_quiet()


def test_at_shutdown_everybody_hears_that_the_server_goes_away(impatient: Daemon):
    """The last test of ``impatient``: it stops it."""
    with (
        conversation(impatient) as echoing,
        conversation(impatient, "/generate") as idle,
        conversation(impatient, "/generate") as running,
    ):
        config = {"type": "config", "prompt": "Once", "parameters": {"max_tokens": 60, "ignore_eos": True}}
        running.send(json.dumps(config))
        assert [json.loads(running.recv(ANSWER_S))["type"] for _ in range(2)] == ["init", "token"]
        impatient.process.send_signal(signal.SIGTERM)
        # What runs comes to its end first.
        messages = [json.loads(message) for message in running]
        assert messages[-1]["type"] == "completion"
        assert messages[-1]["usage"]["completion_tokens"] == 60
        for client in (echoing, idle, running):
            with pytest.raises(ConnectionClosed) as closed:
                client.recv(ANSWER_S)
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1001
    assert impatient.process.wait(ANSWER_S) == 0


def test_what_a_stalled_reader_lost_can_be_resumed(own_daemon):
    daemon = own_daemon("--http", "127.0.0.1:0", "--tx-high-water", "1KiB")
    # Each message repeats the prompt, whose lines are of few tokens, so that the buffers are soon full.
    prompt, parameters = ("=" * 64 + "\n") * 60, {"max_tokens": 120, "ignore_eos": True}
    config = {"type": "config", "prompt": prompt, "parameters": parameters, "options": {"echo_prompt": True}}
    with RawClient(daemon) as client:
        client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        client.upgrade("/generate").send(masked(Opcode.TEXT, json.dumps(config).encode()))
        init = client.receive()
        assert init is not None
        daemon.wait_for(lambda values: values["tx_stalled_sessions"] == 1)
        client.reset()
    daemon.wait_for(lambda values: values["detached_generations"] == 1)
    with conversation(daemon, "/generate") as again:
        again.send(json.dumps({"type": "resume", "request_id": json.loads(init[1])["request_id"]}))
        messages = [json.loads(again.recv(ANSWER_S)) for _ in range(122)]
    assert messages[0]["operation"] == "resume"
    assert [message["position"] for message in messages[1:121]] == list(range(120))
    assert messages[121]["finished"]
