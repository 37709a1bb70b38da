"""The llama.cpp positions of each sequence's tokens: with M-RoPE, an image takes fewer positions than tokens."""

from __future__ import annotations

from umaserve.sessions.kv_operations import Copy, Divide, KVOperation, Load, Move, Release, Save, Shed

Gaps = tuple[tuple[int, int], ...]
"""Gaps of a sequence. For each: the index of the first token after it, and the number of positions skipped there."""


class Positions:
    """Follows the KV operations of ``Cells``. Sequences without gaps, all of them in most models, have no entry."""

    def __init__(self) -> None:
        self._gaps: dict[int, Gaps] = {}
        self._saved: dict[int, Gaps] = {}
        """The gaps of saved sequences by their offset in host memory."""

    def at(self, slot: int, index: int) -> int:
        """The position of the token at ``index``."""
        gaps = self._gaps.get(slot)
        return index if gaps is None else index - sum(size for end, size in gaps if end <= index)

    def skip(self, slot: int, end: int, size: int) -> None:
        """Note that the chunk that ends before token ``end`` took ``size`` fewer positions than tokens."""
        if size:
            self._gaps[slot] = (*self._gaps.get(slot, ()), (end, size))

    def forget_saved(self, offset: int) -> None:
        """Forget the gaps of what was saved at ``offset``: what is saved there now has none. From any thread."""
        self._saved.pop(offset, None)

    def follow(self, move: KVOperation) -> None:
        """Apply a KV operation to the gaps."""
        match move:
            case Release(slot, start):
                _set(self._gaps, slot, self._before(slot, start))
            case Copy(source, target, length):
                _set(self._gaps, target, self._before(source, length))
            case Save(slot, offset, _size):
                _set(self._saved, offset, self._gaps.get(slot, ()))
            case Load(offset, _size, slot):
                _set(self._gaps, slot, self._saved.get(offset, ()))
            case Move(source, target):
                _set(self._gaps, target, self._gaps.pop(source, ()))
            case Divide(_parts, kept):
                self._gaps = {slot: self._gaps[before] for before, slot in kept if before in self._gaps}
            case Shed():
                self._saved.clear()

    def _before(self, slot: int, index: int) -> Gaps:
        return tuple((end, size) for end, size in self._gaps.get(slot, ()) if end <= index)


def _set(gaps: dict[int, Gaps], key: int, its: Gaps) -> None:
    if its:
        gaps[key] = its
    else:
        gaps.pop(key, None)
