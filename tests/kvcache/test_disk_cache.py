"""Which sequences are worth reading from disk."""

from __future__ import annotations

import hashlib

import pytest
from clock import Clock
from standin import StandInEngine, SteppedWorker

from umaserve.core.metrics import ServingMetrics
from umaserve.kvcache.disk_cache import DiskCache
from umaserve.kvcache.slots import Slots
from umaserve.sessions.cost_model import Cost
from umaserve.sessions.engine_api import Kept

TOKENS = tuple(range(1, 5001))
BATCH = 512


def cache_with(tokens: tuple[int, ...]) -> DiskCache:
    """A cache that has this sequence on disk."""
    capacity = {"batch_tokens": BATCH, "cells": 8192, "sequence_tokens": 8192}
    engine, worker = StandInEngine(**capacity, host_bytes=1 << 20, keeps=True), SteppedWorker()
    engine.disk["kept"] = Kept("kept", hashlib.blake2b(b"", digest_size=16).hexdigest(), tokens), []
    disk = DiskCache(engine, worker, Slots(engine.capacity), ServingMetrics(), Clock())
    disk.next(Cost())
    worker.step()
    return disk


@pytest.mark.parametrize(
    ("cost", "reads"),
    [
        pytest.param(Cost(fixed_s=0.05, prefill_row_s=1e-9), True, id="all of a tick's time in its decode"),
        pytest.param(Cost(fixed_s=0.0, prefill_row_s=1e-9, attention_s=1e-5), True, id="all of it in attention"),
        pytest.param(Cost(fixed_s=0.0, prefill_row_s=1e-9, several_s=0.0), False, id="computing is as fast"),
    ],
)
def test_a_prompt_is_read_where_all_of_its_computing_takes_longer(cost: Cost, reads: bool) -> None:
    disk = cache_with(TOKENS)
    disk.next(cost)
    assert (disk.better("", (*TOKENS, 7), 0) is not None) is reads
