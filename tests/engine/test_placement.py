"""Where tensors lie, and how positions are scaled: what llama.cpp is told, and what comes of it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from engine_world import EngineWorld

from umaserve.core.errors import ModelError
from umaserve.engine.files.fingerprint import fingerprint
from umaserve.engine.llama import backends, placement
from umaserve.engine.llama.model import Model
from umaserve.sessions.engine_api import SavedBytes
from umaserve.settings.daemon import Config
from umaserve.settings.model_files import default_model

TEXT = "The quick brown fox jumps over the lazy dog. The quick brown"
CONFIG = Config(n_ctx=256, parallel=1, n_batch=64, n_ubatch=64, threads=1, weights="as-is")


class _Params:
    """What a model's parameters are given."""

    tensor_buft_overrides = None
    tensor_split = None


def overrides(**settings: Any) -> list[tuple[str, int]]:
    params = _Params()
    kept = placement.place(params, dataclasses.replace(CONFIG, **settings))
    if params.tensor_buft_overrides is None:
        return []
    *listed, end = [(one.pattern, one.memory) for one in kept[-1]]
    assert end == (None, None)
    return [(pattern.decode(), memory) for pattern, memory in listed]


def test_nothing_is_overridden_by_default() -> None:
    assert overrides() == []


def test_overrides_come_in_their_order_before_the_experts() -> None:
    cpu = backends.memories()["CPU"]
    found = overrides(override_tensor=(r"blk\.[0-3]\.ffn=CPU", "a=b=CPU"), n_cpu_moe=2)
    assert found == [
        (r"blk\.[0-3]\.ffn", cpu),
        ("a=b", cpu),
        (r"blk\.0\.ffn_(up|down|gate|gate_up)_(ch|)exps", cpu),
        (r"blk\.1\.ffn_(up|down|gate|gate_up)_(ch|)exps", cpu),
    ]


def test_a_memory_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(ModelError, match=r"override_tensor: expected one of .*CPU.* as the memory of exps, got Tape"):
        overrides(override_tensor=("exps=Tape",))


def test_shares_of_gpus() -> None:
    params = _Params()
    (shares,) = placement.place(params, dataclasses.replace(CONFIG, tensor_split=("3", "1")))
    assert list(shares)[:2] == [3.0, 1.0]
    with pytest.raises(ModelError, match=r"tensor_split: expected at most [0-9]+ shares, got 64"):
        placement.place(params, dataclasses.replace(CONFIG, tensor_split=("1",) * 64))


def said(**settings: Any) -> list[int]:
    world = EngineWorld("", n_ctx=256, parallel=1, **settings)
    tokens = list(world.answer(TEXT, 8).tokens)
    world.close()
    return tokens


def test_overridden_tensors_compute_the_same() -> None:
    assert said(override_tensor=("ffn=CPU",)) == said()


def test_other_positions_are_another_model() -> None:
    plain, keys = said(), set()
    for settings in ({"rope_freq_base": 20.0}, {"rope_scaling": "linear", "rope_scale": 50.0}):
        assert said(**settings) != plain
    for settings in ({}, {"rope_freq_base": 20.0}, {"rope_scale": 2.0}, {"yarn_ext_factor": 0.5}, {"n_cpu_moe": 1}):
        config = dataclasses.replace(CONFIG, **settings)
        model = Model(default_model(), config, lambda _fraction: True)
        keys.add(fingerprint(model, config, {}, SavedBytes(1, 0)))
        model.free()
    assert len(keys) == 4, "where the experts lie changes nothing that is saved"


def test_a_model_beside_another_has_neither_its_positions_nor_its_places() -> None:
    config = dataclasses.replace(CONFIG, rope_scale=2.0, override_tensor=("a=CPU",), n_cpu_moe=3, kv_type="q8_0")
    assert config.for_companion(n_ctx=64) == dataclasses.replace(CONFIG, n_ctx=64, kv_type="q8_0")
