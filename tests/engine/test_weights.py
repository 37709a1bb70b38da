"""Which file of a model's weights is loaded: the decision, the cache folder, and the conversion of the real model."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import llama_cpp
import pytest
from remote_engine import ALLOWANCE

from umaserve.core.errors import ModelError
from umaserve.core.requests import Generate, Sampling
from umaserve.engine import engine, loading
from umaserve.engine.checked_loading import load_checked
from umaserve.engine.files import converted_copy, gguf, row_times, weights
from umaserve.engine.files.converted_copy import ConvertedCopy, folder_of
from umaserve.engine.files.row_times import Comparison, compared, comparison, load_small
from umaserve.engine.files.weights import ROWS, Weights, alternative, choose, copy_bytes, is_faster, slow_type
from umaserve.engine.llama import backends
from umaserve.engine.llama.model import find
from umaserve.sessions.engine_api import Run, Tick
from umaserve.settings.daemon import Config
from umaserve.system import program
from umaserve.system.program import Cancelled, ProgramError, ProgramStopped

Q4_1, Q5_1, Q8_0, F32, Q4_K = (
    llama_cpp.GGML_TYPE_Q4_1,
    llama_cpp.GGML_TYPE_Q5_1,
    llama_cpp.GGML_TYPE_Q8_0,
    llama_cpp.GGML_TYPE_F32,
    llama_cpp.GGML_TYPE_Q4_K,
)
FASTER = b"[[0.010, 0.010, 1.0, 0.01], [0.02, 0.01, 2.0, 0.01], [0.2, 0.1, 2.0, 0.01], [0.8, 0.4, 2.0, 0.01]]"
SLOWER = b"[[0.010, 0.010, 1.0, 0.01], [0.02, 0.02, 1.0, 0.01]]"
UNKNOWN = b"[[0.010, 0.010, 1.0, 2.0], [0.2, 0.1, 2.0, 0.01]]"


def always(_fraction: float) -> bool:
    return True


# -- the decision -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "many", "faster"),
    [
        # Speedups and their doubts. A token of the answer takes as long as one of the prompt; their mean counts for a
        # request alone, and many rows must gain much.
        ((0.957, 0.01), (2.4, 0.01), True),
        ((1.1, 0.01), (2.4, 0.01), True),
        ((0.623, 0.0), (2.0, 0.0), True),
        ((0.622, 0.0), (2.0, 0.0), False),
        ((1.0, 0.0), (1.2, 0.0), True),
        ((1.0, 0.0), (1.199, 0.0), False),
        ((0.5, 0.01), (2.4, 0.01), False),
        ((1.0, 0.01), (0.4, 0.01), False),
        # Close to the limit, but as certain as can be asked for.
        ((0.622, 0.02), (2.0, 0.01), False),
        ((0.623, 0.02), (2.0, 0.01), True),
        # On a busy box.
        ((0.623, 0.2), (2.4, 0.01), None),
        ((0.5, 0.2), (2.4, 0.01), None),
        ((1.0, 0.01), (1.6, 0.5), None),
        ((0.4, 0.05), (2.4, 0.9), False),
        ((1.3, 0.2), (2.4, 0.9), True),
        ((0.4, 0.05), (1.3, 0.9), False),
    ],
)
def test_the_verdict(one: tuple[float, float], many: tuple[float, float], faster: bool | None) -> None:
    assert is_faster([Comparison(1.0, 1.0, *one), Comparison(1.0 * ROWS[1], 1.0, *many)], 0.2) is faster


def test_a_slow_answer_counts_more_than_its_prompt() -> None:
    # As SmolLM2's Q4_1 and Q8_0 on a Xeon; and with a prompt that takes hardly any of the time.
    found = [Comparison(0.0122, 0.0139, 0.86, 0.01), Comparison(0.0524, 0.031, 1.7, 0.02)]
    assert is_faster([*found, Comparison(0.353, 0.167, 2.11, 0.2), Comparison(1.12, 0.616, 1.89, 0.15)], 0.2)
    assert not is_faster([*found, Comparison(0.353, 0.167, 2.11, 0.2), Comparison(0.2, 0.1, 2.0, 0.15)], 0.2)


@pytest.mark.parametrize(
    ("many", "faster"),
    [
        # Rows of 8, 64 and 256: their mean counts.
        ([1.0, 1.2, 1.2], True),
        ([0.5, 1.0, 1.04], False),
        ([0.9, 1.1, 1.1], False),
        ([0.9, 1.2, 1.2], True),
        # A large model is measured with 8 only.
        ([1.06], True),
        ([1.04], False),
    ],
)
def test_all_decodes_of_many_rows_count(many: list[float], faster: bool) -> None:
    found = [Comparison(1.0, 1.0, speedup, 0.0) for speedup in (1.0, *many)]
    assert is_faster(found, weights.MIN_GAIN["mapped"]) is faster


def test_a_comparison_is_of_pairs_and_doubts_what_varies() -> None:
    steady = comparison([(2.0, 1.0), (2.02, 1.0), (1.98, 1.0), (4.0, 2.0)])
    assert steady == (pytest.approx(2.01), 1.0, 2.0, pytest.approx(0.0093))
    busy = comparison([(2.0, 1.0), (9.0, 1.0), (2.0, 8.0), (4.0, 1.0)])
    assert busy.speedup == 3.0
    assert busy.doubt > 1.0
    assert comparison([(2.0, 1.0)] * 2).doubt == 0.0


@pytest.mark.parametrize(
    ("elements", "parts", "slow"),
    [
        ({Q4_1: 100}, 1, "Q4_1"),
        ({Q5_1: 60, Q4_1: 20, Q8_0: 60}, 1, "Q5_1"),
        ({Q4_1: 50, Q8_0: 40, F32: 10}, 1, "Q4_1"),
        ({Q4_1: 49, Q8_0: 41, F32: 10}, 1, None),
        ({Q4_1: 100}, 2, None),
        ({Q4_K: 100}, 1, None),
        ({}, 1, None),
    ],
)
def test_only_a_single_file_whose_weights_are_mostly_slow_is_converted(
    elements: dict[int, int], parts: int, slow: str | None
) -> None:
    assert slow_type(gguf.Contents(0, parts, elements)) == slow


@pytest.mark.parametrize(
    ("elements", "parts", "other"),
    [
        ({Q4_1: 100}, 1, "converted"),
        ({Q4_K: 60, Q8_0: 40}, 1, "mapped"),
        ({Q4_K: 30, llama_cpp.GGML_TYPE_Q6_K: 20, Q8_0: 50}, 1, "mapped"),
        ({Q4_K: 40, Q8_0: 60}, 1, ""),
        ({Q4_K: 100}, 2, ""),
        ({Q8_0: 100}, 1, ""),
        ({}, 1, ""),
    ],
)
def test_k_quants_are_compared_repacked_and_mapped(
    elements: dict[int, int], parts: int, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = gguf.Contents(0, parts, elements)
    monkeypatch.setattr(backends, "may_repack", lambda: True)
    assert alternative(find(""), contents) == other
    monkeypatch.setattr(weights, "MAX_MAPPED_BYTES", 1000)
    assert alternative(find(""), contents) == other.replace("mapped", "")
    monkeypatch.undo()
    monkeypatch.setattr(backends, "may_repack", lambda: False)
    assert alternative(find(""), contents) == other.replace("mapped", "")


def test_the_default_model_is_converted() -> None:
    contents = gguf.check(find(""))
    assert slow_type(contents) == "Q4_1"
    # As llama.cpp counts them; its head is tied to the embedding.
    assert sum(contents.elements.values()) == 134515008


# -- the folder -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("configured", "environ", "folder"),
    [
        ("/some/where", {"CACHE_DIRECTORY": "/var/cache/x", "XDG_CACHE_HOME": "/x"}, "/some/where"),
        ("", {"CACHE_DIRECTORY": "/var/cache/x:/var/cache/y", "XDG_CACHE_HOME": "/x"}, "/var/cache/x/weights"),
        ("", {"XDG_CACHE_HOME": "/x"}, "/x/umaserve/weights"),
        ("", {"XDG_CACHE_HOME": "relative"}, "/home/of/u/.cache/umaserve/weights"),
        ("", {}, "/home/of/u/.cache/umaserve/weights"),
    ],
)
def test_the_folder(configured: str, environ: dict[str, str], folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/of/u")
    assert folder_of(configured, environ) == Path(folder)


def test_a_user_without_a_home_has_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    with pytest.raises(FileNotFoundError, match="neither XDG_CACHE_HOME nor a home folder"):
        folder_of("", {})


class Folder(NamedTuple):
    path: Path
    source: Path

    def copy(self, name: str = "", box: dict[str, str | int] | None = None, converter: int = 1) -> ConvertedCopy:
        source = self.source.with_name(name) if name else self.source
        if not source.exists():
            source.touch()
        return ConvertedCopy(self.path, str(source), {"threads": 2} if box is None else box, {"version": converter})

    def kept(self, name: str = "") -> ConvertedCopy:
        """A copy that was found to be faster."""
        copy = self.copy(name)
        with copy.locked(lambda: True):
            copy.part.write_bytes(b"converted")
            copy.adopt()
            copy.decide("converted", "")
        return copy

    def names(self) -> set[str]:
        return {path.name for path in self.path.iterdir()}


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "cache" / "weights", tmp_path / "model.gguf")


def test_a_verdict_is_unknown_until_it_is_written(folder: Folder) -> None:
    copy = folder.copy()
    assert (copy.exists(), copy.chosen()) == (False, None)
    assert not folder.path.exists()
    with copy.locked(lambda: True):
        copy.part.write_bytes(b"converted")
        copy.adopt()
        assert (folder.copy().exists(), folder.copy().chosen()) == (True, None)
        copy.decide("converted", "because")
    assert (folder.copy().exists(), folder.copy().chosen()) == (True, ("converted", "because"))
    assert copy.path.read_bytes() == b"converted"
    assert folder.path.stat().st_mode & 0o777 == 0o700
    assert {Path(name).suffix for name in folder.names()} == {".gguf", ".json", ""}


def test_a_copy_that_is_not_faster_is_removed(folder: Folder) -> None:
    copy = folder.kept()
    with copy.locked(lambda: True):
        copy.decide("as-is", "")
    assert (folder.copy().exists(), folder.copy().chosen()) == (False, ("as-is", ""))
    assert {Path(name).suffix for name in folder.names()} == {".json", ""}


def test_a_failure_is_of_this_file_and_converter(folder: Folder) -> None:
    copy = folder.kept()
    assert copy.failure() is None
    with copy.locked(lambda: True):
        copy.fail("it is full of holes")
    assert (copy.failure(), copy.exists(), copy.chosen()) == ("it is full of holes", False, None)
    assert {Path(name).suffix for name in folder.names()} == {".json", ""}
    assert folder.copy(box={"threads": 1}).failure() == "it is full of holes"
    assert folder.copy(converter=2).failure() is None
    folder.source.write_text("mended")
    assert folder.copy().failure() is None


def test_a_copy_is_of_this_file_and_a_verdict_also_of_this_box(folder: Folder) -> None:
    assert folder.kept().chosen() == ("converted", "")
    elsewhere = folder.copy(box={"threads": 1})
    assert (elsewhere.exists(), elsewhere.chosen()) == (True, None)
    another = folder.copy("another.gguf")
    assert (another.exists(), another.chosen()) == (False, None)
    folder.source.write_text("changed")
    assert (folder.copy().exists(), folder.copy().chosen()) == (False, None)


@pytest.mark.parametrize("how", ["shorter", "other", "gone", "link"])
def test_a_copy_that_was_changed_is_unknown(folder: Folder, how: str) -> None:
    copy = folder.kept()
    match how:
        case "shorter":
            os.truncate(copy.path, 3)
        case "other":
            copy.path.write_bytes(b"CONVERTED")
        case "gone":
            copy.path.unlink()
        case "link":
            target = copy.path.rename(folder.path / "elsewhere")
            copy.path.symlink_to(target)
    assert (copy.exists(), copy.chosen()) == (False, None)


@pytest.mark.parametrize(
    "record", [b"", b"{", b"[]", b'{"chosen": "converted"}', b'{"file": 1, "copy": [1, 2]}', b"\xff"]
)
def test_a_damaged_record_is_none(folder: Folder, record: bytes) -> None:
    copy = folder.kept()
    copy.path.with_suffix(".json").write_bytes(record)
    assert (copy.exists(), copy.chosen()) == (False, None)


def test_a_folder_to_which_everybody_may_write_is_refused(folder: Folder) -> None:
    copy = folder.kept()
    folder.path.chmod(0o777)
    with pytest.raises(PermissionError, match="every user may write"):
        copy.chosen()
    with pytest.raises(PermissionError, match="every user may write"), copy.locked(lambda: True):
        pass


def test_the_folder_keeps_what_was_used_last_and_what_is_not_ours(folder: Folder) -> None:
    copies = [folder.kept(f"{number}.gguf") for number in range(converted_copy.MAX_COPIES)]
    for age, copy in enumerate(copies):
        os.utime(copy.path.with_suffix(".json"), (1000 - age, 1000 - age))
    # The oldest is used again.
    assert copies[-1].chosen() == ("converted", "")
    for name in ("own.gguf", "notes.json", "x.part", "left.0123456789abcdef.part", "left.0123456789abcdef.gguf"):
        (folder.path / name).touch()
    newest = folder.kept("newest.gguf")
    there = {copy.path.name for copy in (newest, *copies) if copy.path.exists()}
    assert there == {copy.path.name for copy in (newest, copies[-1], *copies[:-2])}
    assert not copies[-2].path.with_suffix(".json").exists()
    assert {name for name in folder.names() if "0123456789abcdef" in name} == set()
    assert {"own.gguf", "notes.json", "x.part"} <= folder.names()


def test_the_folder_keeps_a_limited_number_of_records(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(converted_copy, "MAX_RECORDS", 2)
    for number in range(4):
        copy = folder.kept(f"{number}.gguf")
        os.utime(copy.path.with_suffix(".json"), (1000 + number, 1000 + number))
    assert {name.split(".")[0] for name in folder.names()} == {"2", "3", "lock"}


def test_whoever_comes_second_waits(folder: Folder, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    copy = folder.kept()
    with open(folder.path / "lock", "ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        asked: list[None] = []

        def wanted() -> bool:
            asked.append(None)
            if len(asked) == 3:
                fcntl.flock(other, fcntl.LOCK_UN)
            return True

        with copy.locked(wanted), pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert len(asked) == 3
        fcntl.flock(other, fcntl.LOCK_EX)
        assert caplog.text.count("waiting for it") == 1


def test_waiting_ends(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = folder.kept()
    with open(folder.path / "lock", "ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(Cancelled), copy.locked(lambda: False):
            pass
        monkeypatch.setattr(converted_copy, "MAX_WAIT_S", -1.0)
        with pytest.raises(TimeoutError, match="another daemon"), copy.locked(lambda: True):
            pass


# -- the real model ---------------------------------------------------------------------------------------------------


class Box:
    """The real model, a cache folder, and what is measured there; counts the conversions."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.config = Config(weights_cache=str(folder), n_ctx=256, parallel=1, threads=1)
        self.measured = FASTER
        self.conversions = 0
        self.convert: Callable[..., bytes] = program.run
        monkeypatch.setattr(program, "run", self._run)

    def _run(self, module: str, *arguments: str, **options) -> bytes:
        if module == "umaserve.engine.files.row_times":
            return self.measured
        self.conversions += 1
        return self.convert(module, *arguments, **options)

    def chosen(self, progress: Callable[[float], bool] = always) -> Weights:
        return choose(find(""), self.config, progress)

    def copies(self) -> list[Path]:
        return list(self.folder.glob("*.gguf"))


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Box:
    return Box(tmp_path / "cache", monkeypatch)


AS_IS = Weights(find(""))


def test_a_faster_copy_is_made_once_and_loaded(box: Box, caplog: pytest.LogCaptureFixture) -> None:
    fractions: list[float] = []
    chosen = box.chosen(lambda fraction: fractions.append(fraction) or True)
    assert box.copies() == [Path(chosen.path)]
    assert chosen.converted_from == "Q4_1"
    assert fractions == sorted(fractions)
    contents = gguf.check(chosen.path)
    assert set(contents.elements) == {F32, Q8_0}
    own = gguf.check(find(""))
    size = os.path.getsize(chosen.path)
    assert size <= copy_bytes(own, os.path.getsize(find(""))) < 1.01 * size
    assert box.chosen() == chosen
    assert box.conversions == 1
    made = engine.load(box.config, always)
    assert made.name == Path(find("")).stem
    assert made.info.quantization == "Q8_0 (from Q4_1)"
    made.close()
    assert box.conversions == 1
    # Of the box, whose compiler may break AMX, another line tells.
    of_weights = [record for record in caplog.records if record.name != backends.log.name]
    assert [record for record in of_weights if record.levelno >= logging.WARNING] == []


def test_a_copy_that_is_not_faster_is_made_once_and_removed(box: Box) -> None:
    box.measured = SLOWER
    assert box.chosen() == box.chosen() == AS_IS
    assert box.conversions == 1
    assert box.copies() == []


@pytest.fixture
def tiled(box: Box, monkeypatch: pytest.MonkeyPatch) -> Box:
    """The same, as if the model's format were one that llama.cpp repacks or takes mapped."""
    if not backends.may_repack():
        pytest.skip("this llama.cpp must not repack weights: its compiler breaks AMX")
    monkeypatch.setattr(weights, "SLOW_TYPES", {})
    monkeypatch.setattr(weights, "TILED_TYPES", (Q4_1,))
    return box


MAPPED = Weights(find(""), repacked=False)


def test_weights_that_are_faster_mapped_are_not_repacked(tiled: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = tiled.chosen()
    assert chosen == MAPPED
    assert "1 token: 10.0 ms, mapped 10.0 ms (100% +-1% of the speed), 8 tokens: 20.0 ms" in chosen.why
    tiled.measured = SLOWER
    assert tiled.chosen() == MAPPED
    repacked: list[bool] = []
    real = llama_cpp.llama_model_load_from_file

    def load(path: bytes, params: llama_cpp.llama_model_params) -> object:
        repacked.append(bool(params.use_extra_bufts))
        return real(path, params)

    monkeypatch.setattr(llama_cpp, "llama_model_load_from_file", load)
    engine.load(tiled.config, always).close()
    assert repacked == [False]
    # Another number of threads is measured anew.
    tiled.config = dataclasses.replace(tiled.config, threads=2)
    assert tiled.chosen() == AS_IS
    assert (tiled.conversions, tiled.copies()) == (0, [])


def test_another_build_of_llama_cpp_is_measured_again(tiled: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tiled.chosen() == MAPPED
    tiled.measured = SLOWER
    monkeypatch.setattr(backends, "build", lambda: [1, 2])
    assert tiled.chosen() == AS_IS


def test_weights_that_can_not_be_measured_mapped_are_repacked(tiled: Box, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert choose(find(""), tiled.config, always, 100 << 20) == AS_IS
    assert "mapped and repacked weights could not be compared" in caplog.text
    assert all(record.levelno < logging.WARNING for record in caplog.records)


def test_mapped_weights_that_the_operator_wants_are_not_measured(box: Box) -> None:
    box.config = dataclasses.replace(box.config, weights="mapped")
    assert box.chosen() == MAPPED
    assert not box.folder.exists()


def test_a_converted_copy_that_the_operator_wants_is_not_measured(box: Box) -> None:
    box.measured = SLOWER
    assert box.chosen() == AS_IS
    fast, box.config = box.config, dataclasses.replace(box.config, weights="converted")
    chosen = box.chosen()
    assert box.copies() == [Path(chosen.path)]
    assert chosen.converted_from == "Q4_1"
    assert box.chosen() == chosen
    assert box.conversions == 2
    # Other daemons of the folder still load what is faster.
    box.config = fast
    assert box.chosen() == AS_IS
    assert box.copies() == []


def test_other_threads_are_measured_again(box: Box) -> None:
    box.chosen()
    box.config = Config(weights_cache=str(box.folder), threads=2)
    box.measured = SLOWER
    assert box.chosen() == AS_IS
    assert box.conversions == 1


def test_on_a_busy_box_the_copy_is_measured_again_at_the_next_start(box: Box, caplog) -> None:
    caplog.set_level(logging.INFO)
    box.measured = UNKNOWN
    assert box.chosen() == AS_IS
    assert "this machine is too busy" in caplog.text
    box.measured = FASTER
    assert box.chosen() != AS_IS
    assert box.conversions == 1


@pytest.mark.parametrize("damage", [lambda path: os.truncate(path, 50_000_000), lambda path: path.write_bytes(b"GGUF")])
def test_a_damaged_copy_is_replaced(box: Box, damage: Callable[[Path], object]) -> None:
    chosen = box.chosen()
    damage(Path(chosen.path))
    assert box.chosen() == chosen
    gguf.check(chosen.path)
    assert box.conversions == 2


def test_the_answers_are_as_good(box: Box) -> None:
    """After a sequence that is far from a tie, the tokens are the same."""

    def tokens(config: Config) -> list[int]:
        made = engine.load(config, always)
        prepared = made.prepare(Generate(id="t", prompt="1, 2, 3, 4, 5,", sampling=Sampling(temperature=0.0)))
        found, run, start = [], list(prepared.tokens), 0
        for _ in range(12):
            result = made.run(Tick((), [Run(0, start, run, prepared.sampler)]))
            start += len(run)
            run = list(result.tokens[0])
            found += run
        made.close()
        return found

    copy = tokens(box.config)
    assert box.conversions == 1
    assert copy == tokens(Config(weights="as-is", n_ctx=256, parallel=1, threads=1))


@pytest.mark.parametrize("changed", [{"weights": "as-is"}, {"rpc": ("127.0.0.1:50052",)}])
def test_weights_stay_as_they_are_where_that_was_asked_for_or_others_hold_them(
    box: Box, changed: dict[str, object]
) -> None:
    box.config = Config(weights_cache=str(box.folder), **changed)  # type: ignore[arg-type]
    assert box.chosen() == AS_IS
    assert not box.folder.exists()


def test_weights_stay_as_they_are_on_a_gpu(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_cpp, "llama_supports_gpu_offload", lambda: True)
    assert box.chosen() == AS_IS
    box.config = Config(weights_cache=str(box.folder), n_gpu_layers=0)
    assert box.chosen() != AS_IS


def test_other_formats_stay_as_they_are(box: Box) -> None:
    copy = box.chosen().path
    assert choose(copy, box.config, always) == Weights(copy)
    assert box.conversions == 1


def test_a_file_that_is_no_model_is_the_loaders_problem(box: Box, tmp_path: Path) -> None:
    assert choose(str(tmp_path / "missing.gguf"), box.config, always) == Weights(str(tmp_path / "missing.gguf"))


# -- failures ---------------------------------------------------------------------------------------------------------


def test_a_folder_that_cannot_be_made_costs_a_warning(box: Box, tmp_path: Path, caplog) -> None:
    (tmp_path / "file").touch()
    box.config = Config(weights_cache=str(tmp_path / "file" / "cache"))
    assert box.chosen() == AS_IS
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "Not a directory" in record.getMessage()
    assert "choose another folder with --weights-cache, or set --weights as-is" in record.getMessage()


def test_a_conversion_that_fails_costs_a_warning(box: Box, tmp_path: Path, caplog) -> None:
    path = tmp_path / "unknown.gguf"
    data = Path(find("")).read_bytes()
    path.write_bytes(data.replace(b"\x05\0\0\0\0\0\0\0llama", b"\x05\0\0\0\0\0\0\0lxxma", 1))
    assert choose(str(path), box.config, always) == Weights(str(path))
    assert "umaserve.engine.files.requantize failed with status 1: " in caplog.text
    assert "unknown model architecture" in caplog.text
    assert {name.suffix for name in box.folder.iterdir()} == {"", ".json"}


def test_a_conversion_that_failed_is_tried_again_only_when_the_record_is_removed(box: Box, caplog) -> None:
    real = box.convert

    def crashes(_module: str, _source: str, part: str, *_arguments: str, **_options: object) -> bytes:
        Path(part).write_bytes(b"GGUF, half of it")
        raise ProgramError("umaserve.engine.files.requantize ended by Aborted: no message")

    box.convert = crashes
    assert box.chosen() == AS_IS
    (record,) = box.folder.glob("*.json")
    assert {name.name for name in box.folder.iterdir()} == {"lock", record.name}
    box.convert = real
    assert box.chosen() == AS_IS
    assert box.conversions == 1
    first, second = caplog.records
    assert "ended by Aborted" in first.getMessage()
    assert f"not tried again until {record} is removed" in first.getMessage()
    assert first.getMessage() == second.getMessage()
    record.unlink()
    assert box.chosen() != AS_IS


def test_a_conversion_that_others_stopped_is_tried_again(box: Box, caplog) -> None:
    real = box.convert

    def is_killed(*_arguments: str, **_options: object) -> bytes:
        raise ProgramStopped("umaserve.engine.files.requantize was killed, probably since memory was short")

    box.convert = is_killed
    assert box.chosen() == AS_IS
    assert "was killed" in caplog.text
    assert {name.name for name in box.folder.iterdir()} == {"lock"}
    box.convert = real
    assert box.chosen() != AS_IS


def test_a_copy_that_is_no_model_is_not_kept(box: Box, caplog) -> None:
    box.convert = lambda _module, _source, part, *_arguments, **_options: bytes(Path(part).write_bytes(b"GGUF"))
    assert box.chosen() == AS_IS
    assert "truncated or damaged" in caplog.text
    assert box.copies() == []


def test_a_daemon_that_is_stopped_leaves_nothing_behind(box: Box, caplog) -> None:
    assert box.chosen(lambda _fraction: False) == AS_IS
    assert {name.name for name in box.folder.iterdir()} == {"lock"}
    assert caplog.records == []


def test_too_small_a_disk_costs_a_warning(box: Box, monkeypatch: pytest.MonkeyPatch, caplog) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage._replace(free=200 << 20))
    assert box.chosen() == AS_IS
    assert "more than half of the 200 MiB that are free" in caplog.text
    assert box.conversions == 0


def test_too_little_memory_costs_a_warning_also_later(box: Box, monkeypatch: pytest.MonkeyPatch, caplog) -> None:
    real = weights.available_bytes
    monkeypatch.setattr(weights, "available_bytes", lambda: 300 << 20)
    assert box.chosen() == AS_IS
    assert "and 300 MiB are available" in caplog.text
    assert box.conversions == 0
    monkeypatch.setattr(weights, "available_bytes", real)
    assert box.chosen() != AS_IS
    monkeypatch.setattr(weights, "available_bytes", lambda: 100 << 20)
    assert box.chosen() == AS_IS
    monkeypatch.setattr(weights, "available_bytes", real)
    assert box.chosen() != AS_IS
    assert box.conversions == 1
    assert choose(find(""), box.config, always, 100 << 20) == AS_IS


def test_a_copy_takes_more_memory_than_the_model_itself(box: Box) -> None:
    as_is, converted = (
        load_checked(dataclasses.replace(box.config, model=find(""), weights=kind), ALLOWANCE, always)
        for kind in ("as-is", "converted")
    )
    grown = os.path.getsize(box.copies()[0]) - os.path.getsize(find(""))
    assert converted.info.needed_bytes - as_is.info.needed_bytes == pytest.approx(grown, rel=0.1)
    as_is.close()
    converted.close()


def test_a_copy_that_cannot_be_loaded_does_not_stop_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog
) -> None:
    (tmp_path / "copy.gguf").write_bytes(b"GGUF")
    chosen = Weights(str(tmp_path / "copy.gguf"), "Q4_1")
    monkeypatch.setattr(loading, "choose", lambda _path, _config, progress, _available: (progress(1.0), chosen)[1])
    fractions: list[float] = []
    made = engine.load(Config(n_ctx=256, parallel=1, threads=1), lambda fraction: fractions.append(fraction) or True)
    assert made.info.quantization == "Q4_1"
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
    made.close()
    assert "can't be loaded" in caplog.text
    with pytest.raises(ModelError, match="truncated or damaged"):
        engine.load(Config(n_ctx=256, parallel=1, threads=1), lambda _fraction: False)


# -- the measurement --------------------------------------------------------------------------------------------------


def test_decodes_of_every_number_of_rows_are_compared() -> None:
    models = [load_small(find(""), 1, 1, 16) for _ in range(2)]
    found = compared(*models, (1, 16), budget_s=0.0)
    assert len(found) == 2
    assert all(one.first_s > 0 and one.second_s > 0 and one.speedup > 0 for one in found)
    for model in models:
        model.free()


def test_decodes_that_would_take_too_long_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []

    def decode_s(_model: object, n: int) -> float:
        taken.append(n)
        return 0.1 * n

    monkeypatch.setattr(row_times, "decode_s", decode_s)
    model: Any = None
    assert len(compared(model, model, (1, 8, 16, 64, 256), budget_s=0.0)) == 3
    assert set(taken) == {1, 8, 16}
    assert len(compared(model, model, (1, 64, 256), budget_s=0.0)) == 2


def test_the_program_prints_what_it_measured() -> None:
    arguments = ("1", "1", "1,2", find(""), find(""), "mapped")
    output = program.run("umaserve.engine.files.row_times", *arguments, wanted=lambda: True, max_s=600.0)
    one, two = (Comparison(*values) for values in json.loads(output))
    assert one.first_s > 0
    assert two.first_s > 0
