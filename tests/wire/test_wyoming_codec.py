"""Wyoming's codec: any cut of the bytes gives the same events, hostile lengths cost nothing, and the protocol's own
library writes and reads the same."""

from __future__ import annotations

import io
import itertools
import json
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from wyoming import event as reference

from umaserve.core.errors import Fault, RequestError
from umaserve.wire.pcm import mono
from umaserve.wire.wyoming import Event, WyomingCodec, encode

# A busy machine is no fault of the code.

CAP = 400
MIB = 2**20

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
events = st.builds(Event, texts.filter(bool), st.dictionaries(texts, values, max_size=3), st.binary(max_size=20))


def written(event: Event) -> bytes:
    """As the protocol's own library writes it."""
    out = io.BytesIO()
    reference.write_event(reference.Event(event.type, dict(event.data), event.payload), out)
    return out.getvalue()


def inline(event: Event) -> bytes:
    """With its data in the first line."""
    header = {"type": event.type, "data": event.data, "data_length": None, "payload_length": len(event.payload)}
    return json.dumps(header).encode() + b"\n" + event.payload


def cut(wire: bytes, places: list[int]) -> list[bytes]:
    ends = [0, *sorted(place % (len(wire) + 1) for place in places), len(wire)]
    return [wire[start:end] for start, end in itertools.pairwise(ends)]


def decode(chunks: list[bytes], cap: int = MIB) -> list[Event | str]:
    """The events, and the error that ended them."""
    codec, decoded = WyomingCodec(cap), list[Event | str]()
    for chunk in chunks:
        codec.receive_data(chunk)
        try:
            while (event := codec.next_event()) is not None:
                decoded.append(event)
        except RequestError as error:
            return [*decoded, error.message]
    return decoded


@given(st.lists(st.tuples(events, st.sampled_from([written, inline, encode]))), st.lists(st.integers(0)))
def test_any_cut_gives_the_events_that_were_written(sent: list[Any], places: list[int]) -> None:
    wire = b"".join(write(event) for event, write in sent)
    assert decode(cut(wire, places)) == [event for event, _write in sent]


@given(st.lists(events.map(encode) | st.binary(max_size=30)).map(b"".join), st.lists(st.integers(0)))
def test_any_cut_of_any_bytes_is_decoded_as_the_whole_is(wire: bytes, places: list[int]) -> None:
    whole = decode([wire], CAP)
    assert decode(cut(wire, places), CAP) == whole
    assert decode([wire[i : i + 1] for i in range(len(wire))], CAP) == whole


@given(events)
def test_the_reference_reads_what_is_written(event: Event) -> None:
    read = reference.read_event(io.BytesIO(encode(event)))
    assert read is not None
    assert (read.type, read.data, read.payload or b"") == (event.type, event.data, event.payload)


def test_data_behind_the_line_comes_on_top_of_that_in_it() -> None:
    wire = b'{"type": "a", "data": {"x": 1, "y": 1}, "data_length": 8}\n{"y": 2}'
    assert decode([wire]) == [Event("a", {"x": 1, "y": 2})]


@pytest.mark.parametrize(
    ("wire", "message"),
    [
        (b"\n", "header: not valid JSON"),
        (b"GET / HTTP/1.1\r\n", "header: not valid JSON"),
        (b"[]\n", "header: expected an object, got an array"),
        (b"{}\n", "type: expected a non-empty string of at most 64 bytes, got null"),
        (b'{"type": ""}\n', "type: expected a non-empty string of at most 64 bytes, got an empty one"),
        (b'{"type": 5}\n', "type: expected a non-empty string of at most 64 bytes, got a whole number"),
        (b'{"type": "a", "data": 5}\n', "data: expected an object, got a whole number"),
        (b'{"type": "a", "data_length": "5"}\n', "data_length: expected a whole number from 0, got a string"),
        (b'{"type": "a", "data_length": -1}\n', "data_length: expected a whole number from 0, got -1"),
        (b'{"type": "a", "payload_length": true}\n', "payload_length: expected a whole number from 0, got a boolean"),
        (b'{"type": "a", "payload_length": 1.5}\n', "payload_length: expected a whole number from 0, got a number"),
        (b'{"type": "a", "data_length": 2}\n[]', "data: expected an object, got an array"),
        (b'{"type": "a", "data_length": 2}\n{]', "data: not valid JSON"),
        (b"x" * CAP, f"header: expected less than {CAP} bytes, got more"),
        (b'{"type": "a", "data_length": 400}\n', "data_length: expected at most 366, so that"),
        (b'{"type": "a", "payload_length": 1e9}\n', "payload_length: expected at most 363, so that"),
        (b'{"type": "a", "payload_length": 1e300}\n', "payload_length: expected a whole number from 0 to 92233"),
        (b'{"type": "a", "data_length": 300, "payload_length": 100}\n', "payload_length: expected at most 43, so that"),
    ],
)
def test_what_is_wrong_is_told_and_nothing_is_read_behind_it(wire: bytes, message: str) -> None:
    good = Event("good", {"x": 1}, b"12")
    first, told = decode([encode(good) + wire], CAP)
    assert first == good
    assert isinstance(told, str)
    assert told.startswith(message)
    codec = WyomingCodec(CAP)
    codec.receive_data(wire)
    for _ in range(3):
        with pytest.raises(RequestError):
            codec.next_event()
        codec.receive_data(b"\n" + encode(good))


def test_an_event_of_the_longest_length_passes() -> None:
    head = b'{"type": "a", "data_length": 10, "payload_length": 300}\n'
    cap = len(head) + 310
    wire = head + b'{"x": "y"}' + bytes(300)
    assert decode([wire], cap) == [Event("a", {"x": "y"}, bytes(300))]
    (told,) = decode([wire], cap - 1)
    assert isinstance(told, str)
    codec = WyomingCodec(cap - 1)
    codec.receive_data(head)
    with pytest.raises(RequestError) as raised:
        codec.next_event()
    assert raised.value.fault is Fault.FRAME_TOO_LARGE


@pytest.mark.parametrize("claimed", [2**63, 64 * MIB, 64 * MIB - 100])
def test_a_claim_allocates_nothing(claimed: int) -> None:
    tracemalloc.start()
    try:
        told = decode([b'{"type": "a", "payload_length": %d}\nfirst' % claimed], 64 * MIB)
        assert len(told) == (claimed > 64 * MIB - 100)
        assert tracemalloc.get_traced_memory()[1] < 65536
    finally:
        tracemalloc.stop()


def test_what_was_received_and_not_given_out_is_counted() -> None:
    codec, wire = WyomingCodec(MIB), encode(Event("a", {"x": 1}, b"123"))
    codec.receive_data(wire + wire[:-1])
    assert codec.buffered == 2 * len(wire) - 1
    assert codec.next_event() is not None
    assert codec.next_event() is None
    assert codec.buffered == len(wire) - 1, "the line too, until its event is whole"
    codec.receive_data(wire[-1:])
    assert codec.next_event() is not None
    assert codec.buffered == 0


# Samples


@pytest.mark.parametrize(
    ("pcm", "width", "channels", "expected"),
    [
        (bytes([0, 128, 255]), 1, 1, [-1, 0, 127 / 128]),
        (np.array([-32768, 0, 16384, 32767], "<i2").tobytes(), 2, 1, [-1, 0, 0.5, 32767 / 32768]),
        (np.array([-32768, 0, 16384, 16384], "<i2").tobytes(), 2, 2, [-0.5, 0.5]),
        (np.array([-(2**31), 2**30], "<i4").tobytes(), 4, 1, [-1, 0.5]),
        (b"", 2, 2, []),
    ],
)
def test_integers_become_mono_samples(pcm: bytes, width: int, channels: int, expected: list[float]) -> None:
    samples = np.frombuffer(mono(pcm, width, channels), "<f4")
    assert samples.tolist() == pytest.approx(expected)
