"""How much host memory computed sequences get where the settings leave it open."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from umaserve.engine.capacity import host_cache_bytes
from umaserve.sessions.engine_api import SavedBytes
from umaserve.settings.daemon import Config
from umaserve.settings.kinds import AUTO, GIB, MIB

QWEN = SavedBytes(fixed=0, each=12 << 10)


@pytest.mark.parametrize(
    ("cells", "trained", "available", "found"),
    [
        (131072, 32768, 16 * GIB, 768 * MIB),
        (131072, 32768, 2 * GIB, 512 * MIB),
        (131072, 32768, 0, 256 * MIB),
        (4096, 32768, 16 * GIB, 256 * MIB),
    ],
    ids=["two of the trained length", "a quarter of the memory", "no memory", "a short context"],
)
def test_two_sequences_of_the_context_have_room_where_there_is_memory(
    cells: int, trained: int, available: int, found: int
):
    model = SimpleNamespace(n_ctx=cells, n_ctx_train=trained)
    assert host_cache_bytes(model, Config(host_cache_bytes=AUTO), QWEN, available) == found


def test_a_number_is_taken_as_it_is():
    model = SimpleNamespace(n_ctx=131072, n_ctx_train=32768)
    assert host_cache_bytes(model, Config(host_cache_bytes=5 * MIB), QWEN, 16 * GIB) == 5 * MIB
