"""Host memory: what is written stays until it is given back, and the kernel has it then."""

from __future__ import annotations

import ctypes
import threading

from umaserve.engine.llama.host_memory import MAX_KEPT_BYTES, HostMemory, Scratch

SIZE = 1 << 20


def test_what_is_written_stays_until_it_is_given_back() -> None:
    memory = HostMemory(4 * SIZE)
    ctypes.memset(memory.place(SIZE, SIZE), 7, SIZE)
    assert bytes(memory.place(SIZE, SIZE)) == bytes([7]) * SIZE
    memory.give_back()
    assert bytes(memory.place(SIZE, SIZE)) == bytes(SIZE)
    ctypes.memset(memory.place(0, 4 * SIZE), 9, 4 * SIZE)
    assert bytes(memory.place(3 * SIZE, SIZE)) == bytes([9]) * SIZE


def test_a_memory_that_is_closed_keeps_no_thread() -> None:
    def threads() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name == "host memory"]

    before = threads()
    memory = HostMemory(4 * SIZE)
    memory.place(0, SIZE)
    (own,) = [thread for thread in threads() if thread not in before]
    memory.close()
    own.join(30)
    assert not own.is_alive()


def test_a_small_place_is_kept_and_a_large_one_is_not() -> None:
    scratch = Scratch()
    ctypes.memset(scratch.place(SIZE), 7, SIZE)
    assert bytes(scratch.place(SIZE // 2)) == bytes([7]) * (SIZE // 2)
    large = scratch.place(MAX_KEPT_BYTES + 1)
    large[-1] = 1
    assert len(large) == MAX_KEPT_BYTES + 1
    assert bytes(scratch.place(SIZE)) == bytes([7]) * SIZE
    assert ctypes.addressof(scratch.place(MAX_KEPT_BYTES)) == ctypes.addressof(scratch.place(SIZE))
