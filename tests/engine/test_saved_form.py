"""Saved sequences in each part of a division, without a model: what llama.cpp writes is what it reads elsewhere."""

from __future__ import annotations

import ctypes
import struct

import pytest

from umaserve.engine.llama import saved_form
from umaserve.engine.llama.saved_form import MARGIN, MAX_PARTS, Place

HEAD = b"8 bytes!"
SECTIONS = [[b"full attention"], [b"full attention", b"the sliding window, which is longer"], [b"", b"window"]]


def number(value: int) -> bytes:
    return struct.pack("<I", value)


def state(sections: list[bytes], slot: int = 0, parts: int = 0) -> bytes:
    """A state as llama.cpp writes it for a slot."""
    if not parts:
        slot, parts = 0, 1
    behind = parts - 1 - slot
    return HEAD + b"".join(number(parts) + bytes(4 * slot) + data + bytes(4 * behind) for data in sections)


def write(place: Place, sections: list[bytes], slot: int, parts: int) -> None:
    written = state(sections, slot, parts)
    at = saved_form.begin(slot, parts)
    place[at : at + len(written)] = written
    last = len(state(sections[-1:], slot, parts)) - len(HEAD) if len(sections) > 1 else 0
    saved_form.note(place, parts, len(written), last)
    saved_form.undivide(place, slot, parts)


def read(place: Place, slot: int, parts: int) -> bytes:
    size = saved_form.divide(place, slot, parts)
    at = saved_form.begin(slot, parts)
    found = bytes(place[at : at + size])
    saved_form.undivide(place, slot, parts)
    return found


def room(sections: list[bytes]) -> Place:
    """A place for these sections, between bytes that nobody may write."""
    whole = ctypes.c_uint8 * (len(state(sections)) + 2 * MARGIN)
    return whole.from_buffer(bytearray(b"\xff" * ctypes.sizeof(whole)))


@pytest.mark.parametrize("sections", SECTIONS)
@pytest.mark.parametrize(("slot", "parts"), [(0, 0), (3, 0), (0, 2), (1, 2), (5, 16), (0, MAX_PARTS), (255, MAX_PARTS)])
def test_what_was_saved_in_one_part_can_be_loaded_into_any_other(sections: list[bytes], slot: int, parts: int):
    place = room(sections)
    write(place, sections, slot, parts)
    for _twice in range(2):
        for other, others in [(0, 0), (0, 2), (1, 2), (15, 16), (0, MAX_PARTS), (255, MAX_PARTS), (7, MAX_PARTS)]:
            assert read(place, other, others) == state(sections, other, others)


@pytest.mark.parametrize("sections", SECTIONS)
def test_a_saved_state_is_the_one_without_parts(sections: list[bytes]):
    place = room(sections)
    write(place, sections, 3, 5)
    expected = state(sections)
    assert bytes(place[MARGIN : MARGIN + len(expected)]) == expected


@pytest.mark.parametrize("ends", [(0, 0), (9, 8), (8, 20), (11, 20), (20, 22), (20, 1000), (20, 1 << 63)])
def test_a_place_without_a_state_is_told_before_anything_is_written(ends: tuple[int, int]):
    place = room([b"full attention"])
    struct.pack_into("<QQ", place, 0, *ends)
    before = bytes(place)
    assert saved_form.divide(place, 1, 2) == 0
    assert bytes(place) == before
