"""KV operations on a context: share, cut, move, save and load sequences, and divide the cells."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

import llama_cpp

from umaserve.engine.llama import saved_form
from umaserve.engine.llama.batch import Batch
from umaserve.engine.llama.host_memory import HostMemory, Scratch
from umaserve.engine.llama.model import CELLS_ROUNDED_TO, Model
from umaserve.engine.llama.positions import Positions
from umaserve.engine.llama.saved_form import HEAD_BYTES, MARGIN, Place
from umaserve.sessions.engine_api import Run, SavedBytes
from umaserve.sessions.kv_operations import Copy, Divide, KVOperation, Load, Move, Release, Save, Shed

_WITHOUT_FULL_ATTENTION = llama_cpp.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY


class Cells:
    """Executes the KV operations of a tick, on the compute thread."""

    def __init__(self, model: Model, host_bytes: int) -> None:
        self.positions = Positions()
        self._model = model
        self._sections = _sections(model)
        self._host = HostMemory(host_bytes) if host_bytes else None
        self._scratch = Scratch()

    def close(self) -> None:
        if self._host is not None:
            self._host.close()

    def move(self, kv_operations: Sequence[KVOperation]) -> bool:
        """Execute all ``kv_operations``, in order; returns whether all succeeded. Raises ``ModelError`` if the cells
        could not be divided."""
        done = True
        copied: tuple[int, Place] | None = None
        """The source of the latest copy, and its state: many may begin with one."""
        for move in kv_operations:
            match move:
                case Release(slot, start):
                    first = self.positions.at(slot, start)
                    done &= bool(llama_cpp.llama_memory_seq_rm(self._model.memory, slot, first, -1))
                case Copy(source, target, length):
                    end = self.positions.at(source, length)
                    if self._model.parts:
                        # llama.cpp aborts the process where a part of a sequence is to be copied to other cells.
                        if copied is None or copied[0] != source:
                            copied = source, self._state(source, self._scratch.place)
                        done &= self._load(copied[1], target)
                        llama_cpp.llama_memory_seq_rm(self._model.memory, target, end, -1)
                    else:
                        llama_cpp.llama_memory_seq_cp(self._model.memory, source, target, 0, end)
                case Save(slot, offset, size):
                    done &= self._save(self._place(offset, size), slot)
                case Load(offset, size, slot):
                    done &= self._load(self._place(offset, size), slot)
                case Move(source, target):
                    done &= self._load(self._state(source, self._scratch.place), target)
                    llama_cpp.llama_memory_seq_rm(self._model.memory, source, -1, -1)
                case Divide(parts, kept):
                    states = [(self._state(before, Scratch().place), slot) for before, slot in kept]
                    self._model.divide(parts)
                    for state, slot in states:
                        done &= self._load(state, slot)
                case Shed():
                    assert self._host is not None
                    self._host.give_back()
            if not isinstance(move, Copy):
                copied = None
            self.positions.follow(move)
        return done

    def fit_parts(self, batch: Batch) -> bool:
        """Whether a sequence can be moved from part to part. Decodes two tokens to find out: where llama.cpp keeps
        more than one entry for each token (sparse attention), it saves them in another form than ``_load`` writes."""
        last = self._model.parts - 1
        batch.fill([Run(0, 0, [0, 0], None)])
        if llama_cpp.llama_decode(self._model.context, batch.native):
            raise RuntimeError("llama.cpp can't decode a first token")
        before = self._state(0, Scratch().place)
        there_and_back = self.move([Move(0, last), Move(last, 0)])
        fit = there_and_back and bytes(self._state(0, Scratch().place)) == bytes(before)
        llama_cpp.llama_memory_seq_rm(self._model.memory, 0, -1, -1)
        llama_cpp.llama_memory_seq_rm(self._model.memory, last, -1, -1)
        return fit

    def saved(self, offset: int, size: int) -> memoryview:
        """The bytes of a saved sequence, to read or write; from any thread."""
        return memoryview(self._place(offset, size)).cast("B")

    def _place(self, offset: int, size: int) -> Place:
        assert self._host is not None
        return self._host.place(offset, size)

    def _state(self, slot: int, place_of: Callable[[int], Place]) -> Place:
        """State of the sequence as ``_save`` makes it, in a place of as many bytes as that takes."""
        size: int = llama_cpp.llama_state_seq_get_size(self._model.context, slot) - self._divided_bytes()
        place = place_of(size + 2 * MARGIN)
        if not self._save(place, slot):
            raise RuntimeError(f"the state of sequence {slot} has another size than llama.cpp said")
        return place

    def _save(self, place: Place, slot: int) -> bool:
        model = self._model
        size = len(place) - 2 * MARGIN + self._divided_bytes()
        begin = saved_form.begin(slot, model.parts)
        state = (ctypes.c_uint8 * size).from_buffer(place, begin)
        written = int(llama_cpp.llama_state_seq_get_data(model.context, state, size, slot))
        # A sliding window may have less to save than its most.
        if not 0 < written <= size:
            return False
        last = 0
        if self._sections > 1:
            last = llama_cpp.llama_state_seq_get_size_ext(model.context, slot, _WITHOUT_FULL_ATTENTION) - HEAD_BYTES
        saved_form.note(place, model.parts, written, last)
        saved_form.undivide(place, slot, model.parts)
        return True

    def _load(self, place: Place, slot: int) -> bool:
        parts = self._model.parts
        size = saved_form.divide(place, slot, parts)
        if not size:
            return False
        state = (ctypes.c_uint8 * size).from_buffer(place, saved_form.begin(slot, parts))
        read = int(llama_cpp.llama_state_seq_set_data(self._model.context, state, size, slot))
        # It may be loaded again.
        saved_form.undivide(place, slot, parts)
        return 0 < read <= size

    def _divided_bytes(self) -> int:
        """The bytes that the division adds to the state of a sequence."""
        return saved_form.zeros_bytes(self._model.parts, self._sections)


def _sections(model: Model) -> int:
    """The sections of a sequence's state. A file may name a sliding window that the model doesn't use."""
    if not model.window:
        return 1
    whole = llama_cpp.llama_state_seq_get_size(model.context, 0)
    in_windows = llama_cpp.llama_state_seq_get_size_ext(model.context, 0, _WITHOUT_FULL_ATTENTION)
    return 2 if in_windows < whole else 1


def saved_bytes(model: Model, batch: Batch) -> SavedBytes:
    """Bytes of a saved sequence. Decodes a few tokens to measure."""
    first, first_in_windows = _sizes(model, batch, Run(0, 0, [0], None))
    second, second_in_windows = _sizes(model, batch, Run(0, 0, [0, 0], None))
    each = second - first
    fixed = first - each - saved_form.zeros_bytes(model.parts, _sections(model)) + 2 * MARGIN
    # Where all is full attention, llama.cpp leaves nothing out.
    last = second_in_windows - first_in_windows if first_in_windows < first else 0
    if model.window:
        return SavedBytes(fixed, each - last, last, model.window)
    if last and model.written_window:
        # llama.cpp says nothing of a window before which it keeps several tokens together, in one row.
        return SavedBytes(fixed, each - last + _rows_each(model, batch, first), last, model.written_window)
    return SavedBytes(fixed, each)


def _rows_each(model: Model, batch: Batch, first: int) -> int:
    """Bytes for each token of the rows that keep several tokens together. llama.cpp saves as many rows as belong before
    the last token's position, so a single token there tells. ``first``: the bytes of a first token."""
    tokens = max(CELLS_ROUNDED_TO, min(model.n_ctx, model.n_ctx_train) // CELLS_ROUNDED_TO * CELLS_ROUNDED_TO)
    size, _in_windows = _sizes(model, batch, Run(0, tokens - 1, [0], None))
    return -(-(size - first) // tokens)


def _sizes(model: Model, batch: Batch, run: Run) -> tuple[int, int]:
    """The bytes of the sequence that is nothing but ``run``: all, and those without full attention."""
    batch.fill([run])
    if llama_cpp.llama_decode(model.context, batch.native):
        raise RuntimeError("llama.cpp can't decode a first token")
    size: int = llama_cpp.llama_state_seq_get_size(model.context, run.slot)
    in_windows: int = llama_cpp.llama_state_seq_get_size_ext(model.context, run.slot, _WITHOUT_FULL_ATTENTION)
    llama_cpp.llama_memory_seq_rm(model.memory, run.slot, -1, -1)
    return size, in_windows
