"""The WebSocket codec: the split of the input never matters, and each mistake ends with its own close code."""

from __future__ import annotations

import itertools
import struct
import tracemalloc
from collections.abc import Iterable
from typing import Any, NamedTuple

import h11
import pytest
import wsproto
import wsproto.events
import wsproto.extensions
from frames import ws_frame, ws_header
from hypothesis import example, given
from hypothesis import strategies as st
from websockets.client import ClientProtocol
from websockets.extensions.permessage_deflate import ClientPerMessageDeflateFactory
from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import State as PeerState
from websockets.server import ServerProtocol
from websockets.uri import parse_uri

from umaserve.core.errors import Fault
from umaserve.wire.http_head import Request
from umaserve.wire.websocket import MAX_FRAME_BYTES, PIECES_PER_CALL, Message, State, WebSocketCodec
from umaserve.wire.websocket_handshake import (
    handshake,
)

# A busy machine is no fault of the code.

MIB = 2**20
CAP = 300
CONT, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10


def drain(codec: WebSocketCodec) -> list[Message]:
    messages: list[Message] = []
    # Each call takes a byte at least, or is the last.
    for _ in range(codec.buffered + 2):
        message = codec.next_message()
        if message is not None:
            messages.append(message)
        elif not codec.more:
            return messages
    raise AssertionError("the codec goes on for ever")


def feed(codec: WebSocketCodec, chunks: Iterable[bytes]) -> tuple[list[Message], bytes]:
    """The messages in ``chunks``, and all that the codec said meanwhile."""
    messages: list[Message] = []
    output = b""
    for chunk in chunks:
        codec.receive_data(chunk)
        messages += drain(codec)
        output += codec.take_output()
    return messages, output


def frames_of(output: bytes) -> list[Frame]:
    """What a strict client makes of the server's bytes."""
    client = ClientProtocol(parse_uri("ws://host/"), state=PeerState.OPEN, max_size=None)
    client.receive_data(output)
    frames = [event for event in client.events_received() if isinstance(event, Frame)]
    # A client says nothing of what comes after a close frame.
    assert b"".join(item.serialize(mask=False) for item in frames) == output
    return frames


def frames_of_client(output: bytes) -> list[Frame]:
    """What a strict server makes of the client's bytes, which it refuses unmasked."""
    server = ServerProtocol(state=PeerState.OPEN, max_size=None)
    server.receive_data(output)
    frames = [event for event in server.events_received() if isinstance(event, Frame)]
    assert sum(len(item.serialize(mask=True)) for item in frames) == len(output)
    return frames


def close_code(output: bytes) -> int:
    """The code of the one close frame that ``output`` is."""
    (goodbye,) = frames_of(output)
    assert goodbye.opcode is Opcode.CLOSE
    return int.from_bytes(goodbye.data[:2], "big")


def single_bytes(data: bytes) -> list[bytes]:
    return [data[i : i + 1] for i in range(len(data))]


def cut(data: bytes, places: Iterable[int]) -> list[bytes]:
    inner = sorted(place % (len(data) + 1) for place in places)
    return [data[start:end] for start, end in itertools.pairwise([0, *inner, len(data)])]


places = st.lists(st.integers(0, 2**16), max_size=10)

# -- joined with clients that people have ------------------------------------------------------------------------------


def upgrade_response(request: bytes) -> bytes:
    """The 101 response to a client's handshake as it is on the wire."""
    server = h11.Connection(h11.SERVER)
    server.receive_data(request)
    event = server.next_event()
    assert isinstance(event, h11.Request)
    assert b"permessage-deflate" in dict(event.headers)[b"sec-websocket-extensions"]
    headers = tuple((name.decode(), value.decode()) for name, value in event.headers)
    answer = handshake(Request(event.method.decode(), event.target.decode(), {}, headers, b""))
    return "".join(["HTTP/1.1 101 \r\n", *(f"{name}: {value}\r\n" for name, value in answer), "\r\n"]).encode()


class Websockets:
    """The client side of the ``websockets`` package."""

    def __init__(self) -> None:
        self._protocol = ClientProtocol(parse_uri("ws://host/"), extensions=[ClientPerMessageDeflateFactory()])
        self._protocol.send_request(self._protocol.connect())
        self.received: list[Message] = []
        self.take(upgrade_response(self.written()))
        assert self._protocol.state is PeerState.OPEN
        assert self._protocol.extensions == []

    def written(self) -> bytes:
        return b"".join(self._protocol.data_to_send())

    def take(self, data: bytes) -> None:
        self._protocol.receive_data(data)
        for event in self._protocol.events_received():
            if isinstance(event, Frame) and event.opcode in (Opcode.TEXT, Opcode.BINARY):
                self.received.append(Message(bytes(event.data), event.opcode is Opcode.TEXT))

    def say(self, message: Message) -> None:
        send = self._protocol.send_text if message.text else self._protocol.send_binary
        send(message.data)

    def leave(self) -> None:
        self._protocol.send_close(CloseCode.GOING_AWAY)

    @property
    def goodbye(self) -> tuple[int, str] | None:
        """The server's close code and reason."""
        close = self._protocol.close_rcvd
        return None if close is None else (close.code, close.reason)


class Wsproto:
    """The client side of wsproto."""

    def __init__(self) -> None:
        self._connection = wsproto.WSConnection(wsproto.ConnectionType.CLIENT)
        self._output = b""
        self.received: list[Message] = []
        self.goodbye: tuple[int, str] | None = None
        self._parts: list[str | bytes] = []
        self._send(wsproto.events.Request("host", "/", extensions=[wsproto.extensions.PerMessageDeflate()]))
        self._connection.receive_data(upgrade_response(self.written()))
        (answer,) = self._connection.events()
        assert isinstance(answer, wsproto.events.AcceptConnection)
        assert answer.extensions == []

    def _send(self, event: wsproto.events.Event) -> None:
        self._output += self._connection.send(event)

    def written(self) -> bytes:
        written, self._output = self._output, b""
        return written

    def take(self, data: bytes) -> None:
        self._connection.receive_data(data)
        for event in self._connection.events():
            if isinstance(event, wsproto.events.TextMessage | wsproto.events.BytesMessage):
                self._parts.append(event.data)
                if event.message_finished:
                    data = b"".join(part.encode() if isinstance(part, str) else part for part in self._parts)
                    self.received.append(Message(data, isinstance(event, wsproto.events.TextMessage)))
                    self._parts.clear()
            elif isinstance(event, wsproto.events.CloseConnection):
                self.goodbye = event.code, event.reason or ""
                if self._connection.state is wsproto.connection.ConnectionState.REMOTE_CLOSING:
                    self._send(event.response())

    def say(self, message: Message) -> None:
        self._send(wsproto.events.Message(message.data.decode() if message.text else message.data))

    def leave(self) -> None:
        self._send(wsproto.events.CloseConnection(CloseCode.GOING_AWAY))


SAID = [
    Message(b"", True),
    Message("où, 日本, 🦙".encode(), True),
    Message(bytes(range(256)), False),
    Message(b"", False),
    Message(b"x" * 125, True),
    Message(b"x" * 126, True),
    Message(b"x" * 65535, True),
    Message(b"x" * 65536, True),
    Message(bytes(200_000), False),
]

clients = pytest.mark.parametrize("kind", [Websockets, Wsproto])


@clients
def test_a_client_and_the_server_understand_each_other(kind: type[Websockets | Wsproto]) -> None:
    client, codec = kind(), WebSocketCodec(MIB, binary=True)
    for message in SAID:
        client.say(message)
        assert feed(codec, [client.written()]) == ([message], b"")
        client.take(codec.send_message(message))
    assert client.received == SAID
    client.take(codec.send("né".encode()))
    assert client.received[-1] == Message("né".encode(), True)


@clients
def test_a_client_that_leaves_is_answered_with_its_own_code(kind: type[Websockets | Wsproto]) -> None:
    client, codec = kind(), WebSocketCodec(CAP)
    client.say(SAID[1])
    client.leave()
    messages, output = feed(codec, [client.written()])
    assert messages == [SAID[1]]
    assert (codec.state, codec.closed, codec.more) == (State.LEFT, True, False)
    client.take(output)
    assert client.goodbye == (1001, "")


@clients
def test_a_client_that_we_leave_answers_and_then_it_is_over(kind: type[Websockets | Wsproto]) -> None:
    client, codec = kind(), WebSocketCodec(CAP)
    client.take(codec.close(1013, "come back later"))
    assert client.goodbye == (1013, "come back later")
    assert (codec.state, codec.closed) == (State.CLOSING, False)
    assert feed(codec, [client.written()]) == ([], b"")
    assert (codec.state, codec.closed) == (State.LEFT, True)


@clients
def test_a_clients_mistake_is_explained_to_it(kind: type[Websockets | Wsproto]) -> None:
    client, codec = kind(), WebSocketCodec(CAP)
    client.say(Message(b"x" * (CAP + 1), True))
    client.take(feed(codec, [client.written()])[1])
    assert client.goodbye == (1009, f"message: expected at most {CAP} bytes, got {CAP + 1}")


@clients
def test_an_explanation_goes_before_the_close_frame_of_a_mistake(kind: type[Websockets | Wsproto]) -> None:
    client, codec = kind(), WebSocketCodec(CAP)
    codec.explain(b"nothing is wrong")
    assert codec.take_output() == b""
    client.say(Message(b"x" * (CAP + 1), True))
    codec.receive_data(client.written())
    assert codec.next_message() is None
    assert codec.mistake is not None
    assert (codec.mistake.fault, codec.mistake.message) == (
        Fault.FRAME_TOO_LARGE,
        f"message: expected at most {CAP} bytes, got {CAP + 1}",
    )
    codec.explain(b"too much")
    codec.explain(b"twice")
    explained, goodbye = frames_of(codec.take_output())
    assert (explained.opcode, explained.data) == (Opcode.TEXT, b"too much")
    assert (goodbye.opcode, goodbye.data[:2]) == (Opcode.CLOSE, struct.pack("!H", 1009))
    assert (codec.mistake, codec.take_output(), codec.closed) == (None, b"", True)


# -- any split ---------------------------------------------------------------------------------------------------------


class Sent(NamedTuple):
    """A client's whole talk on the wire, and what is in it."""

    wire: bytes
    messages: list[Message]
    pings: list[bytes]


control = st.tuples(st.sampled_from([PING, PONG]), st.binary(max_size=125))
messages = st.builds(lambda text: Message(text.encode(), True), st.text(max_size=40)) | st.builds(
    Message, st.binary(max_size=200), st.just(False)
)


@st.composite
def talks(draw: st.DrawFn) -> Sent:
    """Messages in any fragments, wherever those cut a character, and control frames wherever they are allowed."""
    wire, said, pings = b"", draw(st.lists(messages, max_size=4)), []
    for message in said:
        fragments = cut(message.data, draw(st.lists(st.integers(0, 2**16), max_size=4)))
        for index, fragment in enumerate(fragments):
            for opcode, data in draw(st.lists(control, max_size=2)):
                wire += Frame(Opcode(opcode), data).serialize(mask=True)
                pings += [data] * (opcode == PING)
            opcode = CONT if index else TEXT if message.text else BINARY
            wire += Frame(Opcode(opcode), fragment, index == len(fragments) - 1).serialize(mask=True)
    return Sent(wire, said, pings)


@given(talks(), places)
def test_however_messages_are_fragmented_interleaved_and_split_all_come_out_and_all_pings_are_answered(
    talk: Sent, at: list[int]
) -> None:
    for chunks in ([talk.wire], single_bytes(talk.wire), cut(talk.wire, at)):
        codec = WebSocketCodec(CAP, binary=True)
        received, output = feed(codec, chunks)
        assert received == talk.messages
        assert [(item.opcode, item.data) for item in frames_of(output)] == [(PONG, data) for data in talk.pings]
        assert codec.buffered == 0
        assert codec.state is State.OPEN


odd_frames = st.builds(
    ws_frame,
    st.sampled_from([CONT, TEXT, TEXT, BINARY, CLOSE, PING, PONG, 3, 11]),
    st.binary(max_size=4) | st.sampled_from([b"\x03\xe8", b"\xc3", b"\xa9", b"x" * 125, b"x" * 126, b"x" * 200]),
    fin=st.booleans(),
    rsv=st.sampled_from([0] * 6 + [4]),
    masked=st.sampled_from([True] * 6 + [False]),
)
wires = st.lists(odd_frames | st.binary(max_size=6), max_size=8).map(b"".join) | st.binary(max_size=64)


@given(wires, places)
@example(ws_frame(TEXT, b"\xed\xa0\x80"), [])
@example(ws_frame(TEXT, b"x" * 200, fin=False) + ws_frame(PING, b"y") + ws_frame(CONT, b"x" * 101), [])
def test_any_split_of_any_bytes_gives_what_the_whole_gives(wire: bytes, at: list[int]) -> None:
    outcomes = []
    for chunks in ([wire], single_bytes(wire), cut(wire, at)):
        codec = WebSocketCodec(CAP, binary=True)
        messages, output = feed(codec, chunks)
        frames_of(output)
        assert codec.state in (State.OPEN, State.LEFT, State.BROKEN)
        outcomes.append((messages, output, codec.state))
    assert outcomes[0] == outcomes[1] == outcomes[2]


@given(st.lists(messages, max_size=5))
def test_what_is_sent_is_what_a_strict_client_receives(said: list[Message]) -> None:
    codec = WebSocketCodec(CAP)
    frames = frames_of(b"".join(codec.send_message(message) for message in said))
    assert [Message(bytes(item.data), item.opcode is Opcode.TEXT) for item in frames] == said
    assert all(item.fin for item in frames)


def test_the_mask_is_taken_off() -> None:
    hello = bytes.fromhex("818537fa213d7f9f4d5158")  # RFC 6455 5.7
    assert feed(WebSocketCodec(CAP), [hello]) == ([Message(b"Hello", True)], b"")


def test_bytes_that_came_with_the_handshake_are_the_first_message_and_the_rest_waits() -> None:
    codec = WebSocketCodec(CAP)
    codec.receive_data(ws_frame(TEXT, b"first") + ws_frame(TEXT, b"second")[:-1])
    assert codec.next_payload() == b"first"
    assert codec.next_payload() is None
    codec.receive_data(b"d" + ws_frame(TEXT, b"third"))
    assert [codec.next_payload() for _ in range(3)] == [b"second", b"third", None]
    assert not codec.closed


def test_what_was_received_and_not_given_out_is_counted() -> None:
    codec = WebSocketCodec(CAP)
    codec.receive_data(ws_frame(TEXT, b"one", fin=False) + ws_frame(CONT, b"two")[:-1])
    assert codec.buffered == 9 + 8
    assert drain(codec) == []
    assert codec.buffered == len(b"onetw")
    codec.receive_data(b"o")
    assert drain(codec) == [Message(b"onetwo", True)]
    assert codec.buffered == 0


# -- mistakes ----------------------------------------------------------------------------------------------------------

PROTOCOL, UNSUPPORTED, NOT_UTF8, TOO_BIG = 1002, 1003, 1007, 1009

MISTAKES = [
    (PROTOCOL, ws_frame(TEXT, b"x", masked=False)),
    (PROTOCOL, ws_header(TEXT, CAP + 1, masked=False)),
    (PROTOCOL, ws_frame(PING, masked=False)),
    *((PROTOCOL, ws_frame(TEXT, b"x", rsv=rsv)) for rsv in (1, 2, 4, 7)),
    (PROTOCOL, ws_header(TEXT, CAP + 1, rsv=4)),
    (PROTOCOL, ws_frame(PING, rsv=4)),
    (PROTOCOL, ws_frame(TEXT, b"x", fin=False) + ws_frame(CONT, b"x", rsv=4)),
    *((PROTOCOL, ws_frame(opcode)) for opcode in (3, 4, 5, 6, 7, 11, 12, 13, 14, 15)),
    *((PROTOCOL, ws_frame(opcode, fin=False)) for opcode in (CLOSE, PING, PONG)),
    *((PROTOCOL, ws_header(opcode, length)) for opcode in (CLOSE, PING, PONG) for length in (126, 2**16, 2**62)),
    (PROTOCOL, ws_frame(CONT, b"x")),
    (PROTOCOL, ws_frame(CONT)),
    (PROTOCOL, ws_frame(TEXT, b"x", fin=False) + ws_frame(TEXT, b"x")),
    (PROTOCOL, ws_frame(TEXT, b"x", fin=False) + ws_frame(BINARY, b"x")),
    (PROTOCOL, ws_frame(BINARY, b"x", fin=False) + ws_frame(TEXT, b"x")),
    (PROTOCOL, b"\x81\xfe\x00\x7d" + bytes(4)),  # two bytes for a length that fits in seven bits
    (PROTOCOL, b"\x81\xff\x00\x00\x00\x00\x00\x00\xff\xff" + bytes(4)),  # eight for one that fits in two
    (PROTOCOL, ws_header(TEXT, 2**63)),
    (PROTOCOL, ws_frame(CLOSE, b"x")),
    *(
        (PROTOCOL, ws_frame(CLOSE, struct.pack("!H", code)))
        for code in (0, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2999, 5000, 65535)
    ),
    (NOT_UTF8, ws_frame(CLOSE, b"\x03\xe8\xff")),
    (NOT_UTF8, ws_frame(CLOSE, b"\x03\xe8\xc3")),
    (NOT_UTF8, ws_frame(TEXT, b"ab\xff")),
    (NOT_UTF8, ws_frame(TEXT, b"\xc3")),
    (NOT_UTF8, ws_frame(TEXT, b"\xc0\x80")),  # overlong
    (NOT_UTF8, ws_frame(TEXT, b"\xed\xa0\x80")),  # a surrogate
    (NOT_UTF8, ws_frame(TEXT, b"\xf4\x90\x80\x80")),  # above U+10FFFF
    (NOT_UTF8, ws_frame(TEXT, b"\xc3", fin=False) + ws_frame(CONT)),
    (NOT_UTF8, ws_frame(TEXT, b"\xc3", fin=False) + ws_frame(CONT, b"x", fin=False)),
    (TOO_BIG, ws_header(TEXT, CAP + 1)),
    (TOO_BIG, ws_header(TEXT, 2**63 - 1)),
    (TOO_BIG, ws_header(BINARY, 2**63 - 1, fin=False)),
    (TOO_BIG, ws_frame(TEXT, b"x" * CAP, fin=False) + ws_header(CONT, 1)),
    (TOO_BIG, ws_frame(TEXT, b"x", fin=False) + ws_frame(CONT, fin=False) + ws_header(CONT, 2**63 - 1)),
]


@pytest.mark.parametrize(("code", "wire"), MISTAKES)
@pytest.mark.parametrize("split", [lambda wire: [wire], single_bytes], ids=["whole", "bytes"])
def test_each_mistake_ends_with_its_code_after_what_came_before_it(split: Any, code: int, wire: bytes) -> None:
    codec = WebSocketCodec(CAP, binary=True)
    before, after = ws_frame(TEXT, b"before") + ws_frame(PING, b"?"), ws_frame(PING, b"!") + ws_frame(TEXT, b"after")
    messages, output = feed(codec, split(before + wire + after))
    assert messages == [Message(b"before", True)]
    pong, goodbye = frames_of(output)
    assert (pong.opcode, pong.data) == (Opcode.PONG, b"?")
    assert (goodbye.opcode, goodbye.data[:2]) == (Opcode.CLOSE, struct.pack("!H", code))
    assert (codec.state, codec.closed, codec.more) == (State.BROKEN, True, False)
    assert codec.buffered == 0
    assert feed(codec, [after]) == ([], b"")
    assert codec.buffered == 0


@pytest.mark.parametrize("wire", [wire for _, wire in MISTAKES])
def test_a_mistake_is_refused_as_soon_as_it_has_come(wire: bytes) -> None:
    codec = WebSocketCodec(CAP, binary=True)
    feed(codec, [wire])
    assert codec.closed


def test_a_binary_message_is_refused_where_it_is_not_taken() -> None:
    codec = WebSocketCodec(CAP)
    messages, output = feed(codec, [ws_frame(TEXT, b"text") + ws_frame(BINARY, b"x" * CAP)[:-1]])
    assert messages == [Message(b"text", True)]
    assert close_code(output) == UNSUPPORTED
    assert codec.state is State.BROKEN


@pytest.mark.parametrize("code", [1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 3000, 3999, 4000, 4999])
def test_a_close_frame_is_answered_with_its_code(code: int) -> None:
    codec = WebSocketCodec(CAP)
    _, output = feed(codec, [ws_frame(CLOSE, struct.pack("!H", code) + "à bientôt".encode()) + ws_frame(TEXT, b"late")])
    assert close_code(output) == code
    assert (codec.state, codec.closed) == (State.LEFT, True)
    assert (codec.close_code, codec.close_reason) == (code, "à bientôt")
    assert type(codec.close_code) is int


def test_a_close_frame_without_a_code_is_answered_by_one_without() -> None:
    codec = WebSocketCodec(CAP)
    assert feed(codec, [ws_frame(CLOSE)]) == ([], b"\x88\x00")
    assert codec.state is State.LEFT
    assert (codec.close_code, codec.close_reason) == (1005, "")


@pytest.mark.parametrize("wire", [b"", ws_frame(CLOSE, b"x"), ws_frame(CLOSE, struct.pack("!H", 1005)), ws_frame(3)])
def test_a_connection_that_breaks_has_no_close_code(wire: bytes) -> None:
    codec = WebSocketCodec(CAP)
    codec.receive_eof()
    feed(codec, [wire])
    assert (codec.state, codec.close_code, codec.close_reason) == (State.BROKEN if wire else State.LOST, None, "")


# -- closing -----------------------------------------------------------------------------------------------------------


def test_after_our_close_frame_nothing_is_sent_and_what_comes_is_dropped_until_the_peers() -> None:
    codec = WebSocketCodec(CAP)
    feed(codec, [ws_frame(TEXT, b"half", fin=False)])
    assert close_code(codec.close(1000)) == 1000
    assert codec.buffered == 0
    assert codec.send(b"x") == codec.send_message(Message(b"x", False)) == codec.ping() == codec.close(1001) == b""
    assert feed(codec, [ws_frame(CONT, b"other half") + ws_frame(PING) + ws_frame(TEXT, b"x", fin=False)]) == ([], b"")
    assert codec.buffered == 0
    assert not codec.closed
    assert feed(codec, [ws_frame(CLOSE, b"\x03\xe8")]) == ([], b"")
    assert codec.state is State.LEFT


@pytest.mark.parametrize("wire", [ws_frame(3), ws_header(TEXT, CAP + 1), ws_frame(TEXT, b"\xff")])
def test_a_mistake_after_our_close_frame_ends_it_without_a_second_one(wire: bytes) -> None:
    codec = WebSocketCodec(CAP)
    codec.close(1000)
    assert feed(codec, [wire]) == ([], b"")
    assert codec.state is State.ENDED


def test_the_end_of_input_after_our_close_frame_ends_it() -> None:
    codec = WebSocketCodec(CAP)
    codec.close(1000)
    codec.receive_eof()
    assert feed(codec, [ws_frame(PING)]) == ([], b"")
    assert codec.state is State.ENDED


def test_pongs_that_were_not_taken_go_before_the_close_frame() -> None:
    codec = WebSocketCodec(CAP)
    codec.receive_data(ws_frame(PING, b"a"))
    drain(codec)
    assert [item.opcode for item in frames_of(codec.close(1000))] == [Opcode.PONG, Opcode.CLOSE]
    assert codec.take_output() == b""


@pytest.mark.parametrize(
    ("reason", "kept"),
    [
        ("x" * 123, "x" * 123),
        ("x" * 124, "x" * 123),
        ("é" * 62, "é" * 61),
        ("x" + "🦙" * 31, "x" + "🦙" * 30),
        ("", ""),
    ],
)
def test_a_reason_is_cut_at_a_characters_boundary(reason: str, kept: str) -> None:
    (goodbye,) = frames_of(WebSocketCodec(CAP).close(1008, reason))
    assert bytes(goodbye.data[2:]).decode() == kept


@pytest.mark.parametrize(
    "wire", [b"", ws_frame(TEXT, b"whole"), ws_frame(TEXT, b"whole") + ws_frame(TEXT, b"half")[:-1]]
)
def test_the_end_of_input_is_a_lost_connection_once_all_that_came_was_given(wire: bytes) -> None:
    codec = WebSocketCodec(CAP)
    codec.receive_data(wire)
    codec.receive_eof()
    assert not codec.closed
    assert drain(codec) == ([Message(b"whole", True)] if wire else [])
    assert codec.state is State.LOST
    assert (codec.take_output(), codec.buffered) == (b"", 0)


def test_our_pings_are_pings_and_their_pongs_are_silent() -> None:
    codec = WebSocketCodec(CAP)
    assert [(item.opcode, item.data) for item in frames_of(codec.ping(b"17"))] == [(PING, b"17")]
    assert frames_of(codec.ping())[0].data == b""
    assert feed(codec, [ws_frame(PONG, b"17")]) == ([], b"")


# -- caps and bounds ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cap", [0, 1, 125, 126, 65535, 65536, MIB])
@pytest.mark.parametrize("parts", [1, 3])
def test_message_at_its_cap_passes_and_one_byte_over_is_refused_from_the_header(cap: int, parts: int) -> None:
    payload = b"x" * cap
    # Empty fragments and control frames between cost nothing of the cap.
    begun = ws_frame(TEXT, payload[:1], fin=False) + ws_frame(PING, b"y" * 125) + ws_frame(CONT, b"", fin=False)
    first, rest = (begun, ws_frame(CONT, payload[1:])) if parts > 1 else (b"", ws_frame(TEXT, payload))
    codec = WebSocketCodec(cap)
    for _ in range(2):
        assert feed(codec, [first, rest])[0] == [Message(payload, True)]
    assert not codec.closed
    over = ws_header(CONT, max(cap, 1)) if parts > 1 and cap else ws_header(CONT if parts > 1 else TEXT, cap + 1)
    assert feed(codec, [first])[0] == []
    assert close_code(feed(codec, [over])[1]) == TOO_BIG


def peak_of_feeding(codec: WebSocketCodec, *chunks: bytes) -> int:
    tracemalloc.start()
    try:
        feed(codec, chunks)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_claim_over_the_cap_stores_nothing_of_what_comes_with_it() -> None:
    codec = WebSocketCodec(64 * MIB)
    assert peak_of_feeding(codec, ws_header(TEXT, 2**63 - 1), bytes(MIB), bytes(MIB)) < 65536
    assert codec.closed


def test_a_claim_of_the_cap_waits_and_allocates_nothing_for_it() -> None:
    codec = WebSocketCodec(64 * MIB)
    assert peak_of_feeding(codec, ws_header(TEXT, 64 * MIB), b"only this") < 65536
    assert codec.buffered == len(b"only this")
    assert not codec.closed


@pytest.mark.parametrize(("opcode", "character"), [(TEXT, b"x"), (TEXT, "🦙".encode()), (BINARY, b"\xff")])
@pytest.mark.parametrize("fragment", [MIB, 4096])
def test_a_large_message_takes_little_more_than_its_size_and_nothing_stays(
    opcode: int, character: bytes, fragment: int
) -> None:
    payload = character * (MIB // len(character))
    parts = [payload[start : start + fragment] for start in range(0, MIB, fragment)]
    wire = b"".join(ws_frame(CONT if i else opcode, part, fin=i == len(parts) - 1) for i, part in enumerate(parts))
    chunks = [wire[start : start + 65536] for start in range(0, len(wire), 65536)]
    codec = WebSocketCodec(MIB, binary=True)
    # The bytes so far with the slack of their growth, the message made of them, and wsproto's copies of one piece.
    assert peak_of_feeding(codec, *chunks) < 3.5 * MIB
    assert codec.buffered == 0
    assert feed(codec, chunks)[0] == [Message(payload, opcode == TEXT)]
    assert codec._buffer.__sizeof__() + codec._message.__sizeof__() < 65536


@pytest.mark.parametrize("fragment", [b"", b"x"])
def test_a_message_of_tiny_fragments_takes_several_turns(fragment: bytes) -> None:
    codec = WebSocketCodec(10_000)
    wire = ws_frame(TEXT, fin=False) + ws_frame(CONT, fragment, fin=False) * 2000
    codec.receive_data(wire + ws_frame(CONT))
    turns = 0
    while (message := codec.next_message()) is None:
        turns += 1
        assert codec.more
        assert codec.buffered >= len(wire) - turns * PIECES_PER_CALL * 7
    assert message == Message(fragment * 2000, True)
    assert turns == 2002 * (1 + len(fragment)) // PIECES_PER_CALL
    assert codec.next_message() is None
    assert not codec.more


def test_a_flood_of_pings_takes_several_turns_and_says_less_than_came() -> None:
    codec = WebSocketCodec(CAP)
    wire = ws_frame(PING, b"x" * 125) * 2000
    codec.receive_data(wire)
    assert codec.next_message() is None
    assert codec.more
    assert len(codec.take_output()) == PIECES_PER_CALL // 2 * 127
    drain(codec)
    assert len(codec.take_output()) < len(wire)


def test_a_close_frame_at_the_bound_of_work_leaves_nothing_to_do() -> None:
    codec = WebSocketCodec(CAP)
    codec.receive_data(ws_frame(PONG) * (PIECES_PER_CALL - 1) + ws_frame(CLOSE))
    codec.receive_eof()
    assert codec.next_message() is None
    assert (codec.state, codec.more, codec.next_message()) == (State.LEFT, False, None)


# -- short text frames, which don't go through wsproto -----------------------------------------------------------------


class Plain(WebSocketCodec):
    """The codec without its short cut."""

    def _take_whole(self) -> None:
        return None


def outcome(kind: type[WebSocketCodec], chunks: Iterable[bytes], *, client: bool, closing: bool = False) -> Any:
    """All that can be seen of a codec that is fed ``chunks``."""
    codec = kind(CAP, client=client)
    if closing:
        codec.close(1000)
    steps = []
    for chunk in chunks:
        messages, output = feed(codec, [chunk])
        said = [(item.opcode, item.data) for item in (frames_of_client if client else frames_of)(output)]
        steps.append((messages, said, codec.buffered))
    return steps, codec.state, codec.close_code, codec.close_reason


TEXTS = [b"", b"abc", "où".encode(), b"\x81\x83maskabc", b"x" * 125, b"x" * 126, b"\xc3", b"x" * 126 + b"\xff"]
OVERLONG = b"\x00\x03maskabc"
PARTS = [
    *(ws_frame(TEXT, payload, mask=b"mask") for payload in [*TEXTS, b"x" * CAP, b"x" * (CAP + 1)]),
    *(ws_frame(TEXT, payload, masked=False) for payload in [*TEXTS, b"x" * CAP, b"x" * (CAP + 1)]),
    *(ws_header(TEXT, 20, masked=masked) for masked in (True, False)),  # what comes next is its payload
    *(ws_frame(TEXT, payload, fin=False, masked=masked) for payload in (b"", b"abc") for masked in (True, False)),
    *(ws_frame(opcode, b"", masked=masked) for opcode in (CONT, BINARY, CLOSE, PING) for masked in (True, False)),
    ws_frame(TEXT, b"abc", rsv=4),
    *(bytes([129, first]) + OVERLONG for first in (0x7E, 0xFE)),
]


@pytest.mark.parametrize("client", [False, True])
@pytest.mark.parametrize("first", PARTS)
def test_after_whatever_came_the_short_cut_gives_what_wsproto_gives(first: bytes, client: bool) -> None:
    last = ws_frame(TEXT, b"last", masked=not client)
    for second in PARTS:
        for chunks in ([first + second + last], [first, second, last]):
            assert outcome(WebSocketCodec, chunks, client=client) == outcome(Plain, chunks, client=client)


talk = st.lists(st.sampled_from(PARTS) | odd_frames | st.binary(max_size=3), max_size=8).map(b"".join)


@given(talk, places, st.booleans(), st.booleans())
def test_however_it_is_split_the_short_cut_gives_what_wsproto_gives(
    wire: bytes, at: list[int], client: bool, closing: bool
) -> None:
    kinds = (WebSocketCodec, Plain)
    real, plain = (outcome(kind, cut(wire, at), client=client, closing=closing) for kind in kinds)
    assert real == plain


@pytest.mark.parametrize("client", [False, True])
def test_after_our_close_frame_the_short_cut_gives_nothing(client: bool) -> None:
    wire = ws_frame(TEXT, b"late", masked=not client)
    assert outcome(WebSocketCodec, [wire], client=client, closing=True)[0] == [([], [], 0)]


@pytest.mark.parametrize("client", [False, True])
def test_a_whole_short_text_frame_takes_the_short_cut(client: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    codec = WebSocketCodec(CAP, client=client)
    monkeypatch.setattr(codec, "_frames", None)
    sent = [b"", "où".encode(), b"x" * 125, b"x" * 126, b"x" * CAP]
    assert feed(codec, [b"".join(ws_frame(TEXT, payload, masked=not client) for payload in sent)])[0] == [
        Message(payload, True) for payload in sent
    ]


# -- the client's side -------------------------------------------------------------------------------------------------


@given(st.lists(messages, max_size=5))
@example(
    [Message(b"\x00\xff" * (n // 2) + b"y" * (n % 2), False) for n in (0, 1, 5, 125, 126, 511, 512, 513, 65535, 65536)]
)
def test_what_the_client_sends_is_masked_and_is_what_a_strict_server_receives(said: list[Message]) -> None:
    codec = WebSocketCodec(CAP, client=True)
    frames = frames_of_client(b"".join(codec.send_message(message) for message in said))
    assert [Message(bytes(item.data), item.opcode is Opcode.TEXT) for item in frames] == said
    assert all(item.fin for item in frames)


def test_each_frame_of_the_clients_has_a_mask_of_its_own() -> None:
    codec = WebSocketCodec(CAP, client=True)
    assert len({codec.send(b"always the same")[2:6] for _ in range(9)}) == 9


@given(st.lists(messages | st.just(Message(b"x" * 70_000, True)), max_size=5), places)
def test_our_two_sides_understand_each_other(said: list[Message], at: list[int]) -> None:
    client, server = (WebSocketCodec(MIB, binary=True, client=client) for client in (True, False))
    for sender, receiver in ((client, server), (server, client)):
        wire = b"".join([sender.send_message(message) + sender.ping(b"?") for message in said])
        received, pongs = feed(receiver, cut(wire, at))
        assert received == said
        assert feed(sender, [pongs]) == ([], b"")
    _, goodbye = feed(client, [server.close(1008, "worker authentication failed")])
    assert (client.closed, client.close_code, client.close_reason) == (True, 1008, "worker authentication failed")
    assert [item.opcode for item in frames_of_client(goodbye)] == [Opcode.CLOSE]
    feed(server, [goodbye])
    assert (server.state, server.close_code) == (State.LEFT, 1008)


@pytest.mark.parametrize(
    ("code", "wire"),
    [
        (PROTOCOL, ws_frame(TEXT, b"x")),
        (PROTOCOL, ws_frame(PING)),
        (PROTOCOL, ws_header(TEXT, CAP + 1)),
        (UNSUPPORTED, ws_frame(BINARY, b"x", masked=False)),
        (NOT_UTF8, ws_frame(TEXT, b"\xff", masked=False)),
        (TOO_BIG, ws_header(TEXT, CAP + 1, masked=False)),
    ],
)
@pytest.mark.parametrize("split", [lambda wire: [wire], single_bytes], ids=["whole", "bytes"])
def test_the_client_refuses_masked_frames_and_what_the_server_refuses(split: Any, code: int, wire: bytes) -> None:
    codec = WebSocketCodec(CAP, client=True)
    messages, output = feed(codec, split(ws_frame(TEXT, b"before", masked=False) + wire))
    assert messages == [Message(b"before", True)]
    (goodbye,) = frames_of_client(output)
    assert (goodbye.opcode, goodbye.data[:2]) == (Opcode.CLOSE, struct.pack("!H", code))
    assert (codec.state, codec.close_code) == (State.BROKEN, None)


@pytest.mark.parametrize("client", [False, True])
def test_a_long_message_goes_in_frames_that_every_peer_takes(client: bool) -> None:
    sender = WebSocketCodec(2**30, client=client)
    receiver = WebSocketCodec(2**30, client=not client)
    text = "é".encode() * (MAX_FRAME_BYTES // 2 + 3)
    sent = sender.send(b"x" + text)
    assert sent[0] == 0x01, "text, and not the last frame"
    receiver.receive_data(sent)
    while (message := receiver.next_message()) is None:
        assert receiver.more
    assert message.data == b"x" + text
