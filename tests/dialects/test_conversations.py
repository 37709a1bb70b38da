"""The conversations of OpenAI's API, and the responses that go on with one."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from routes import facts

from tests.support.routes import MODEL_INFO
from umaserve.core.errors import Fault, RequestError
from umaserve.core.events import Finished, FinishReason, Token, Usage
from umaserve.core.requests import ChatTurn
from umaserve.dialects.facts import Facts
from umaserve.dialects.responses.body import ResponseBody
from umaserve.dialects.responses.keeping import MAX_ITEMS
from umaserve.dialects.responses.kept import AllKept, StoredConversation
from umaserve.dialects.responses.kept_rows import conversation_of, packed, response_of
from umaserve.dialects.responses.routes import DIALECT
from umaserve.dialects.routes import Page
from umaserve.wire.http_head import Request

PATH = "/v1/conversations"


def keeping(tenant: str = "ann", all_kept: AllKept | None = None) -> Facts:
    numbers = itertools.count(1)
    kept = (all_kept or AllKept(lambda: 0.0)).of(tenant)
    return replace(
        facts(),
        model=lambda _name: MODEL_INFO,
        new_id=lambda prefix: f"{prefix}{next(numbers)}",
        now=lambda: 7,
        kept=kept,
    )


def ask(known: Facts, method: str, path: str = PATH, body: Any = None, query: dict[str, str] | None = None) -> Any:
    """The reply's JSON; raises what the page raises."""
    shown = "/".join("{}" if place in (3, 5) else part for place, part in enumerate(path.split("/")))
    pattern = next(one for one in DIALECT.routes if one.startswith(PATH) and _shape(one) == shown)
    page = DIALECT.routes[pattern].of(method).endpoint
    assert isinstance(page, Page)
    request = Request(method, path, query or {}, (), b"" if body is None else json.dumps(body).encode())
    status, _type, content = page.make(known, request)
    assert status == 200
    return json.loads(content)


def _shape(pattern: str) -> str:
    return pattern.replace("{conversation_id}", "{}").replace("{item_id}", "{}")


def said(text: str, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": text}


def texts(listed: Any) -> list[str]:
    return [item["content"][0]["text"] for item in listed["data"]]


def respond(known: Facts, answer: str, reason: FinishReason = FinishReason.STOP, **wanted: Any) -> Any:
    body = ResponseBody(known)
    body.receive(json.dumps({"input": "hi"} | wanted).encode())
    body.send(0, Token(answer, 1))
    body.send(0, Finished(reason, Usage(1, 1)))
    return json.loads(body.result())


def test_a_conversation_is_made_changed_and_deleted():
    known = keeping()
    made = ask(known, "POST", body={"metadata": {"a": "b"}, "items": [said("x")]})
    assert made == {"id": "conv_1", "object": "conversation", "created_at": 7, "metadata": {"a": "b"}}
    one = f"{PATH}/conv_1"
    assert ask(known, "GET", one) == made
    assert ask(known, "POST", one, {"metadata": {"c": "d"}})["metadata"] == {"c": "d"}
    assert ask(known, "GET", one)["metadata"] == {"c": "d"}
    assert ask(known, "DELETE", one) == {"id": "conv_1", "object": "conversation.deleted", "deleted": True}
    with pytest.raises(RequestError, match=r"^conversation_id: expected the id of a conversation ") as gone:
        ask(known, "GET", one)
    assert gone.value.fault is Fault.NOT_FOUND


def test_a_tenants_conversations_are_listed_the_last_changed_first():
    all_kept = AllKept(lambda: 0.0, max_age_s=math.inf, on_disk=True)
    ann, bob = keeping("ann", all_kept), keeping("bob", all_kept)
    assert ask(bob, "GET")["data"] == []
    ids = [ask(ann, "POST", body={"metadata": {"n": str(i)}})["id"] for i in range(3)]
    ask(ann, "POST", f"{PATH}/{ids[0]}", {"metadata": {"n": "changed"}})
    first = ask(ann, "GET", query={"limit": "2"})
    assert [(one["id"], one["metadata"]) for one in first["data"]] == [(ids[0], {"n": "changed"}), (ids[2], {"n": "2"})]
    assert (first["first_id"], first["last_id"], first["has_more"]) == (ids[0], ids[2], True)
    assert (first["on_disk"], first["max_age_s"]) == (True, None)
    rest = ask(ann, "GET", query={"after": ids[2]})
    assert ([one["id"] for one in rest["data"]], rest["has_more"]) == ([ids[1]], False)
    in_memory = ask(keeping(), "GET")
    assert (in_memory["on_disk"], in_memory["max_age_s"]) == (False, 3600)
    with pytest.raises(RequestError, match=r"^after: expected the id of a listed conversation, got conv_9"):
        ask(ann, "GET", query={"after": "conv_9"})


def test_items_are_added_read_and_deleted():
    known = keeping()
    items = f"{PATH}/{ask(known, 'POST')['id']}/items"
    call = {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}
    added = ask(known, "POST", items, {"items": [said("a") | {"id": "mine"}, call, said("b", "assistant")]})
    ids = [item["id"] for item in added["data"]]
    assert (ids[0], len(set(ids)), added["first_id"], added["has_more"]) == ("mine", 3, "mine", False)
    assert added["data"][0]["content"] == [{"type": "input_text", "text": "a"}]
    [again] = ask(known, "POST", items, {"items": [said("c") | {"id": "mine"}]})["data"]
    assert again["id"] not in ids, "an id that is taken is replaced"
    assert ask(known, "GET", f"{items}/mine") == added["data"][0]
    assert ask(known, "DELETE", f"{items}/mine")["object"] == "conversation"
    with pytest.raises(RequestError, match=r"^item_id: expected the id of an item"):
        ask(known, "GET", f"{items}/mine")
    listed = ask(known, "GET", items)
    assert [item["id"] for item in listed["data"]] == [again["id"], ids[2], ids[1]]


@given(n=st.integers(0, 12), limit=st.integers(1, 5), order=st.sampled_from(["asc", "desc"]))
def test_pages_have_each_item_once_in_order(n: int, limit: int, order: str):
    known = keeping()
    items = f"{PATH}/{ask(known, 'POST', body={'items': [said(str(i)) for i in range(n)]})['id']}/items"
    found, query, more = list[str](), {"order": order, "limit": str(limit)}, True
    while more:
        page = ask(known, "GET", items, query=query)
        more = page["has_more"]
        assert len(page["data"]) == limit or not more
        found += texts(page)
        query["after"] = page["last_id"]
    numbers = [str(i) for i in range(n)]
    assert found == (numbers if order == "asc" else numbers[::-1])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"items": []}, "items: expected "),
        ({"items": [said("a")] * 21}, "items: expected "),
        ({"items": [{"type": "web_search_call"}]}, r"items\[0\].type: expected "),
        ({"items": [said("a", "robot")]}, r"items\[0\].role: expected "),
        ({"items": [{"role": "user", "content": [{"type": "input_image"}]}]}, r"items\[0\].content\[0\].image_url"),
        ({}, "items: expected "),
    ],
)
def test_what_no_conversation_can_have_is_refused(body: dict[str, Any], message: str):
    known = keeping()
    ask(known, "POST")
    with pytest.raises(RequestError, match=f"^{message}"):
        ask(known, "POST", f"{PATH}/conv_1/items", body)
    assert ask(known, "GET", f"{PATH}/conv_1/items")["data"] == []


@pytest.mark.parametrize(
    "metadata", [5, None, {"a": 5}, {"a": "x" * 513}, {"x" * 65: "a"}, {str(i): "" for i in range(17)}]
)
def test_metadata_is_checked(metadata: object):
    known = keeping()
    ask(known, "POST")
    with pytest.raises(RequestError, match=r"^metadata"):
        ask(known, "POST", f"{PATH}/conv_1", {"metadata": metadata})


def test_another_tenants_conversation_is_not_there():
    all_kept = AllKept(lambda: 0.0)
    ask(keeping("ann", all_kept), "POST")
    bob = keeping("bob", all_kept)
    for method in ("GET", "DELETE"):
        with pytest.raises(RequestError, match=r"^conversation_id: "):
            ask(bob, method, f"{PATH}/conv_1")
    with pytest.raises(RequestError, match=r"^conversation: "):
        respond(bob, "a", conversation="conv_1")


@pytest.mark.parametrize("path", ["conv_1/items/x/items", "conv_1/more", "x/conv_1"])
def test_a_path_that_has_more_names_no_conversation(path: str):
    known = keeping()
    ask(known, "POST")
    page = DIALECT.routes[f"{PATH}/{{conversation_id}}"].of("DELETE").endpoint
    assert isinstance(page, Page)
    if path.startswith("conv_1/items"):
        page = DIALECT.routes[f"{PATH}/{{conversation_id}}/items/{{item_id}}"].of("DELETE").endpoint
        assert isinstance(page, Page)
    with pytest.raises(RequestError):
        page.make(known, Request("DELETE", f"{PATH}/{path}", {}, (), b""))
    assert ask(known, "GET", f"{PATH}/conv_1")["id"] == "conv_1"


def test_a_full_conversation_refuses_more_and_stays():
    known = keeping()
    ask(known, "POST")
    conversation = known.kept.conversations.get("conv_1", "")
    conversation.add([b'{"type":"message","role":"user","content":"x"}'] * MAX_ITEMS)
    with pytest.raises(RequestError, match=r"^items: expected at most 4096 items") as full:
        ask(known, "POST", f"{PATH}/conv_1/items", {"items": [said("a")]})
    assert full.value.fault is Fault.PROMPT_TOO_LARGE
    with pytest.raises(RequestError, match=r"^input: expected at most 4096 items"):
        respond(known, "a", conversation="conv_1")
    assert len(conversation.items) == MAX_ITEMS
    large = said("x" * (known.kept.conversations.max_bytes // 2))
    with pytest.raises(RequestError, match=r"^items: expected at most "):
        ask(known, "POST", body={"items": [large]})


# -- responses --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("named", ["conv_1", {"id": "conv_1"}])
def test_a_response_goes_on_with_a_conversation(named: object):
    known = keeping()
    ask(known, "POST", body={"items": [said("Be brief.", "system")]})
    first = respond(known, "Hello!", conversation=named, input="hi")
    assert first["conversation"] == {"id": "conv_1"}
    body = ResponseBody(known)
    [asked] = body.receive(json.dumps({"input": "And?", "conversation": named}).encode())
    assert asked.prompt == (
        ChatTurn("system", "Be brief."),
        ChatTurn("user", "hi"),
        ChatTurn("assistant", "Hello!"),
        ChatTurn("user", "And?"),
    )
    listed = ask(known, "GET", f"{PATH}/conv_1/items", query={"order": "asc"})
    assert texts(listed) == ["Be brief.", "hi", "Hello!"]


def test_what_does_not_end_well_adds_nothing():
    known = keeping()
    ask(known, "POST")
    respond(known, "a", FinishReason.CANCELLED, conversation="conv_1")
    body = ResponseBody(known)
    body.receive(b'{"input":"hi","conversation":"conv_1"}')
    body.fail(0, RequestError(Fault.DECODE_FAILED, "request", "no"))
    assert ask(known, "GET", f"{PATH}/conv_1/items")["data"] == []
    respond(known, "b", FinishReason.LENGTH, conversation="conv_1", store=False)
    assert texts(ask(known, "GET", f"{PATH}/conv_1/items")) == ["b", "hi"]


def test_a_conversation_that_is_deleted_meanwhile_stays_deleted():
    known = keeping()
    ask(known, "POST")
    body = ResponseBody(known)
    body.receive(b'{"input":"hi","conversation":"conv_1"}')
    ask(known, "DELETE", f"{PATH}/conv_1")
    body.send(0, Finished(FinishReason.STOP, Usage(1, 1)))
    with pytest.raises(RequestError):
        ask(known, "GET", f"{PATH}/conv_1")


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"conversation": "conv_2"}, "conversation: expected the id of a conversation of the last 60 minutes"),
        ({"conversation": 5}, "conversation: expected the id of a conversation, as text or in an object"),
        ({"conversation": {}}, r"conversation.id: expected "),
        ({"conversation": "conv_1", "previous_response_id": "resp_2"}, "conversation: expected to be absent where "),
    ],
)
def test_refused_conversations(wanted: dict[str, Any], message: str):
    known = keeping()
    ask(known, "POST")
    respond(known, "a")
    with pytest.raises(RequestError, match=f"^{message}"):
        respond(known, "a", **wanted)


# -- rows of a file ---------------------------------------------------------------------------------------------------

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5), lambda one: st.lists(one, max_size=3)
)


@given(st.lists(st.dictionaries(st.sampled_from(["type", "role", "content"]), _JSON, max_size=3), max_size=5))
def test_a_conversation_is_read_as_it_was_written(items: list[dict[str, Any]]):
    conversation = StoredConversation(id="conv_1", created_at=7, metadata={"a": "b"})
    conversation.add(json.dumps(item).encode() for item in items)
    read = conversation_of("conv_1", packed(conversation))
    assert [*map(json.loads, read.items.values())] == [*map(json.loads, conversation.items.values())]
    assert (list(read.items), read.created_at, read.metadata) == (list(conversation.items), 7, {"a": "b"})


def test_a_response_is_read_as_it_was_written_and_one_that_went_on_has_failed():
    known = keeping()
    whole = respond(known, "a")
    stored = known.kept.responses.get(whole["id"], "")
    read = response_of(whole["id"], packed(stored))
    assert (json.loads(read.response), read.input, read.output) == (whole, stored.input, stored.output)
    stored.response = json.dumps(whole | {"status": "in_progress"}).encode()
    lost = json.loads(response_of(whole["id"], packed(stored)).response)
    assert (lost["status"], lost["error"]["code"]) == ("failed", "server_error")


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"5", b"{}", b'{"response":{"id":"resp_2"},"in_background":false,"input":[],"output":[]}',
     b'{"response":{"id":"resp_1"},"in_background":false,"input":[5],"output":[]}',
     b'{"created_at":1,"metadata":{"a":5},"items":[]}', b'{"created_at":1,"metadata":{},"items":{}}'],
)  # fmt: skip
def test_a_wrong_row_is_refused(content: bytes):
    for read in (response_of, conversation_of):
        with pytest.raises(ValueError, match=r"^(it |its |Input|unexpected)"):
            read("resp_1", content)
