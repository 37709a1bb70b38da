"""The form of a saved sequence in memory: llama.cpp's state of it, as it is where the KV cells are not divided.

A state is a head and a section of full attention, then one of the sliding window if the model has one. Each section
begins with the number of parts, and where the cells are divided, it has the number of cells of each: zeros before and
behind the part that is the sequence's own. Such a state fits one part of one division only, so it is saved without
them. The zeros at its ends lie in margins around it; what comes behind those in its middle is moved.
"""

from __future__ import annotations

import ctypes
import struct

Place = ctypes.Array[ctypes.c_uint8]

_NUMBER = struct.Struct("<I")
HEAD_BYTES = 8
"""Bytes before the first section: a magic number, and the number of the sequence, which llama.cpp doesn't read."""
_ENDS = struct.Struct("<QQ")
"""The first bytes of a place: where the first section and the last one end, in bytes from the state's begin."""
MAX_PARTS = 256
MARGIN = _ENDS.size + 2 * _NUMBER.size * MAX_PARTS
"""Bytes of a place before the state, and behind it."""


def zeros_bytes(parts: int, sections: int) -> int:
    """Bytes that a division into ``parts`` adds to a state; 0 where there is none (``parts`` 0)."""
    return sections * _NUMBER.size * max(0, parts - 1)


def begin(slot: int, parts: int) -> int:
    """Offset in a place at which the state of ``slot`` is written and read."""
    return MARGIN - (_NUMBER.size * slot if parts else 0)


def note(place: Place, parts: int, size: int, last_size: int) -> None:
    """Note the bytes of the state that was written, and those of its last section, with the zeros of all sections;
    ``last_size`` is 0 where there is one section only."""
    end = size - zeros_bytes(parts, 2 if last_size else 1)
    last = last_size - zeros_bytes(parts, 1) if last_size else 0
    _ENDS.pack_into(place, 0, end - last, end)


def divide(place: Place, slot: int, parts: int) -> int:
    """Bring the state into the form that fits ``slot``, and return its bytes, 0 for what is no state. ``undivide``
    takes it back."""
    first_end, end = _ENDS.unpack_from(place, 0)
    first, last = first_end - HEAD_BYTES, end - first_end
    if first < _NUMBER.size or (last and last < _NUMBER.size) or end > len(place) - 2 * MARGIN:
        return 0
    if not parts:
        return int(end)
    state = ctypes.addressof(place) + MARGIN
    number, before, behind = _NUMBER.pack(parts), bytes(_NUMBER.size * slot), bytes(_NUMBER.size * (parts - 1 - slot))
    if last:
        middle = behind + number + before
        rest = first_end + _NUMBER.size
        ctypes.memmove(state + first_end + len(middle), state + rest, end - rest)
        ctypes.memmove(state + first_end, middle, len(middle))
    size = int(end) + zeros_bytes(parts, 2 if last else 1)
    ctypes.memmove(state + size - zeros_bytes(parts, 1), behind, len(behind))
    beginning = bytes(place[MARGIN : MARGIN + HEAD_BYTES]) + number + before
    ctypes.memmove(state - len(before), beginning, len(beginning))
    return size


def undivide(place: Place, slot: int, parts: int) -> None:
    """Bring the state, which fits ``slot``, into the form that it is saved in."""
    if not parts:
        return
    first_end, end = _ENDS.unpack_from(place, 0)
    state = ctypes.addressof(place) + MARGIN
    one = _NUMBER.pack(1)
    at = begin(slot, parts)
    beginning = bytes(place[at : at + HEAD_BYTES]) + one
    ctypes.memmove(state, beginning, len(beginning))
    if first_end < end:
        rest = first_end + _NUMBER.size
        ctypes.memmove(state + rest, state + first_end + _NUMBER.size * parts, end - rest)
        ctypes.memmove(state + first_end, one, len(one))
