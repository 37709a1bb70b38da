"""The speeds of the real engine: in a process of its own, and with models of all kinds."""

from __future__ import annotations

import pytest

from umaserve.core.errors import ModelError
from umaserve.engine import timed_ticks
from umaserve.engine.engine import LlamaEngine
from umaserve.engine.llama.model import Model, find
from umaserve.engine.speeds import Speeds, measured
from umaserve.settings.daemon import Config
from umaserve.system.program import Cancelled, ProgramError

SMALL = {"n_ctx": 512, "parallel": 2, "threads": 1, "weights": "as-is"}
"""Sequences of 256 cells each, in which prompts have 128 tokens at most."""


def of(**settings: object) -> Speeds:
    return measured({**SMALL, **settings}, 0, wanted=lambda: True, max_s=600.0)


def test_a_process_measures_all_speeds() -> None:
    found = of()
    assert min(found.one, found.many, found.prompt) > 0.0
    assert found.memory_bytes > 50 << 20
    assert found.prompt_tokens in (64, 128)
    assert found.others >= 0.0


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"model": "/nowhere/x.gguf"}, "model file '/nowhere/x.gguf': No such file or directory; check the path"),
        ({"kv_type": "q8_0", "flash_attn": "off"}, 'kv_type "q8_0" is quantized and flash_attn is "off"'),
        ({"n_ctx": 256}, "too few KV cells to measure with: raise n_ctx to 288 or more, or lower parallel"),
        ({"config": "/nowhere/x.toml"}, "/nowhere/x.toml: can't be read: No such file or directory"),
    ],
)
def test_settings_that_cannot_be_measured_say_why(settings: dict[str, object], why: str) -> None:
    with pytest.raises(ProgramError) as caught:
        of(**settings)
    assert str(caught.value).startswith(why)


def test_sequences_share_the_cells_that_are_too_few_for_parts() -> None:
    assert of(n_ctx=768, parallel=4).prompt_tokens == 64


def test_nobody_waits_for_what_is_not_wanted() -> None:
    with pytest.raises(Cancelled):
        measured(SMALL, 0, wanted=lambda: False, max_s=600.0)


@pytest.mark.parametrize("can_be_cut", [True, False])
def test_models_whose_sequences_cannot_be_cut_are_measured_too(
    can_be_cut: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Model, "sequences_can_be_cut", can_be_cut)
    monkeypatch.setattr(timed_ticks, "MEASURED_S", 0.0)
    config = Config(n_ctx=512, parallel=2, threads=1)
    engine = LlamaEngine(Model(find(""), config, lambda _fraction: True), config)
    assert bool(engine.capacity.cached_cells) is can_be_cut
    found = timed_ticks.Measurement(engine).speeds(16)
    engine.close()
    assert min(found.one, found.many, found.prompt) > 0.0
    assert found.prompt_tokens == 16


def test_a_decode_that_fails_ends_the_measurement() -> None:
    """A prompt that is longer than the part of its sequence."""
    config = Config(n_ctx=512, parallel=2, threads=1)
    engine = LlamaEngine(Model(find(""), config, lambda _fraction: True, parted=True), config)
    with pytest.raises(ModelError, match=r"could not decode with these settings \(NO_CELLS\)"):
        timed_ticks.Measurement(engine).speeds(400)
    engine.close()
