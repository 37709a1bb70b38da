"""What models took, from one run of the daemon to the next: its file, and what makes a model another one."""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from umaserve.models import known_models
from umaserve.models.known_models import MAX_FILE_BYTES, MAX_MODELS, Known, KnownModels, file_of, read, written
from umaserve.sessions.cost_model import MAX_S, Cost
from umaserve.settings.daemon import Config

KEY = "0123456789abcdef" * 4
COST = Cost(0.003, 0.007, 0.006, 0.0002, 0.0)
SECONDS = dataclasses.asdict(COST)
MODEL = {"key": KEY, "name": "a", "needed_bytes": 1}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "state" / "memory.json"


def keys(models: KnownModels, wanted: int) -> list[str]:
    return [f"{number:064x}" for number in range(wanted) if models.needed_bytes(f"{number:064x}")]


def test_what_was_learned_is_known_at_the_next_start(file: Path) -> None:
    models = KnownModels(file)
    assert models.needed_bytes(KEY) == 0
    models.learn(KEY, "a", 5 << 30)
    models.learn(KEY, "a", 6 << 30)
    assert KnownModels(file).needed_bytes(KEY) == 6 << 30
    assert file.stat().st_mode & 0o777 == 0o600
    assert os.listdir(file.parent) == ["memory.json"]
    models.forget(KEY)
    assert (models.needed_bytes(KEY), KnownModels(file).needed_bytes(KEY)) == (0, 0)


def test_nothing_is_known_of_what_has_no_key_or_took_nothing(file: Path) -> None:
    models = KnownModels(file)
    models.learn(None, "a", 1)
    models.learn(KEY, "a", 0)
    models.forget(None)
    models.forget(KEY)
    assert (models.needed_bytes(None), models.needed_bytes(KEY), file.exists()) == (0, 0, False)


def test_what_ticks_took_is_known_at_the_next_start(file: Path) -> None:
    models = KnownModels(file)
    assert models.cost(KEY) is None
    models.learn(KEY, "a", 5)
    assert KnownModels(file).cost(KEY) is None
    models.learn(KEY, "a", 5, COST)
    assert (KnownModels(file).cost(KEY), KnownModels(file).needed_bytes(KEY)) == (COST, 5)
    for absurd in (Cost(fixed_s=-1.0), Cost(fixed_s=math.nan), Cost(prefill_row_s=2 * MAX_S)):
        models.learn(KEY, "a", 6, absurd)
        assert (KnownModels(file).cost(KEY), KnownModels(file).needed_bytes(KEY)) == (None, 6)
    models.learn(KEY, "a", 5, COST)
    models.forget(KEY)
    assert KnownModels(file).cost(KEY) is None


def test_without_a_folder_it_is_known_until_the_end() -> None:
    models = KnownModels(None)
    models.learn(KEY, "a", 1)
    assert models.needed_bytes(KEY) == 1


def test_the_oldest_are_forgotten(file: Path) -> None:
    models = KnownModels(file)
    for number in (*range(MAX_MODELS), 0, MAX_MODELS):
        models.learn(f"{number:064x}", "a", 1)
    assert keys(KnownModels(file), MAX_MODELS + 1) == [f"{n:064x}" for n in range(MAX_MODELS + 1) if n != 1]
    long = {f"{number:064x}": Known("\U0001f600" * 256, 1 << 50, Cost(*[1 / 3e9] * 5)) for number in range(MAX_MODELS)}
    assert len(written(long)) < MAX_FILE_BYTES


def test_daemons_share_the_file(file: Path) -> None:
    one, other = KnownModels(file), KnownModels(file)
    one.learn(f"{1:064x}", "a", 1)
    other.learn(f"{2:064x}", "a", 2)
    assert keys(KnownModels(file), 3) == [f"{1:064x}", f"{2:064x}"]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "zero-length, empty document"),
        (b"\0" * 100, "unexpected character"),
        (b"[" * 5000, "line 1 column"),
        ([], "expected an object, got list"),
        ({}, "version: expected 1, got None"),
        ({"version": 2, "models": []}, "version: expected 1, got 2"),
        ({"version": 1}, "models: expected an array of at most 256 objects, got NoneType None"),
        ({"version": 1, "models": [MODEL] * 257}, "models: expected an array of at most 256"),
        ({"version": 1, "models": [MODEL, 5]}, "models[1]: expected an object of a key, a name and needed_bytes"),
        ({"version": 1, "models": [MODEL | {"key": KEY[1:]}]}, "models[0]: expected an object of a key"),
        ({"version": 1, "models": [MODEL | {"name": ""}]}, "models[0]: expected an object of a key"),
        ({"version": 1, "models": [MODEL | {"name": "a" * 1000}]}, "models[0]: expected an object of a key"),
        ({"version": 1, "models": [MODEL | {"needed_bytes": True}]}, "models[0]: expected an object of a key"),
        ({"version": 1, "models": [MODEL | {"needed_bytes": 1.5}]}, "models[0]: expected an object of a key"),
        ({"version": 1, "models": [MODEL | {"needed_bytes": 0}]}, "needed_bytes: expected a number from 1 to"),
        ({"version": 1, "models": [MODEL | {"needed_bytes": 1 << 51}]}, "needed_bytes: expected a number from 1 to"),
        ({"version": 1, "models": [MODEL | {"cost": 5}]}, "models[0].cost: expected an object of fixed_s, "),
        ({"version": 1, "models": [MODEL | {"cost": {"fixed_s": 1.0}}]}, "models[0].cost: expected an object of"),
        ({"version": 1, "models": [MODEL | {"cost": {**SECONDS, "more_s": 1.0}}]}, "models[0].cost: expected an obj"),
        ({"version": 1, "models": [MODEL | {"cost": SECONDS | {"fixed_s": True}}]}, "expected a number from 0 to 3600"),
        ({"version": 1, "models": [MODEL | {"cost": SECONDS | {"fixed_s": None}}]}, "expected a number from 0 to 3600"),
        ({"version": 1, "models": [MODEL | {"cost": SECONDS | {"several_s": -1}}]}, "models[0].cost.several_s: expec"),
        ({"version": 1, "models": [MODEL | {"cost": SECONDS | {"fixed_s": 1e9}}]}, "expected a number from 0 to 3600"),
        ({"version": 1, "models": [MODEL | {"cost": SECONDS | {"fixed_s": math.nan}}]}, "unexpected character"),
        ({"version": 1, "models": [MODEL | {"cost": SECONDS | {"prefill_row_s": 0}}]}, "expected more than 0"),
        (b" " * (MAX_FILE_BYTES + 1), "larger than 1048576 bytes"),
    ],
)
def test_a_damaged_file_is_replaced(content: Any, problem: str, file: Path, caplog: pytest.LogCaptureFixture) -> None:
    file.parent.mkdir()
    file.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    file.chmod(0o600)
    models = KnownModels(file)
    (record,) = caplog.records
    assert record.getMessage().startswith(f"{file} is ignored, and the models' memory and speed are measured again: ")
    assert problem in record.getMessage()
    assert "\n" not in record.getMessage()
    models.learn(KEY, "a", 7)
    assert KnownModels(file).needed_bytes(KEY) == 7
    assert len(caplog.records) == 1


def as_link(file: Path) -> None:
    file.rename(file.with_name("other"))
    file.symlink_to("other")


def as_pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


@pytest.mark.parametrize("change", [as_link, as_pipe, lambda file: file.chmod(0o620), lambda file: file.chmod(0o602)])
def test_a_file_of_others_is_replaced(
    change: Callable[[Path], None], file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    KnownModels(file).learn(KEY, "a", 7)
    change(file)
    models = KnownModels(file)
    assert models.needed_bytes(KEY) == 0
    assert "is ignored, and the models' memory and speed" in caplog.text
    models.learn(KEY, "a", 8)
    assert file.stat().st_mode & 0o777 == 0o600
    assert KnownModels(file).needed_bytes(KEY) == 8


def test_a_folder_that_can_not_be_written_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    models = KnownModels(tmp_path / "file" / "state" / "memory.json")
    caplog.clear()
    models.learn(KEY, "a", 1)
    models.learn(KEY, "a", 2)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith("the models' measured memory and speed can't be stored: ")
    assert models.needed_bytes(KEY) == 2


def test_a_failed_write_leaves_the_file_as_it_was(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = KnownModels(file)
    models.learn(KEY, "a", 1)

    def full(_source: object, _target: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(known_models.os, "replace", full)
    models.learn(KEY, "a", 2)
    assert KnownModels(file).needed_bytes(KEY) == 1
    assert os.listdir(file.parent) == ["memory.json"]


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({"STATE_DIRECTORY": "/var/lib/x:/var/lib/y", "XDG_STATE_HOME": "/x"}, "/var/lib/x/memory.json"),
        ({"XDG_STATE_HOME": "/x"}, "/x/umaserve/memory.json"),
        ({"XDG_STATE_HOME": "relative"}, "/home/of/u/.local/state/umaserve/memory.json"),
    ],
)
def test_where_it_is_kept(environ: dict[str, str], found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/of/u")
    assert file_of(environ) == Path(found)


def test_a_user_without_a_home_keeps_nothing(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert file_of({}) is None
    assert (
        "the models' measured memory and speed can't be stored: neither XDG_STATE_HOME nor a home folder is known"
        in caplog.text
    )


def test_a_model_is_another_one_by_its_files_and_settings(tmp_path: Path) -> None:
    model, projector = tmp_path / "model.gguf", tmp_path / "mmproj.gguf"
    model.write_bytes(b"model")
    projector.write_bytes(b"projector")
    models = KnownModels(None)
    config = Config(model=str(model))
    found = models.key(config)
    assert found is not None
    (tmp_path / "link.gguf").symlink_to(model)
    same = [config, replace(config, model=str(tmp_path / "link.gguf")), replace(config, log_level="debug")]
    assert {models.key(one) for one in same} == {found}
    changes: list[dict[str, Any]] = [
        {"n_ctx": 512},
        {"parallel": 3},
        {"kv_type": "q8_0"},
        {"kv_type_k": "q8_0"},
        {"kv_type_v": "q8_0"},
        {"n_gpu_layers": 1},
        {"host_cache_bytes": 0},
        {"mmproj": str(projector)},
        {"draft_model": str(projector)},
        {"model": str(projector)},
    ]
    assert len({found, *(models.key(replace(config, **change)) for change in changes)}) == 1 + len(changes)
    model.write_bytes(b"other")
    os.utime(model, ns=(1, 1))
    assert models.key(config) not in (None, found)
    model.unlink()
    assert models.key(config) is None


@pytest.mark.parametrize(("what", "other"), [("processor", "another processor"), ("usable_cores", 1000)])
def test_another_build_knows_nothing(what: str, other: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tmp_path / "model.gguf"
    model.touch()
    before = KnownModels(None).key(Config(model=str(model)))
    monkeypatch.setattr(known_models, what, lambda: other)
    assert KnownModels(None).key(Config(model=str(model))) not in (None, before)


ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), 1 << 53) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.fixed_dictionaries(
            {},
            optional=dict.fromkeys(("version", "models", "key", "name", "needed_bytes", "cost", *SECONDS), inner),
        )
    ),
    max_leaves=12,
)
COSTS = st.none() | ANY | st.fixed_dictionaries(dict.fromkeys(SECONDS, st.floats(0, 1) | ANY))
MODELS = st.fixed_dictionaries(
    {"key": st.just(KEY) | ANY, "name": st.just("a") | ANY, "needed_bytes": ANY, "cost": COSTS}
)
FILES = st.fixed_dictionaries({"version": st.just(1) | ANY, "models": st.lists(MODELS | ANY, max_size=3) | ANY})


@given(st.binary(max_size=100) | (FILES | ANY).map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_models_or_refused(data: bytes) -> None:
    try:
        models = read(data)
    except ValueError as error:
        problem = str(error)
    else:
        problem = "none"
        assert read(written(models)) == models
    assert problem.isprintable()


KNOWN = st.builds(Cost, *[st.floats(0, MAX_S)] * 2, st.floats(1e-9, MAX_S), *[st.floats(0, MAX_S)] * 2)


@given(
    st.dictionaries(
        st.text("0123456789abcdef", min_size=64, max_size=64),
        st.builds(
            Known,
            st.text(st.characters(codec="utf-8"), min_size=1, max_size=64),
            st.integers(1, 1 << 50),
            st.none() | KNOWN,
        ),
        max_size=5,
    )
)
def test_what_is_written_is_read(models: dict[str, Known]) -> None:
    assert list(read(written(models)).items()) == list(models.items())
