"""What a tick does with sequences in the KV cache before it decodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Release:
    """Remove the tokens of a sequence from position ``start`` on."""

    slot: int
    start: int = 0


@dataclass(frozen=True, slots=True)
class Copy:
    """Let ``target``, which is empty, begin with the first ``length`` tokens of ``source``. They share the cells unless
    these are divided."""

    source: int
    target: int
    length: int


@dataclass(frozen=True, slots=True)
class Save:
    """Copy a whole sequence to the ``size`` bytes of host memory at ``offset``; it may need fewer."""

    slot: int
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Load:
    """Restore into an empty sequence what was saved there."""

    offset: int
    size: int
    slot: int


@dataclass(frozen=True, slots=True)
class Move:
    """Let ``target``, which is empty, have the whole sequence of ``source``, which is then empty."""

    source: int
    target: int


@dataclass(frozen=True, slots=True)
class Divide:
    """Divide the KV cells into ``parts`` of one sequence each, or with 0 into none, so that all sequences share them.
    ``kept``: the sequences that stay, each with its new number."""

    parts: int
    kept: Sequence[tuple[int, int]] = ()


@dataclass(frozen=True, slots=True)
class Shed:
    """Give the host memory back to the system; what is saved there is lost."""


KVOperation = Release | Copy | Save | Load | Move | Divide | Shed
