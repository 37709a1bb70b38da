"""A box as the simulator knows it: what a tick costs there and what its engine can hold, kept as a small JSON file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from umaserve.core.errors import ConfigError, RequestError
from umaserve.sessions.cost_model import Cost
from umaserve.wire.fields import Fields, bad_request, out_of_range, parse_json

_COSTS = ("fixed_s", "decode_row_s", "prefill_row_s", "attention_s", "several_s")
_CAPACITY = {"slots": 2**16, "cells": 2**40, "batch_tokens": 2**20}
"""The most that each may be."""
_MAX_S = 60.0
_NOTE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Box:
    """``cost`` in seconds; ``slots`` sequences at once, ``cells`` of KV for all of them, ``batch_tokens`` a tick."""

    cost: Cost
    slots: int
    cells: int
    batch_tokens: int
    note: str = ""
    """Where the figures come from."""

    @classmethod
    def load(cls, path: Path) -> Box:
        """Raises ``ConfigError`` that names the file and the field."""
        try:
            return cls._of(parse_json(path.read_bytes()))
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}") from None
        except RequestError as error:
            raise ConfigError(f"{path}: {error}") from None

    @classmethod
    def _of(cls, values: object) -> Box:
        fields = Fields.of(values, "box")
        cost = Cost(**{name: _number(fields, name) for name in _COSTS})
        capacity = {name: _whole(fields, name, most) for name, most in _CAPACITY.items()}
        note = fields.string("note", max_bytes=_NOTE_BYTES, empty=True) or ""
        _refuse_others(fields.values)
        if capacity["slots"] > capacity["batch_tokens"]:
            raise out_of_range("box.slots", "at most batch_tokens", capacity["slots"])
        return cls(cost, note=note, **capacity)


def _number(fields: Fields, name: str) -> float:
    # A prompt must cost something: the policy divides by it.
    value = fields.number(name, 0.0, _MAX_S, above_low=name == "prefill_row_s")
    if value is None:
        raise bad_request(fields.name(name), "a number of seconds", None)
    return value


def _whole(fields: Fields, name: str, most: int) -> int:
    value = fields.integer(name, 1, most)
    if value is None:
        raise bad_request(fields.name(name), "a whole number", None)
    return value


def _refuse_others(values: Mapping[str, object]) -> None:
    known = (*_COSTS, *_CAPACITY, "note")
    for name in values:
        if name not in known:
            raise out_of_range("box", f"only {', '.join(known)}", f'"{name}"')
