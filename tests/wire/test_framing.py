"""The two codecs: the split of the input never matters, and no length is believed before its bytes have come."""

from __future__ import annotations

import itertools
import struct
import tracemalloc
from collections.abc import Iterable

import pytest
from frames import uds_frame
from hypothesis import example, given
from hypothesis import strategies as st

from umaserve.core.errors import Fault, RequestError
from umaserve.wire.framing import FrameCodec, LineCodec

# A busy machine is no fault of the code.

MIB = 2**20
CAP = 12

Codec = FrameCodec | LineCodec
# The payloads, and whether the input ended in a refusal.
Decoded = tuple[list[bytes], bool]


def take(codec: Codec, at_most: int | None = None) -> Decoded:
    payloads: list[bytes] = []
    # Each payload takes a byte at least; without the bound, a codec that gives one twice would hang the tests.
    turns = codec.buffered + 1 if at_most is None else at_most
    try:
        for _ in range(turns):
            payload = codec.next_payload()
            if payload is None:
                break
            payloads.append(payload)
    except RequestError as error:
        if error.fault is not Fault.FRAME_TOO_LARGE:
            raise
        return payloads, True
    return payloads, False


def decode(codec: Codec, chunks: Iterable[bytes]) -> Decoded:
    payloads: list[bytes] = []
    for chunk in chunks:
        codec.receive_data(chunk)
        more, refused = take(codec)
        payloads += more
        if refused:
            return payloads, True
    return payloads, False


def single_bytes(data: bytes) -> list[bytes]:
    return [data[i : i + 1] for i in range(len(data))]


@st.composite
def splits(draw: st.DrawFn, wires: st.SearchStrategy[bytes]) -> tuple[bytes, list[bytes]]:
    """A byte string, and the same in pieces, empty ones among them."""
    wire = draw(wires)
    cuts = sorted(draw(st.lists(st.integers(0, len(wire)), max_size=10)))
    return wire, [wire[start:end] for start, end in itertools.pairwise([0, *cuts, len(wire)])]


# What each codec must make of a whole input: slow and plain, where the codecs are incremental.


def expected_frames(wire: bytes) -> Decoded:
    payloads: list[bytes] = []
    while len(wire) >= 4:
        length = int.from_bytes(wire[:4], "little")
        if length > CAP:
            return payloads, True
        if len(wire) < 4 + length:
            break
        payloads.append(wire[4 : 4 + length])
        wire = wire[4 + length :]
    return payloads, False


def expected_lines(wire: bytes) -> Decoded:
    *lines, rest = wire.split(b"\n")
    payloads: list[bytes] = []
    for line in lines:
        if len(line) > CAP:
            return payloads, True
        payloads.append(line[:-1] if line.endswith(b"\r") else line)
    return payloads, len(rest) > CAP


# Random bytes alone would nearly always claim too much, so well-made frames and short lines are mixed in.
frame_wires = st.lists(st.binary(max_size=CAP + 2).map(uds_frame) | st.binary(max_size=6), max_size=6).map(b"".join)
line_wires = st.lists(st.sampled_from([b"\n", b"\r", b"\r\n", b"a", b"\xff\x00", b"x" * (CAP - 1)])).map(b"".join)
frames_or_noise = frame_wires | st.binary(max_size=64)
lines_or_noise = line_wires | st.binary(max_size=64)


@given(splits(frames_or_noise))
@example((uds_frame(b""), [uds_frame(b"")]))
def test_any_split_of_any_bytes_decodes_as_the_whole_does_in_frames(case: tuple[bytes, list[bytes]]) -> None:
    wire, chunks = case
    assert decode(FrameCodec(CAP), chunks) == expected_frames(wire)
    assert decode(FrameCodec(CAP), [wire]) == expected_frames(wire)
    assert decode(FrameCodec(CAP), single_bytes(wire)) == expected_frames(wire)


@given(splits(lines_or_noise))
def test_any_split_of_any_bytes_decodes_as_the_whole_does_in_lines(case: tuple[bytes, list[bytes]]) -> None:
    wire, chunks = case
    assert decode(LineCodec(CAP), chunks) == expected_lines(wire)
    assert decode(LineCodec(CAP), [wire]) == expected_lines(wire)
    assert decode(LineCodec(CAP), single_bytes(wire)) == expected_lines(wire)


@given(splits(st.lists(st.binary(max_size=300).map(uds_frame), max_size=8).map(b"".join)))
def test_frames_of_any_size_survive_any_split(case: tuple[bytes, list[bytes]]) -> None:
    wire, chunks = case
    payloads, refused = decode(FrameCodec(300), chunks)
    assert b"".join(uds_frame(payload) for payload in payloads) == wire
    assert not refused


@given(splits(frames_or_noise), splits(lines_or_noise), st.lists(st.integers(0, 3), min_size=11, max_size=11))
def test_a_caller_may_take_fewer_payloads_than_have_come(
    frames: tuple[bytes, list[bytes]], lines: tuple[bytes, list[bytes]], turns: list[int]
) -> None:
    cases: list[tuple[Codec, list[bytes], Decoded]] = [
        (FrameCodec(CAP), frames[1], expected_frames(frames[0])),
        (LineCodec(CAP), lines[1], expected_lines(lines[0])),
    ]
    for codec, chunks, expected in cases:
        payloads: list[bytes] = []
        for chunk, turn in zip(chunks, turns, strict=False):
            codec.receive_data(chunk)
            payloads += take(codec, turn)[0]
        rest, refused = take(codec)
        assert (payloads + rest, refused) == expected


@given(splits(frames_or_noise))
def test_frames_hold_what_was_fed_and_not_given_out(case: tuple[bytes, list[bytes]]) -> None:
    codec, held = FrameCodec(CAP), 0
    for chunk in case[1]:
        payloads, refused = decode(codec, [chunk])
        held += len(chunk) - sum(4 + len(payload) for payload in payloads)
        assert codec.buffered == held
        if refused:
            break


@given(splits(lines_or_noise))
def test_lines_hold_what_was_fed_and_not_given_out(case: tuple[bytes, list[bytes]]) -> None:
    codec, fed = LineCodec(CAP), b""
    for chunk in case[1]:
        fed += chunk
        if decode(codec, [chunk])[1]:
            assert codec.buffered <= len(fed)
            break
        assert codec.buffered == len(fed.rpartition(b"\n")[2])


@given(st.lists(st.binary(max_size=40)))
def test_sent_frames_are_received_as_they_were(payloads: list[bytes]) -> None:
    wire = b"".join(FrameCodec.send(payload) for payload in payloads)
    assert wire == b"".join(uds_frame(payload) for payload in payloads)
    assert decode(FrameCodec(40), [wire]) == (payloads, False)


@given(st.binary())
def test_sent_lines_are_as_the_dialect_wrote_them(payload: bytes) -> None:
    assert LineCodec.send(payload) == payload


def test_header_is_little_endian() -> None:
    assert FrameCodec.send(b"x" * 258) == b"\x02\x01\x00\x00" + b"x" * 258


@pytest.mark.parametrize(
    ("trailing", "then"),
    [
        (b"", b"\x01\x00\x00\x00z"),
        (b"\x01", b"\x00\x00\x00z"),
        (b"\x01\x00\x00\x00", b"z"),
        (b"\x01\x00\x00\x00z", b""),
    ],
)
def test_what_follows_a_frame_waits_for_its_rest(trailing: bytes, then: bytes) -> None:
    codec = FrameCodec(CAP)
    codec.receive_data(uds_frame(b"first") + trailing)
    assert codec.next_payload() == b"first"
    assert codec.buffered == len(trailing)
    codec.receive_data(then)
    assert codec.next_payload() == b"z"
    assert codec.next_payload() is None
    assert codec.buffered == 0


def test_what_follows_a_line_waits_for_its_end() -> None:
    codec = LineCodec(CAP)
    codec.receive_data(b"first\nsec")
    assert (codec.next_payload(), codec.next_payload(), codec.buffered) == (b"first", None, 3)
    codec.receive_data(b"ond\n\nth")
    assert take(codec) == ([b"second", b""], False)
    assert codec.buffered == 2


@pytest.mark.parametrize("codec", [FrameCodec(CAP), LineCodec(CAP)])
def test_nothing_fed_is_nothing_given(codec: Codec) -> None:
    assert codec.next_payload() is None
    codec.receive_data(b"")
    assert codec.next_payload() is None


def test_empty_payload_differs_from_none_yet() -> None:
    assert decode(FrameCodec(CAP), single_bytes(uds_frame(b""))) == ([b""], False)
    assert decode(FrameCodec(CAP), [uds_frame(b"") * 3]) == ([b"", b"", b""], False)
    assert decode(LineCodec(CAP), [b"\n\r\n\n"]) == ([b"", b"", b""], False)


@pytest.mark.parametrize(
    ("wire", "lines"),
    [
        (b"a\r\n", [b"a"]),
        (b"a\r\r\n", [b"a\r"]),
        (b"a\rb\n", [b"a\rb"]),
        (b"\ra\n", [b"\ra"]),
        (b"a\n\rb\n", [b"a", b"\rb"]),
        (b"a\x00b\xff\n", [b"a\x00b\xff"]),
        (b"a\r", []),
    ],
)
def test_only_a_return_right_before_the_end_is_dropped(wire: bytes, lines: list[bytes]) -> None:
    assert decode(LineCodec(CAP), [wire]) == (lines, False)
    assert decode(LineCodec(CAP), single_bytes(wire)) == (lines, False)


# The caps.


@pytest.mark.parametrize("cap", [0, 1, 255, 256, 65536, MIB])
def test_frame_at_its_cap_passes_and_one_byte_over_raises_from_the_header_alone(cap: int) -> None:
    payload = b"x" * cap
    assert decode(FrameCodec(cap), [uds_frame(payload)]) == ([payload], False)
    codec = FrameCodec(cap)
    codec.receive_data(struct.pack("<I", cap + 1))
    with pytest.raises(RequestError) as raised:
        codec.next_payload()
    assert raised.value.fault is Fault.FRAME_TOO_LARGE
    assert raised.value.message == f"frame: expected at most {cap} bytes, got {cap + 1}"


@pytest.mark.parametrize("cap", [1, 255, MIB])
def test_line_at_its_cap_passes_and_one_byte_over_raises_before_its_end_comes(cap: int) -> None:
    line = b"x" * cap
    assert decode(LineCodec(cap), [line, b"\n"]) == ([line], False)
    codec = LineCodec(cap)
    codec.receive_data(line)
    assert codec.next_payload() is None
    codec.receive_data(b"x")
    with pytest.raises(RequestError) as raised:
        codec.next_payload()
    assert raised.value.fault is Fault.FRAME_TOO_LARGE
    assert raised.value.message == f"line: expected at most {cap} bytes, got more"


def test_line_over_its_cap_raises_though_its_end_came_with_it() -> None:
    assert decode(LineCodec(CAP), [b"x" * (CAP + 1) + b"\n"]) == ([], True)


def test_the_return_before_a_lines_end_counts() -> None:
    assert decode(LineCodec(CAP), [b"x" * (CAP - 1) + b"\r\n"]) == ([b"x" * (CAP - 1)], False)
    assert decode(LineCodec(CAP), [b"x" * CAP + b"\r\n"]) == ([], True)


@pytest.mark.parametrize(
    ("codec", "good", "bad", "more"),
    [
        (FrameCodec(CAP), uds_frame(b"good"), struct.pack("<I", CAP + 1), uds_frame(b"later")),
        (LineCodec(CAP), b"good\n", b"x" * (CAP + 1), b"\nlater\n"),
    ],
)
def test_what_came_before_a_refusal_is_given_and_nothing_after_it(
    codec: Codec, good: bytes, bad: bytes, more: bytes
) -> None:
    codec.receive_data(good + bad)
    assert take(codec) == ([b"good"], True)
    codec.receive_data(more)
    for _ in range(3):
        assert take(codec) == ([], True)


# Memory. tracemalloc sees what a buffer really takes, where ``buffered`` only says what the codec believes.


def peak_of_feeding(codec: Codec, *chunks: bytes) -> int:
    tracemalloc.start()
    try:
        decode(codec, chunks)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("claimed", [2**32 - 1, 64 * MIB + 1])
def test_claim_over_the_cap_allocates_nothing(claimed: int) -> None:
    codec = FrameCodec(64 * MIB)
    assert peak_of_feeding(codec, struct.pack("<I", claimed)) < 65536
    assert take(codec) == ([], True)
    assert codec.buffered == 4


@pytest.mark.parametrize("cap", [64 * MIB, 2**32 - 1])
def test_claim_of_the_cap_waits_and_allocates_nothing_for_it(cap: int) -> None:
    codec = FrameCodec(cap)
    assert peak_of_feeding(codec, struct.pack("<I", cap), b"only this") < 65536
    assert take(codec) == ([], False)
    assert codec.buffered == 4 + len(b"only this")


def test_buffer_grows_with_what_came_and_shrinks_with_what_went() -> None:
    frames, lines = FrameCodec(MIB), LineCodec(MIB)
    whole = uds_frame(b"x" * MIB)
    chunks = [whole[start : start + 4096] for start in range(0, len(whole), 4096)]
    # The buffer with the slack of its growth, and the payload that is made from it.
    assert peak_of_feeding(frames, *chunks) < 2.5 * MIB
    assert peak_of_feeding(lines, *[b"x" * 4096] * 255, b"\n") < 2.5 * MIB
    for codec in (frames, lines):
        assert codec.buffered == 0
        # No call says what an emptied buffer keeps, and one that keeps it costs each idle client its largest request.
        assert codec._buffer.__sizeof__() < 65536
