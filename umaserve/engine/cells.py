"""KV operations on a context: share, cut, save and load sequences."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import llama_cpp

from umaserve.engine.batch import Batch
from umaserve.engine.host_memory import HostMemory
from umaserve.engine.model import Model
from umaserve.engine.positions import Positions
from umaserve.serving.ticks import Copy, KVOperation, Load, Release, Run, Save, Shed

CALIBRATED = (1, 2)
"""Lengths, in tokens, of the two sequences that saved sizes are measured with."""


class Cells:
    """Executes the KV operations of a tick, on the compute thread."""

    def __init__(self, model: Model, host_bytes: int) -> None:
        self.positions = Positions()
        self._context = model.context
        self._memory = llama_cpp.llama_get_memory(model.context)
        self._host = HostMemory(host_bytes) if host_bytes else None

    def move(self, kv_operations: Sequence[KVOperation]) -> bool:
        """Execute all of them, in order; returns whether every save and load succeeded."""
        done = True
        for move in kv_operations:
            match move:
                case Release(slot, start):
                    llama_cpp.llama_memory_seq_rm(self._memory, slot, self.positions.at(slot, start), -1)
                case Copy(source, target, length):
                    end = self.positions.at(source, length)
                    llama_cpp.llama_memory_seq_cp(self._memory, source, target, 0, end)
                case Save(slot, offset, size):
                    place = self._place(offset, size)
                    done &= llama_cpp.llama_state_seq_get_data(self._context, place, size, slot) == size
                case Load(offset, size, slot):
                    place = self._place(offset, size)
                    done &= llama_cpp.llama_state_seq_set_data(self._context, place, size, slot) == size
                case Shed():
                    assert self._host is not None
                    self._host.give_back()
            self.positions.follow(move)
        return done

    def _place(self, offset: int, size: int) -> ctypes.Array[ctypes.c_uint8]:
        assert self._host is not None
        return self._host.place(offset, size)


def saved_bytes(model: Model, batch: Batch) -> tuple[int, int]:
    """Bytes of a saved sequence: the constant part, and the part for each token. Decodes a few tokens to measure."""
    memory = llama_cpp.llama_get_memory(model.context)
    sizes = []
    for length in CALIBRATED:
        batch.fill([Run(0, 0, [0] * length, None)])
        if llama_cpp.llama_decode(model.context, batch.native):
            raise RuntimeError("llama.cpp can't decode a first token")
        sizes.append(llama_cpp.llama_state_seq_get_size(model.context, 0))
        llama_cpp.llama_memory_seq_rm(memory, 0, -1, -1)
    each = (sizes[1] - sizes[0]) // (CALIBRATED[1] - CALIBRATED[0])
    return sizes[0] - CALIBRATED[0] * each, each
