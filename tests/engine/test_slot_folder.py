"""Sequences on disk under names of an operator's: links that outlast the disk cache, and nothing outside the folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from test_disk_folder import ALICE, DATA, KIND, TOKENS, fetched, keep

from umaserve.core.errors import Fault, RequestError
from umaserve.engine.files.disk_file import Kind
from umaserve.engine.files.disk_folder import DiskFolder
from umaserve.engine.files.slot_folder import SlotFolder
from umaserve.sessions.engine_api import Kept


def folders(path: Path, max_bytes: int = 1 << 20, kind: Kind = KIND) -> tuple[DiskFolder, SlotFolder]:
    cache = DiskFolder(str(path / "kv"), 1 << 20, kind)
    return cache, SlotFolder(str(path / "slots"), max_bytes, kind, cache)


def refusal(path: Path, filename: str, **how: object) -> tuple[Fault, str]:
    with pytest.raises(RequestError) as refused:
        folders(path, **how)[1].take_back(filename)  # type: ignore[arg-type]
    return refused.value.fault, refused.value.message


def test_a_named_sequence_comes_back_after_the_disk_cache_has_parted_with_it(tmp_path: Path) -> None:
    cache, names = folders(tmp_path)
    kept = keep(cache)
    n_bytes = names.give_name(kept, "first.bin")
    assert (tmp_path / "kv" / kept).stat().st_size == n_bytes
    (tmp_path / "kv" / kept).unlink()
    cache, names = folders(tmp_path)
    assert not cache.look().new
    found = names.take_back("first.bin")
    assert (found.kept, found.n_bytes) == (Kept(kept, ALICE, TOKENS), n_bytes)
    assert fetched(cache, kept) == DATA
    assert not cache.look().new, "it is known already"
    assert names.take_back("first.bin") == found
    assert os.listdir(tmp_path / "slots") == ["first.bin"]


def test_a_name_is_given_again(tmp_path: Path) -> None:
    cache, names = folders(tmp_path)
    first, second = keep(cache), keep(cache, tokens=[5, 6])
    for kept in (first, second, second):
        names.give_name(kept, "x")
    assert names.take_back("x").kept.tokens == [5, 6]
    assert os.listdir(tmp_path / "slots") == ["x"]


@pytest.mark.parametrize("name", ["", ".", "..", ".x", "a/b", "../kv/x", "a\\b", "a\0", "a b", "ä", "x" * 129, "x\n"])
def test_names_that_could_mean_anything_else(tmp_path: Path, name: str) -> None:
    cache, names = folders(tmp_path)
    kept = keep(cache)
    for do in (lambda: names.give_name(kept, name), lambda: names.take_back(name)):
        with pytest.raises(RequestError, match="filename: expected 1 to 128 letters"):
            do()
    assert os.listdir(tmp_path / "slots") == []


def test_what_cannot_be_restored(tmp_path: Path) -> None:
    cache, names = folders(tmp_path)
    names.give_name(keep(cache), "good")
    folder = tmp_path / "slots"
    (folder / "cut").write_bytes((folder / "good").read_bytes()[:-1])
    (folder / "other").write_bytes(b"x" * 100)
    (folder / "link").symlink_to(folder / "good")
    (folder / "folder").mkdir()
    os.mkfifo(folder / "pipe")
    assert refusal(tmp_path, "none") == (
        Fault.NOT_FOUND,
        'filename: there is no "none" in slot_save_path, or the disk cache has just parted with the sequence',
    )
    for name, why in {
        "cut": "bytes can't be 4 tokens",
        "other": "it has an unknown format",
        "link": '"link": ',
        "folder": "it is not a file of this user",
        "pipe": "it is not a file of this user",
    }.items():
        fault, said = refusal(tmp_path, name)
        assert fault is Fault.BAD_REQUEST
        assert why in said
    assert "it belongs to another model" in refusal(tmp_path, "good", kind=KIND._replace(model=b"x" * 16))[1]
    assert (folder / "cut").exists(), "an operator's files are nobody else's to remove"


def test_the_folder_has_a_limit(tmp_path: Path) -> None:
    cache, names = folders(tmp_path, max_bytes=150)
    names.give_name(keep(cache), "one")
    with pytest.raises(RequestError, match="may have 150 bytes"):
        names.give_name(keep(cache), "two")
    assert os.listdir(tmp_path / "slots") == ["one"]


def test_a_folder_that_others_may_write_to(tmp_path: Path) -> None:
    (tmp_path / "slots").mkdir()
    (tmp_path / "slots").chmod(0o777)
    with pytest.raises(PermissionError, match="others may write to it"):
        folders(tmp_path)
