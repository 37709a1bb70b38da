"""Where the tokens of each sequence stand for llama.cpp: an image may take fewer positions than tokens (M-RoPE)."""

from __future__ import annotations

from umaserve.serving.ticks import Copy, KVOperation, Load, Release, Save, Shed

Gaps = tuple[tuple[int, int], ...]
"""Behind which token of the sequence, and by how many positions all that follow stand nearer to its start."""


class Positions:
    """Follows the moves of ``Cells``. Sequences without gaps, which are all in most models, are not even mentioned."""

    def __init__(self) -> None:
        self._gaps: dict[int, Gaps] = {}
        self._saved: dict[int, Gaps] = {}
        """By their offset in host memory."""

    def at(self, slot: int, index: int) -> int:
        """The position of the token of this index."""
        gaps = self._gaps.get(slot)
        return index if gaps is None else index - sum(size for end, size in gaps if end <= index)

    def skip(self, slot: int, end: int, size: int) -> None:
        """What was decoded up to the token ``end`` took so many positions less than tokens."""
        if size:
            self._gaps[slot] = (*self._gaps.get(slot, ()), (end, size))

    def follow(self, move: KVOperation) -> None:
        """Do to the gaps what ``move`` does to the cells."""
        match move:
            case Release(slot, start):
                _set(self._gaps, slot, self._before(slot, start))
            case Copy(source, target, length):
                _set(self._gaps, target, self._before(source, length))
            case Save(slot, offset, _size):
                _set(self._saved, offset, self._gaps.get(slot, ()))
            case Load(offset, _size, slot):
                _set(self._gaps, slot, self._saved.get(offset, ()))
            case Shed():
                self._saved.clear()

    def _before(self, slot: int, index: int) -> Gaps:
        return tuple((end, size) for end, size in self._gaps.get(slot, ()) if end <= index)


def _set(gaps: dict[int, Gaps], key: int, its: Gaps) -> None:
    if its:
        gaps[key] = its
    else:
        gaps.pop(key, None)
