"""The files of OpenAI's API: the form, the pages, whose they are, and how many there may be."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from clock import Clock
from hypothesis import given
from hypothesis import strategies as st
from routes import facts

from umaserve.core.errors import Fault, RequestError
from umaserve.dialects.batches import files
from umaserve.dialects.batches.files import read_sent
from umaserve.dialects.batches.kept import MAX_FILES, AllFiles
from umaserve.dialects.batches.stored_file import INPUT, StoredFile, file_of, packed_file
from umaserve.dialects.facts import Facts
from umaserve.wire.http_head import Request
from umaserve.wire.multipart import Part, write_form

MAX_BYTES = 4000
"""Of which each tenant has a quarter."""


class Cabinet:
    """Files of several tenants."""

    def __init__(self, max_age_s: float = math.inf) -> None:
        self.clock = Clock()
        self.all = AllFiles(self.clock, MAX_BYTES, max_age_s)
        self.gone: list[str] = []
        self._ids: Iterator[int] = itertools.count(1)

    def add(self, tenant: str = "ann", length: int = 10, purpose: str = INPUT) -> str:
        new_id = f"file-{next(self._ids):024x}"
        made = StoredFile(
            id=new_id,
            filename="a.jsonl",
            purpose=purpose,
            length=length,
            created_at=7,
            gone=lambda: self.gone.append(new_id),
        )
        self.all.files.keep(tenant, made)
        return new_id

    def facts(self, tenant: str = "ann") -> Facts:
        return replace(facts(), files=self.all.of(tenant))

    def ids(self, tenant: str = "ann", **query: str) -> list[str]:
        return [one["id"] for one in self.listed(tenant, **query)["data"]]

    def listed(self, tenant: str = "ann", **query: str) -> Any:
        status, _type, body = files.list_files(self.facts(tenant), asked(query=query))
        assert status == 200
        return json.loads(body)


@pytest.fixture
def cabinet() -> Cabinet:
    return Cabinet()


def asked(tail: str = "", query: dict[str, str] | None = None) -> Request:
    return Request("GET", files.PATH + tail, query or {}, (), b"")


def form(*parts: tuple[str, bytes, str | None]) -> tuple[bytes, str]:
    content_type, body = write_form(Part(name, memoryview(data), filename) for name, data, filename in parts)
    return body, content_type


def test_a_form_has_one_file_for_a_batch():
    sent = read_sent(*form(("purpose", b"batch", None), ("file", b"{}\n", "in.jsonl")))
    assert (sent.filename, bytes(sent.content)) == ("in.jsonl", b"{}\n")
    assert read_sent(*form(("file", b"x", None), ("purpose", b"batch", None))).filename == "input.jsonl"
    assert len(read_sent(*form(("purpose", b"batch", None), ("file", b"x", "ä" * 500))).filename.encode()) <= 255


PURPOSE, FILE = ("purpose", b"batch", None), ("file", b"{}\n", "a")


@pytest.mark.parametrize(
    ("parts", "problem"),
    [
        ([FILE], "^purpose: expected a non-empty string, got null"),
        ([FILE, ("purpose", b"vision", None)], '^purpose: expected "batch": this server keeps files for batches only'),
        ([PURPOSE], "^file: expected one file with lines of JSON, got none"),
        ([PURPOSE, FILE, FILE], "^file: expected one file with lines of JSON, got 2"),
        ([PURPOSE, ("file", b"", "a")], "^file: expected one file with lines of JSON, got an empty one"),
        ([PURPOSE, FILE, ("expires_after[seconds]", b"3600", None)], r"^expires_after\[seconds\]: expected to be abs"),
    ],
)
def test_other_forms_are_refused_by_name(parts: list[tuple[str, bytes, str | None]], problem: str):
    with pytest.raises(RequestError, match=problem):
        read_sent(*form(*parts))


def test_a_file_is_shown_to_its_tenant_alone(cabinet: Cabinet):
    one = cabinet.add()
    status, _type, body = files.retrieve(cabinet.facts(), asked(f"/{one}"))
    assert (status, json.loads(body)) == (
        200,
        {
            "id": one,
            "object": "file",
            "bytes": 10,
            "created_at": 7,
            "expires_at": None,
            "filename": "a.jsonl",
            "purpose": "batch",
            "status": "processed",
        },
    )
    for page in (files.retrieve, files.delete):
        with pytest.raises(RequestError, match=r"^file_id: expected the id of a file") as unknown:
            page(cabinet.facts("bob"), asked(f"/{one}"))
        assert unknown.value.fault is Fault.NOT_FOUND
    assert cabinet.ids("bob") == []


def test_a_file_that_is_deleted_or_too_old_is_gone_from_the_disk():
    cabinet = Cabinet(max_age_s=60.0)
    first, second = cabinet.add(), cabinet.add()
    told = json.loads(files.retrieve(cabinet.facts(), asked(f"/{first}"))[2])
    assert told["expires_at"] == 67
    assert json.loads(files.delete(cabinet.facts(), asked(f"/{first}"))[2])["deleted"]
    assert (cabinet.gone, cabinet.ids()) == ([first], [second])
    cabinet.clock.now += 61
    assert (cabinet.ids(), cabinet.gone) == ([], [first, second])


@given(n=st.integers(0, 12), limit=st.integers(1, 5), order=st.sampled_from(["asc", "desc"]))
def test_pages_have_each_file_once_in_order(n: int, limit: int, order: str):
    cabinet = Cabinet()
    made = [cabinet.add() for _ in range(n)]
    found, query, more = list[str](), {"order": order, "limit": str(limit)}, True
    while more:
        page = cabinet.listed(**query)
        found += [one["id"] for one in page["data"]]
        more, query = page["has_more"], {**query, "after": page["last_id"]}
    assert found == (made if order == "asc" else made[::-1])


def test_files_are_listed_by_purpose_and_a_query_is_checked(cabinet: Cabinet):
    cabinet.add()
    output = cabinet.add(purpose="batch_output")
    assert cabinet.ids(purpose="batch_output") == [output]
    for query in ({"limit": "0"}, {"limit": "x"}, {"order": "up"}, {"after": "file-1"}):
        with pytest.raises(RequestError, match=rf"^{next(iter(query))}: expected"):
            cabinet.listed(**query)


def test_what_a_client_has_sent_is_not_deleted_for_more(cabinet: Cabinet):
    kept = cabinet.all.of("ann")
    cabinet.add(length=900)
    kept.check_room(100)
    with pytest.raises(RequestError, match=r"^file: expected at most 100 bytes beside your other files, got 101"):
        kept.check_room(101)
    cabinet.all.of("bob").check_room(1000)
    for _ in range(MAX_FILES):
        cabinet.add("bob", length=0)
    with pytest.raises(RequestError, match=rf"^file: expected at most {MAX_FILES - 1} others, got {MAX_FILES}"):
        cabinet.all.of("bob").check_room(1)


def test_where_all_together_have_too_much_the_oldest_of_who_has_most_goes(cabinet: Cabinet):
    first = cabinet.add("ann", 900)
    for tenant in ("bob", "cat", "dan"):
        cabinet.add(tenant, 800)
    cabinet.add("eve", 800)
    assert cabinet.gone == [first]


def test_without_a_store_an_error_says_which_flag_it_takes():
    for page in (files.list_files, files.retrieve, files.delete):
        with pytest.raises(RequestError, match=r"start it with --store DIR") as off:
            page(facts(), asked("/file-1"))
        assert off.value.fault is Fault.NOT_SUPPORTED


@given(st.text(max_size=9), st.sampled_from(["batch", "batch_output"]), st.integers(0, 1 << 40))
def test_a_row_has_all_of_a_file(name: str, purpose: str, length: int):
    new_id = "file-" + "a" * 24
    row = packed_file(StoredFile(id=new_id, filename=name, purpose=purpose, length=length, created_at=7))
    read = file_of(new_id, row)
    assert (read.filename, read.purpose, read.length, read.created_at) == (name, purpose, length, 7)
    for bad_id in ("../../etc/passwd", "file-x", ""):
        with pytest.raises(ValueError, match="it is not a file"):
            file_of(bad_id, row)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda v: st.lists(v) | st.dictionaries(st.text(), v)
    )
)
def test_any_other_row_is_refused(value: Any):
    with pytest.raises(ValueError, match="it is not a file"):
        file_of("file-" + "a" * 24, json.dumps(value).encode())
