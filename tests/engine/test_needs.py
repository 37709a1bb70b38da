"""What memory a model takes, before it is loaded."""

from __future__ import annotations

import dataclasses
import logging
import re
from pathlib import Path

import pytest
from remote_engine import ALLOWANCE
from tiny_models import EMBEDDING, tiny_model

from umaserve.core.errors import ModelError, TooLarge
from umaserve.engine import needs
from umaserve.engine.checked_loading import load_checked
from umaserve.engine.engine import LlamaEngine
from umaserve.engine.files.empty_model import buffer_bytes, cell_bytes
from umaserve.engine.llama.model import find
from umaserve.engine.needs import Needs
from umaserve.sessions.engine_api import Allowance
from umaserve.settings.daemon import Config

MIB = 2**20
NEEDS = Needs(weights=400 * MIB, cells=300 * MIB, computing=90 * MIB, vocabulary=10 * MIB, n_ctx=16384, n_seq_max=48)


def measured(path: str, **settings: object) -> Needs | None:
    return needs.measured(path, dataclasses.replace(Config(), **settings), lambda: True)


def test_the_default_model() -> None:
    path = find("")
    found = measured(path)
    assert found is not None
    assert 0.95 * Path(path).stat().st_size < found.weights <= Path(path).stat().st_size
    # 30 layers with 3 heads of 64 values each, K and V, two bytes a value.
    assert found.cells == found.n_ctx * 30 * 3 * 64 * 2 * 2
    assert 8 * MIB < found.computing < 64 * MIB, "not room for the logits of 512 tokens"
    assert MIB < found.vocabulary < 64 * MIB
    assert found.total == found.weights + found.cells + found.computing + found.vocabulary


def test_cells_cost_by_their_number_and_kind() -> None:
    whole = measured(find(""), n_ctx=1 << 20)
    small = measured(find(""), n_ctx=1 << 20, kv_type="q8_0", parallel=1)
    assert whole is not None
    assert small is not None
    assert whole.cells == 64 * 360 * MIB
    # 34 bytes for 32 values of two bytes each
    assert small.cells == pytest.approx(whole.cells * 34 / 64)


@pytest.mark.parametrize("architecture", ["llama", "gemma3", "mamba", "lfm2"])
def test_every_way_to_remember(architecture: str, tmp_path: Path) -> None:
    found = measured(tiny_model(tmp_path / "model.gguf", architecture), n_ctx=4096)
    assert found is not None
    assert 0 < found.weights < 4 * MIB
    assert 0 < found.cells < 64 * MIB
    assert found.computing > 0


def test_a_model_without_cells(tmp_path: Path) -> None:
    found = measured(tiny_model(tmp_path / "model.gguf", next(iter(EMBEDDING))))
    assert found is not None
    assert (found.cells, found.computing > 0) == (0, True)


def test_nothing_is_known_of_what_llama_cpp_ends_at(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    path = tiny_model(tmp_path / "model.gguf", "llama", attention__head_count=3)
    assert measured(path) is None
    assert "is unknown: umaserve.engine.files.empty_model ended by Aborted: " in caplog.text
    assert needs.check(path, Config(model=path), MIB, lambda: True) == 0


def test_nothing_is_known_once_it_is_not_wanted() -> None:
    assert needs.measured(find(""), Config(), lambda: False) is None


def test_what_the_log_says() -> None:
    lines = [
        "llama_kv_cache: size =  180.00 MiB (   512 cells,  30 layers, 16/16 seqs), K (f16):   90.00 MiB",
        "llama_memory_recurrent: size =    1.50 MiB (    16 cells,   2 layers, 16 seqs), R (f32):    0.50 MiB",
        "llama_kv_cache:        CPU KV buffer size =     0.00 MiB",
        "llama_context:        CPU  output buffer size =     3.00 MiB",
        "sched_reserve:      CUDA0 compute buffer size =   999.00 MiB",
        "sched_reserve:  CUDA_Host compute buffer size =     4.00 MiB",
        "sched_reserve:        CPU compute buffer size =    98.25 MiB",
        "sched_reserve:        CPU compute buffer size =    20.00 MiB",
    ]
    assert cell_bytes(lines) == 181.5 * MIB
    assert buffer_bytes(lines) == 27 * MIB, "of each buffer its latest size, and none on other devices"
    with pytest.raises(ModelError, match="doesn't say"):
        buffer_bytes(lines[:3])


def judged(caplog: pytest.LogCaptureFixture, available: int, found: Needs = NEEDS, **settings: object) -> str:
    """The warning."""
    caplog.clear()
    config = dataclasses.replace(Config(), host_cache_bytes=0, **settings)
    needs.judge("m.gguf", config, found, 50 * MIB, available * MIB)
    return caplog.text


def test_what_fits_well_is_not_mentioned(caplog: pytest.LogCaptureFixture) -> None:
    assert judged(caplog, 1000) == ""


def test_what_barely_fits_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    assert (
        "memory may run short. model m.gguf: it takes 850 MiB of memory (weights 400, KV cells 300, computing 100, "
        "draft model and projector 50), and 860 MiB are available"
    ) in judged(caplog, 860)
    assert "--host-cache-bytes lets it take 256 more" not in caplog.text
    needs.judge("m.gguf", Config(host_cache_bytes=256 * MIB), NEEDS, 0, 1000 * MIB)
    assert "1000 MiB are available, and --host-cache-bytes lets it take 256 more" in caplog.text


@pytest.mark.parametrize(
    ("available", "settings", "remedy"),
    [
        (849, {}, "lower --n-ctx (16384) or --parallel (16), set --kv-type q8_0, or choose a smaller model"),
        (500, {"kv_type": "q4_0", "parallel": 4}, "lower --n-ctx (16384) or --parallel (4), or choose a smaller model"),
        (400, {}, "choose a smaller model or a stronger quantization"),
    ],
)
def test_what_can_not_fit_is_refused(
    available: int, settings: dict[str, object], remedy: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ModelError, match=re.escape("takes 850 MiB of memory (weights 400")) as error:
        judged(caplog, available, **settings)
    assert f", and {available} MiB are available: {remedy}" in str(error.value)


def test_a_model_and_its_draft_model_are_measured_together(tmp_path: Path) -> None:
    path = tiny_model(tmp_path / "model.gguf", "llama")
    alone = needs.check(path, Config(model=path, n_ctx=4096), 64 * MIB, lambda: True)
    draft = Config(model=path, n_ctx=4096, draft_model=find(""))
    with pytest.raises(TooLarge, match=r"model \S+model\.gguf: it takes .*draft model and projector") as refused:
        needs.check(path, draft, 64 * MIB, lambda: True)
    assert 0 < alone < 64 * MIB < refused.value.needed_bytes
    assert needs.check(path, draft, 1 << 40, lambda: True) == pytest.approx(refused.value.needed_bytes, rel=0.05)


def test_the_default_model_is_measured_where_it_is_long() -> None:
    assert needs.check(find(""), Config(), MIB, lambda: True) == 0
    with pytest.raises(TooLarge, match=r"and 1 MiB are available: .*--n-ctx \(1000192\)|choose a smaller"):
        needs.check(find(""), Config(n_ctx=1_000_000), MIB, lambda: True)


def test_the_engine_is_not_loaded_where_too_little_memory_is_available() -> None:
    with pytest.raises(TooLarge, match=r"it takes 2\d{4} MiB of memory .*, and 1000 MiB are available: lower --n-ctx"):
        load_checked(Config(n_ctx=1 << 20), Allowance(1000 * MIB, beside=False), lambda _fraction: True)


def test_the_loaded_model_tells_what_it_takes(tmp_path: Path) -> None:
    path = tiny_model(tmp_path / "model.gguf", "llama")
    config = Config(model=path, n_ctx=4096, parallel=2)
    engine = load_checked(config, ALLOWANCE, lambda _fraction: True)
    try:
        assert engine.info.needed_bytes > Path(path).stat().st_size
    finally:
        engine.close()


def test_what_is_known_is_not_measured_where_there_is_ample_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny_model(tmp_path / "model.gguf", "llama")
    config = Config(model=path, n_ctx=4096, host_cache_bytes=0)

    def checked(available: int, known: int) -> int:
        return needs.check(path, config, available, lambda: True, known)

    assert checked(500 * MIB, 451 * MIB) < 64 * MIB, "measured, since it is more than nine tenths"
    monkeypatch.setattr(needs, "measured", None)
    assert checked(500 * MIB, 449 * MIB) == 449 * MIB


def test_too_much_is_measured_again_before_it_is_refused(tmp_path: Path) -> None:
    path = tiny_model(tmp_path / "model.gguf", "llama")
    config = Config(model=path, n_ctx=4096)
    assert needs.check(path, config, 64 * MIB, lambda: True, 1 << 40) < 64 * MIB
    with pytest.raises(TooLarge, match="and 1 MiB are available"):
        needs.check(path, config, MIB, lambda: True, 1 << 40)


def test_a_known_model_is_not_tried_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config(model=tiny_model(tmp_path / "model.gguf", "llama"), n_ctx=4096, parallel=2)
    tried: list[str] = []
    monkeypatch.setattr(LlamaEngine, "try_out", lambda engine, _begins: tried.append(engine.name))
    load_checked(config, ALLOWANCE, lambda _fraction: True).close()
    assert tried == ["model"]
    known = load_checked(config, dataclasses.replace(ALLOWANCE, known_bytes=77 * MIB), lambda _fraction: True)
    known.close()
    assert (tried, known.info.needed_bytes) == (["model"], 77 * MIB)
