"""How many KV cells a model gets where its settings leave that open."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest
from gguf_bytes import header
from remote_engine import ALLOWANCE
from tiny_models import tiny_model

from umaserve.core.errors import TooLarge
from umaserve.engine import needs
from umaserve.engine.checked_loading import load_checked
from umaserve.engine.context_size import LEAST_CELLS, UNMEASURED_CELLS, settle
from umaserve.engine.llama.model import find
from umaserve.engine.needs import Needs
from umaserve.sessions.engine_api import Allowance
from umaserve.settings.daemon import Config

MIB = 1 << 20
TRAINED = 32768
CELL_BYTES = 1 << 14
"""Of the box's memory, for a cell of the measured model."""
FIXED = 1000 * MIB
"""What it takes besides."""


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "m.gguf").write_bytes(header(("llama.context_length", 4, TRAINED.to_bytes(4, "little"))))
    return str(tmp_path / "m.gguf")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The cells of which was measured what they take."""
    cells: list[int] = []

    def whole(_path: str, config: Config, _wanted: object) -> tuple[Needs, int]:
        cells.append(config.n_ctx)
        return Needs(FIXED, config.n_ctx * CELL_BYTES, 0, 0, config.n_ctx, 16, gpu_room=1 << 40), 0

    monkeypatch.setattr(needs, "whole", whole)
    return cells


def settled(path: str, available: int, known_bytes: int = 0, known_cells: int = 0, **settings: object) -> Config:
    config = replace(Config(model=path, host_cache_bytes=0), **settings)
    return settle(path, config, available, lambda: True, known_bytes, known_cells)[0]


def test_with_much_memory_four_sequences_are_as_long_as_the_model_was_trained_for(model: str, asked: list[int]) -> None:
    assert settled(model, 1 << 40).n_ctx == 4 * TRAINED
    assert settled(model, 1 << 40, parallel=2).n_ctx == 2 * TRAINED
    assert asked == [4 * TRAINED, 2 * TRAINED]


def test_cells_get_half_of_what_the_model_leaves(model: str, asked: list[int]) -> None:
    # Nine tenths of it are ample.
    available = (FIXED + 2 * 640 * MIB) * 10 // 9
    found = settled(model, available).n_ctx
    assert 0.99 * 640 * MIB <= found * CELL_BYTES <= 640 * MIB
    assert asked == [4 * TRAINED, found]
    assert settled(model, available, host_cache_bytes=320 * MIB).n_ctx == pytest.approx(found * 3 / 4, rel=0.01)
    assert settled(model, available, n_ctx=50_000).n_ctx == 50_000, "a number is a number"


def test_a_box_without_room_gives_the_least_or_refuses(model: str, asked: list[int]) -> None:
    enough = FIXED + LEAST_CELLS * CELL_BYTES
    assert settled(model, enough + MIB).n_ctx == LEAST_CELLS
    with pytest.raises(TooLarge, match=r"lower --n-ctx \(4096\)|choose a smaller model"):
        settled(model, enough - MIB)
    assert asked == [4 * TRAINED, LEAST_CELLS] * 2


def test_cells_on_a_gpu_get_what_it_has_room_for(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def whole(_path: str, config: Config, _wanted: object) -> tuple[Needs, int]:
        taken = config.n_ctx * CELL_BYTES
        return Needs(0, 0, 0, 0, config.n_ctx, 16, gpu_cells=taken, gpu_room=1024 * MIB), 0

    monkeypatch.setattr(needs, "whole", whole)
    assert settled(model, 1 << 40).n_ctx == 65536


def test_a_known_model_is_measured_again_only_where_memory_was_short_or_is(model: str, asked: list[int]) -> None:
    assert settled(model, 1 << 40, known_bytes=3000 * MIB, known_cells=4 * TRAINED).n_ctx == 4 * TRAINED
    assert asked == []
    assert settled(model, 1 << 40, known_bytes=1100 * MIB, known_cells=8192).n_ctx == 4 * TRAINED
    assert settled(model, 2000 * MIB, known_bytes=3000 * MIB, known_cells=4 * TRAINED).n_ctx < TRAINED
    assert asked[:2] == [4 * TRAINED, 4 * TRAINED]


def test_what_nobody_can_measure_gets_a_moderate_number(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needs, "whole", lambda *_: None)
    assert settled(model, 1 << 40).n_ctx == UNMEASURED_CELLS
    assert settled(model, 1 << 40, rpc=("box:1",)).n_ctx == UNMEASURED_CELLS


def test_the_default_model_is_measured_only_where_little_is_available(monkeypatch: pytest.MonkeyPatch) -> None:
    found = settle(find(""), Config(host_cache_bytes=0), 1000 * MIB, lambda: True)[0].n_ctx
    # Its cells take 22.5 KiB each.
    assert LEAST_CELLS < found * 23040 < 450 * MIB
    monkeypatch.setattr(needs, "whole", None)
    assert settle(find(""), Config(), 4 << 30, lambda: True)[0].n_ctx == 32768


def test_the_log_says_what_a_sequence_may_have_and_why(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    path = tiny_model(tmp_path / "model.gguf", "llama")
    engine = load_checked(Config(model=path, parallel=2), ALLOWANCE, lambda _fraction: True)
    capacity = engine.capacity
    engine.close()
    assert (capacity.sequence_tokens, capacity.cells) == (1024, 2048)
    assert "context: a sequence may have 1024 tokens, as the model was trained for" in caplog.text
    few = Allowance(64 * MIB, beside=False)
    for settings, why in (
        ({"n_ctx": 256}, "256 tokens, as n_ctx says; the model was trained for 1024"),
        ({"n_ctx": 0}, "1024 tokens, as the model was trained for"),
    ):
        load_checked(Config(model=path, parallel=2, **settings), few, lambda _fraction: True).close()
        assert f"context: a sequence may have {why}" in caplog.text
