"""Sequences on disk: what was written is read, and whatever has become of a file, never anything else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from umaserve.engine.files import disk_file
from umaserve.engine.files.disk_file import Kind
from umaserve.engine.files.disk_folder import DiskFolder
from umaserve.sessions.engine_api import SavedBytes

KIND = Kind(bytes(16), 100, SavedBytes(10, 3))
TOKENS = [1, 2, 99, 4]
DATA = bytes(range(22))
ALICE, BOB = "aa" * 16, "bb" * 16


def folder(path: Path, max_bytes: int = 1 << 20, kind: Kind = KIND) -> DiskFolder:
    return DiskFolder(str(path / "kv"), max_bytes, kind)


def keep(on: DiskFolder, scope: str = ALICE, tokens: list[int] = TOKENS, replaced: tuple[str, ...] = ()) -> str:
    data = memoryview(bytes(KIND.saved_bytes.of(len(tokens)))) if tokens != TOKENS else memoryview(DATA)
    name = on.keep(scope, tokens, data, replaced, lambda: True)
    assert name is not None
    return name


def fetched(on: DiskFolder, name: str) -> bytes | None:
    target = bytearray(len(DATA))
    return bytes(target) if on.fetch(name, memoryview(target), lambda: True) else None


def test_what_was_written_is_told_and_read_by_another_daemon(tmp_path: Path) -> None:
    name = keep(folder(tmp_path))
    other = folder(tmp_path)
    (kept,) = other.look().new
    assert (kept.name, kept.scope, kept.tokens) == (name, ALICE, TOKENS)
    assert fetched(other, name) == DATA
    assert (tmp_path / "kv" / name).stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "kv").stat().st_mode & 0o777 == 0o700
    assert not other.look().new
    assert keep(other, BOB) != name


@settings(max_examples=examples(200))
@given(st.data())
def test_a_changed_or_cut_file_is_refused_and_removed(tmp_path_factory: pytest.TempPathFactory, data) -> None:
    path = tmp_path_factory.mktemp("disk")
    on = folder(path)
    file = path / "kv" / keep(on)
    whole = file.read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    flipped = bytearray(whole)
    flipped[at] ^= data.draw(st.integers(1, 255))
    file.write_bytes(data.draw(st.sampled_from([bytes(flipped), whole[:at], whole + b"\0"])))
    assert fetched(on, file.name) is None
    assert not file.exists()
    assert [on.look().errors for _ in range(2)] == [1, 0]


def test_files_of_others_are_neither_read_nor_removed(tmp_path: Path) -> None:
    on = folder(tmp_path)
    file = tmp_path / "kv" / keep(on)
    file.chmod(0o620)
    (tmp_path / "kv" / "notes").write_text("mine")
    assert fetched(on, file.name) is None
    assert on.look().errors == 1
    assert sorted(os.listdir(tmp_path / "kv")) == sorted([file.name, "notes"])
    (tmp_path / "kv").chmod(0o777)
    with pytest.raises(PermissionError):
        folder(tmp_path)


def test_another_model_and_another_vocabulary_find_nothing(tmp_path: Path) -> None:
    keep(folder(tmp_path))
    assert not folder(tmp_path, kind=KIND._replace(model=bytes(15) + b"x")).look().new
    assert not folder(tmp_path, kind=KIND._replace(vocabulary=99)).look().new


def test_the_least_recently_used_goes_first_and_the_limit_holds(tmp_path: Path) -> None:
    size = disk_file.file_bytes(len(TOKENS), len(DATA))
    on = folder(tmp_path, 2 * size)
    first, second = keep(on), keep(on, BOB)
    for age, name in enumerate((second, first)):
        os.utime(tmp_path / "kv" / name, (age, age))
    third = keep(on, "cc" * 16)
    listing = on.look()
    assert (listing.gone, listing.used_bytes) == ([second], 2 * size)
    assert set(os.listdir(tmp_path / "kv")) == {first, third}
    assert folder(tmp_path, 1).keep(BOB, TOKENS, memoryview(DATA), (), lambda: True) is None


def test_what_is_not_wanted_any_more_leaves_nothing(tmp_path: Path) -> None:
    on = folder(tmp_path)
    asked = iter([True, False])
    assert on.keep(ALICE, TOKENS, memoryview(DATA), (), lambda: next(asked)) is None
    assert not os.listdir(tmp_path / "kv")


def test_a_longer_sequence_replaces_its_prefix(tmp_path: Path) -> None:
    on = folder(tmp_path)
    name = keep(on)
    longer = keep(on, tokens=[*TOKENS, 5], replaced=(name,))
    assert os.listdir(tmp_path / "kv") == [longer]
