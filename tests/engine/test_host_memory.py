"""Host memory: what is written stays until it is given back, and the kernel has it then."""

from __future__ import annotations

import ctypes

from umaserve.engine.host_memory import HostMemory

SIZE = 1 << 20


def test_what_is_written_stays_until_it_is_given_back() -> None:
    memory = HostMemory(4 * SIZE)
    ctypes.memset(memory.place(SIZE, SIZE), 7, SIZE)
    assert bytes(memory.place(SIZE, SIZE)) == bytes([7]) * SIZE
    memory.give_back()
    assert bytes(memory.place(SIZE, SIZE)) == bytes(SIZE)
    ctypes.memset(memory.place(0, 4 * SIZE), 9, 4 * SIZE)
    assert bytes(memory.place(3 * SIZE, SIZE)) == bytes([9]) * SIZE
