"""The batches of OpenAI's API: their lines, their states, their rows, and the pages."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from typing import Any

import pytest
from clock import Clock
from hypothesis import given
from hypothesis import strategies as st
from routes import facts

from umaserve.core.errors import Fault, RequestError
from umaserve.dialects.batches import batches
from umaserve.dialects.batches.batches import MAX_UNFINISHED
from umaserve.dialects.batches.kept import AllFiles
from umaserve.dialects.batches.lines import (
    ENDPOINTS,
    MAX_ID_CHARS,
    MAX_LINE_BYTES,
    MAX_LINES,
    Line,
    answered,
    check_alone,
    check_lines,
    id_of,
    not_run,
    read_line,
)
from umaserve.dialects.batches.states import ENDS, TRANSITIONS, Event, Status
from umaserve.dialects.batches.stored_batch import MAX_PROBLEMS, Problem, StoredBatch, batch_of, packed_batch
from umaserve.dialects.batches.stored_file import OUTPUT, StoredFile
from umaserve.dialects.facts import Facts
from umaserve.wire.http_head import Request

CHAT = ENDPOINTS[0]
BATCH_ID = "batch_" + "b" * 24
NAMES = ["file-" + digit * 24 for digit in "123"]


def line(custom_id: Any = "a", **fields: Any) -> bytes:
    values = {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": {"messages": []}} | fields
    return json.dumps({name: value for name, value in values.items() if value is not None}).encode()


def stored(batch_id: str = BATCH_ID, **fields: Any) -> StoredBatch:
    input_id, output_id, error_id = NAMES
    known: dict[str, Any] = {
        "endpoint": CHAT,
        "input_id": input_id,
        "output_id": output_id,
        "error_id": error_id,
        "created_at": 7,
        "metadata": None,
    }
    return StoredBatch(id=batch_id, **known | fields)


# -- lines -------------------------------------------------------------------------------------------------------


def test_a_line_is_a_request():
    assert read_line(line(), 3, CHAT) == Line(3, "a", b'{"messages":[]}')
    long_text = "A" * 100_000
    body = {"messages": [{"role": "user", "content": long_text}]}
    assert json.loads(read_line(line(body=body), 1, CHAT).body) == body


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"{", "payload: not valid JSON"),
        (b"5", "line: expected an object, got a whole number"),
        (line(None), "custom_id: expected a non-empty string of at most 512 bytes, got null"),
        (line("x" * (MAX_ID_CHARS + 1)), "custom_id: expected"),
        (line(5), "custom_id: expected a non-empty string of at most 512 bytes, got a whole number"),
        (line(method="GET"), 'method: expected "POST", got "GET"'),
        (line(url="/v1/models"), "url: expected "),
        (line(url="/v1/embeddings"), f"url: expected the batch's endpoint, {CHAT}, got /v1/embeddings"),
        (line(body=None), "body: expected an object, got null"),
        (line(body=[]), "body: expected an object, got an array"),
        (line(body={"a": json.loads("[" * 300 + "]" * 300)}), "body: expected an object nested less than 200 deep"),
        (b" " * (MAX_LINE_BYTES + 1), f"line: expected at most {MAX_LINE_BYTES} bytes"),
    ],
)
def test_a_line_that_is_no_request_is_refused_by_the_field(text: bytes, problem: str):
    with pytest.raises(RequestError) as refused:
        read_line(text, 1, CHAT)
    assert refused.value.message.startswith(problem)


@given(st.lists(st.sampled_from([b"{", line("a"), line("b"), line("c"), line("d", method="PUT"), b"[]"]), max_size=12))
def test_problems_have_the_numbers_of_their_lines(texts: list[bytes]):
    checked = check_lines(enumerate(texts, 1), CHAT)
    seen: list[bytes] = []
    bad = []
    for number, text in enumerate(texts, 1):
        if text in (b"{", b"[]", line("d", method="PUT")) or text in seen:
            bad.append(number)
        seen.append(text)
    assert checked.total == len({*texts} & {line("a"), line("b"), line("c")})
    assert [one.line for one in checked.problems] == (bad if texts else [None])


def test_problems_and_lines_are_bounded():
    checked = check_lines(((number, b"{") for number in itertools.count(1)), CHAT)
    assert len(checked.problems) == MAX_PROBLEMS
    checked = check_lines(((number, line(str(number))) for number in itertools.count(1)), CHAT)
    assert [(one.code, one.line) for one in checked.problems] == [("too_many_requests", MAX_LINES + 1)]


@pytest.mark.parametrize("field", ["stream", "background"])
def test_a_body_whose_answer_comes_otherwise_is_refused(field: str):
    check_alone(json.dumps({field: False}).encode())
    check_alone(b"{}")
    with pytest.raises(RequestError, match=rf"^{field}: expected false or to be absent in a batch"):
        check_alone(json.dumps({field: True}).encode())


@given(st.text(min_size=1), st.integers(1, MAX_LINES))
def test_a_result_is_one_line_with_the_name_of_its_request(custom_id: str, number: int):
    request = Line(number, custom_id, b"{}")
    for written in (answered(BATCH_ID, request, 400, b'{"a":1}'), not_run(BATCH_ID, request, "batch_expired", "late")):
        assert written.count(b"\n") == 1
        assert id_of(written) == custom_id
        assert id_of(written[:-1]) is None
        assert id_of(written[:-2] + b"\n") is None
    values = json.loads(answered(BATCH_ID, request, 400, b'{"a":1}'))
    assert (values["response"]["status_code"], values["response"]["body"], values["error"]) == (400, {"a": 1}, None)
    values = json.loads(not_run(BATCH_ID, request, "batch_expired", "late"))
    assert (values["response"], values["error"]) == (None, {"code": "batch_expired", "message": "late"})


# -- states ------------------------------------------------------------------------------------------------------


def test_every_status_can_be_reached_and_an_end_is_one():
    assert {Status.VALIDATING, *TRANSITIONS.values()} == {*Status}
    going = {status for status, _event in TRANSITIONS}
    assert going == {*Status} - {*ENDS}
    assert all((status, Event.FAIL) in TRANSITIONS for status in going), "a disk may fail at any time"


@given(st.data())
def test_a_batch_and_its_row_tell_the_same_on_any_way(data: st.DataObject):
    batch = stored(metadata={"a": "b"}, total=3, completed=1, failed=1)
    for now in itertools.count(10):
        again = batch_of(BATCH_ID, packed_batch(batch))
        assert again.told() == batch.told()
        assert again.names == batch.names
        assert batch.told()[f"{batch.status}_at" if now > 10 else "created_at"] == (now - 1 if now > 10 else 7)
        events = [event for status, event in TRANSITIONS if status is batch.status]
        if not events:
            break
        batch.move(data.draw(st.sampled_from(events)), now)
        if batch.status is Status.FAILED:
            batch.problems = [Problem("a", "b", None, 3)]
    assert (batch.ended, batch.names) == (True, ())


def test_a_row_of_a_bad_id_or_name_is_refused():
    row = json.loads(packed_batch(stored()))
    for bad in (
        row | {"files": ["../a", *NAMES[1:]]},
        row | {"files": [NAMES[0]] * 3},
        row | {"status": "odd"},
        row | {"times": {"failed_at": "x"}},
        row | {"problems": [{}]},
        row | {"shown": ["../a"]},
        row | {"metadata": {"a": 5}},
        {},
    ):
        with pytest.raises(ValueError, match=r"it is not a batch|is invalid|not a valid Status"):
            batch_of(BATCH_ID, json.dumps(bad).encode())
    with pytest.raises(ValueError, match="it is not a batch"):
        batch_of("batch_../x", json.dumps(row).encode())


# -- pages -------------------------------------------------------------------------------------------------------


class Desk:
    """Files and batches of some tenants, of which none begins by itself."""

    def __init__(self) -> None:
        self.all = AllFiles(Clock(), 64 << 20, math.inf)
        self.begun: list[tuple[str, StoredBatch]] = []
        self.all.begin = lambda tenant, batch: self.begun.append((tenant, batch))
        self._ids = itertools.count(1)
        for number, purpose in ((1, "batch"), (2, OUTPUT)):
            self.all.files.keep(
                "ann",
                StoredFile(id=f"file-{number}", filename="a", purpose=purpose, length=9, created_at=number),
            )

    def facts(self, tenant: str = "ann") -> Facts:
        new_id = lambda prefix: f"{prefix}{next(self._ids):024x}"  # noqa: E731
        return replace(facts(), files=self.all.of(tenant), new_id=new_id, now=lambda: 7)

    def create(self, tenant: str = "ann", **fields: Any) -> Any:
        body = {"input_file_id": "file-1", "endpoint": CHAT, "completion_window": "24h"} | fields
        return self.ask(batches.create, body=body, tenant=tenant)

    def ask(self, page: Any, tail: str = "", body: Any = None, tenant: str = "ann", **query: str) -> Any:
        request = Request("POST", batches.PATH + tail, query, (), json.dumps(body).encode())
        status, _type, content = page(self.facts(tenant), request)
        assert status == 200
        return json.loads(content)


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_a_batch_is_made_begun_listed_and_shown(desk: Desk):
    made = desk.create(metadata={"a": "b"})
    assert made == {
        "id": made["id"],
        "object": "batch",
        "endpoint": CHAT,
        "errors": None,
        "input_file_id": "file-1",
        "completion_window": "24h",
        "status": "validating",
        "output_file_id": None,
        "error_file_id": None,
        "created_at": 7,
        "expires_at": 7 + 86400,
        "in_progress_at": None,
        "finalizing_at": None,
        "completed_at": None,
        "failed_at": None,
        "expired_at": None,
        "cancelling_at": None,
        "cancelled_at": None,
        "request_counts": {"total": 0, "completed": 0, "failed": 0},
        "metadata": {"a": "b"},
    }
    assert [(tenant, batch.id) for tenant, batch in desk.begun] == [("ann", made["id"])]
    assert desk.ask(batches.retrieve, f"/{made['id']}") == made
    assert desk.ask(batches.list_batches)["data"] == [made]


def test_pages_have_each_batch_once(desk: Desk):
    made = {desk.create()["id"] for _ in range(5)}
    found: list[str] = []
    query = {"limit": "2"}
    while True:
        page = desk.ask(batches.list_batches, **query)
        found += [one["id"] for one in page["data"]]
        if not page["has_more"]:
            break
        query["after"] = page["last_id"]
    assert (len(found), {*found}) == (5, made)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"completion_window": "48h"}, 'completion_window: expected "24h", got "48h"'),
        ({"completion_window": None}, "completion_window: expected"),
        ({"endpoint": "/v1/images/generations"}, "endpoint: expected"),
        ({"input_file_id": "file-2"}, 'input_file_id: expected a file with the purpose "batch", got the output'),
        ({"input_file_id": "file-3"}, "input_file_id: expected the id of a file that is still stored"),
        (
            {"output_expires_after": {"anchor": "created_at", "seconds": 3600}},
            "output_expires_after: expected to be abs",
        ),
    ],
)
def test_other_requests_are_refused_by_the_field(desk: Desk, fields: dict[str, Any], problem: str):
    with pytest.raises(RequestError) as refused:
        desk.create(**fields)
    assert refused.value.message.startswith(problem)
    assert desk.begun == []


def test_only_so_many_batches_of_a_tenant_may_be_unfinished(desk: Desk):
    made = [desk.create()["id"] for _ in range(MAX_UNFINISHED)]
    with pytest.raises(RequestError, match=r"^request: expected at most 15 others that have not ended, got 16"):
        desk.create()
    ended = desk.all.batches.get("ann", made[0], "")
    ended.move(Event.FAIL, 8)
    desk.create()


def test_a_batch_is_its_tenants_alone(desk: Desk):
    made = desk.create()["id"]
    for page in (batches.retrieve, batches.cancel):
        with pytest.raises(RequestError, match=r"^batch_id: expected the id of a batch") as hidden:
            desk.ask(page, f"/{made}", tenant="bob")
        assert hidden.value.fault is Fault.NOT_FOUND
    assert desk.ask(batches.list_batches, tenant="bob")["data"] == []


def test_a_batch_that_has_ended_is_not_cancelled(desk: Desk):
    made = desk.create()["id"]
    cancelled: list[str] = []
    batch = desk.begun[0][1]
    batch.cancel = lambda: cancelled.append(made)
    assert desk.ask(batches.cancel, f"/{made}/cancel")["id"] == made
    assert cancelled == [made]
    batch.move(Event.FAIL, 9)
    batch.cancel = None
    with pytest.raises(RequestError, match=r"^batch_id: expected one that has not ended, got one that is failed"):
        desk.ask(batches.cancel, f"/{made}/cancel")
