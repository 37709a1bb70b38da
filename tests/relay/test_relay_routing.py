"""Which worker a conversation goes to: its beginning, and the ring. What the pool makes of it is in its own test."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from relay_peers import MODEL, Relay, wait_until

from umaserve.relay.pool.affinity_key import MAX_TEXT, affinity_key_of
from umaserve.relay.pool.worker import Worker
from umaserve.relay.pool.worker_group import POINTS, WorkerGroup
from umaserve.wire.fields import parse_json
from umaserve.wire.long_texts import LONG

SCOPE = ("ann", "a model")
POINT = st.integers(0, (1 << 64) - 1)


class Link:
    overfull = False


def worker(place: str, places: int = 4) -> Worker:
    made = Worker(place, place, Link(), ("a",), places, frozenset())  # type: ignore[arg-type]
    made.place = place
    return made


def crew_of(*workers: Worker) -> WorkerGroup:
    crew = WorkerGroup()
    for one in workers:
        crew.add(one)
    return crew


def owner(crew: WorkerGroup, point: int) -> Worker:
    return next(crew.after(point))[1]


# The beginning.

SAID = st.text(max_size=40)
PARTS = SAID | st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": SAID}), min_size=1, max_size=3)


def chat(system: Any, first: Any, *later: str) -> dict[str, Any]:
    roles = ("assistant", "user") * len(later)
    turns = [{"role": "system", "content": system}, {"role": "user", "content": first}]
    return {"messages": turns + [{"role": role, "content": text} for role, text in zip(roles, later, strict=False)]}


@given(system=PARTS, first=PARTS, later=st.lists(SAID, max_size=9), more=st.dictionaries(SAID, SAID))
def test_all_turns_of_a_conversation_begin_alike(system: Any, first: Any, later: list[str], more: dict) -> None:
    once = affinity_key_of(chat(system, first), SCOPE)
    fields = {**more, **chat(system, first, *later), "temperature": 0.5, "stream": True}
    for name in ("system", "instructions"):
        fields.pop(name, None)
    assert affinity_key_of(fields, SCOPE) == once


@pytest.mark.parametrize(
    "other",
    [
        chat("Be brief.", "Who?"),
        chat("Be kind.", "Why?"),
        {**chat("Be brief.", "Why?"), "system": "more"},
        {"messages": [{"role": "user", "content": "Be brief.Why?"}]},
        {"prompt": "Be brief.Why?"},
    ],
)
def test_others_begin_otherwise(other: dict[str, Any]) -> None:
    assert len({affinity_key_of(fields, SCOPE) for fields in (chat("Be brief.", "Why?"), other)}) == 2


def test_another_clients_conversation_is_another_one() -> None:
    fields = chat("Be brief.", "Why?")
    assert len({affinity_key_of(fields, scope) for scope in (SCOPE, ("bob", "a model"), ("ann", "another"))}) == 3


def test_a_text_alone_is_as_one_in_parts() -> None:
    kept = [{"type": "input_text", "text": "Why?"}]
    assert affinity_key_of({}, SCOPE, [{"role": "user", "content": "Why?"}]) == affinity_key_of(
        {}, SCOPE, iter([{"role": "user", "content": kept}, {"role": "assistant", "content": "So."}])
    )


def test_a_prompt_counts_up_to_a_length() -> None:
    begun = "x" * MAX_TEXT
    assert affinity_key_of({"prompt": begun}, SCOPE) == affinity_key_of({"prompt": begun + "and more"}, SCOPE)
    assert affinity_key_of({"prompt": begun}, SCOPE) != affinity_key_of({"prompt": begun[:-1] + "y"}, SCOPE)
    assert affinity_key_of({"prompt": chat("a", "b")["messages"]}, SCOPE) == affinity_key_of(chat("a", "b"), SCOPE)


@pytest.mark.parametrize("length", [1000, LONG])
def test_of_long_media_the_beginning_counts(length: int) -> None:
    def body(data: str) -> Any:
        content = [{"type": "image_url", "image_url": {"url": data}}]
        return parse_json(orjson.dumps({"messages": [{"role": "user", "content": content}]}), 10)

    film = "x" * length
    assert affinity_key_of(body(film), SCOPE) == affinity_key_of(body(film + "y"), SCOPE)
    assert affinity_key_of(body("y" + film), SCOPE) != affinity_key_of(body(film), SCOPE)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"messages": []},
        {"messages": "no list"},
        {"messages": [5]},
        {"messages": [{"role": "user"}]},
        {"messages": [{"role": "user", "content": 5}]},
        {"prompt": ""},
        {"prompt": [1, 2, 3]},
        {"input": "what an embedding is asked for"},
        {"system": "nobody asks"},
    ],
)
def test_where_nothing_begins_nobody_is_preferred(fields: dict[str, Any]) -> None:
    assert affinity_key_of(fields, SCOPE) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["role", "content", "text"]), inner),
    max_leaves=20,
)


@given(st.dictionaries(st.sampled_from(["messages", "prompt", "input_prefix", "system"]), JSON))
def test_nothing_in_a_body_is_an_error(fields: dict[str, Any]) -> None:
    before = copy.deepcopy(fields)
    affinity_key_of(fields, SCOPE)
    assert fields == before


# The ring.


@given(st.integers(2, 12), st.lists(POINT, min_size=1, max_size=50))
def test_who_comes_takes_its_own_and_who_goes_leaves_them(count: int, points: list[int]) -> None:
    workers = [worker(f"box {number}") for number in range(count)]
    fewer, all_ = crew_of(*workers[:-1]), crew_of(*workers)
    for point in points:
        assert owner(all_, point) in (owner(fewer, point), workers[-1])
    all_.remove(workers[-1])
    assert [owner(all_, point) for point in points] == [owner(fewer, point) for point in points]


@given(POINT)
def test_each_worker_is_on_the_ring_once_and_in_order(point: int) -> None:
    workers = [worker(f"box {number}") for number in range(7)]
    steps = list(crew_of(*workers).after(point))
    assert sorted(one.place for _, one in steps) == sorted(one.place for one in workers)
    distances = [distance for distance, _ in steps]
    assert distances == sorted(distances)


def test_shares_are_about_equal() -> None:
    crew = crew_of(*(worker(f"box {number}") for number in range(8)))
    owners = [owner(crew, point) for point in range(0, 1 << 64, (1 << 64) // 4096)]
    shares = [owners.count(one) / 512 for one in set(owners)]
    assert len(shares) == 8
    assert all(abs(share - 1) < 4 / math.sqrt(POINTS) for share in shares)


# The heap.

CHANGES = st.lists(
    st.tuples(st.sampled_from(["come", "go", "give", "end", "report", "behind", "drain"]), st.integers(0, 4)),
    max_size=60,
)


@given(CHANGES, st.integers(0, 3))
def test_the_least_loaded_is_the_one_of_all(changes: list[tuple[str, int]], places: int) -> None:
    crew, members, turns = WorkerGroup(), dict[int, Worker](), 0
    do: dict[str, Callable[[Worker, int], object]] = {
        "give": lambda one, turn: one.in_flight.update({str(turn): None}),  # type: ignore[dict-item]
        "end": lambda one, turn: one.in_flight and one.in_flight.popitem(),
        "report": lambda one, turn: one.report(turn % 5),
        "drain": lambda one, turn: setattr(one, "draining", True),
    }
    for change, number in changes:
        turns += 1
        if change == "come" and number not in members:
            members[number] = worker(f"box {number}", places)
            members[number].link = Link()
            crew.add(members[number])
        elif number not in members:
            continue
        elif change == "go":
            crew.remove(members.pop(number))
        elif change == "behind":
            members[number].link.overfull = not members[number].link.overfull  # type: ignore[misc]
        elif change in do:
            if change == "give":
                members[number].given_at = turns
            do[change](members[number], turns)
            crew.note(members[number])
        free = [one for one in members.values() if one.free]
        found = crew.least_loaded()
        assert (found is None) == (not free)
        assert found is None or found.rank == min(one.rank for one in free)
        counted = [one.load for one in members.values() if not one.draining]
        assert (crew.load, crew.size, bool(crew)) == (sum(counted), len(counted), bool(members))


# Over HTTP.

FIRST = chat("Be brief.", "Why?")["messages"]
TURNS = [
    ("/v1/chat/completions", [{"messages": FIRST}, {"messages": [*FIRST, {"role": "assistant", "content": "So."}]}]),
    (
        "/v1/messages",
        [
            {"system": "Be brief.", "messages": FIRST[1:]},
            {"system": "Be brief.", "messages": [*FIRST[1:], {"role": "assistant", "content": "So."}]},
        ],
    ),
    ("/v1/completions", [{"prompt": "x" * MAX_TEXT}, {"prompt": "x" * MAX_TEXT + " and so on"}]),
    ("/v1/responses", [{"input": "Why?"}, {"input": "How?", "previous_response_id": "resp_1"}]),
]
KEPT = {"id": "resp_1", "object": "response", "status": "completed", "output": []}


def turn(relay: Relay, workers: Sequence[Any], path: str, fields: dict[str, Any]) -> str:
    """The worker that a turn goes to, which answers it."""
    client = relay.client().post(path, json.dumps({"model": MODEL, **fields}).encode())
    id_ = wait_until(lambda: next((shown["id"] for shown in relay.workers() if shown["in_flight"]), None))
    next(one for one in workers if one.id == id_).answer(json.dumps(KEPT))
    assert client.receive().status == 200
    return id_


@pytest.mark.parametrize(("path", "turns"), TURNS, ids=[path for path, _ in TURNS])
def test_the_turns_of_a_conversation_go_to_one_worker(
    start: Callable[..., Relay], path: str, turns: list[dict[str, Any]]
) -> None:
    relay = start()
    workers = [relay.worker() for _ in range(4)]
    assert len({turn(relay, workers, path, fields) for fields in (*turns, *turns)}) == 1


def test_the_turns_of_a_websocket_go_to_its_worker(start: Callable[..., Relay]) -> None:
    relay = start()
    workers = {one.id: one for one in (relay.worker(features=["websocket"]) for _ in range(4))}
    homes = set()
    for messages in (FIRST, [*FIRST, {"role": "assistant", "content": "So."}]) * 2:
        socket = relay.connect("/ws/chat")
        socket.send({"messages": messages})
        id_ = wait_until(lambda: next((shown["id"] for shown in relay.workers() if shown["in_flight"]), None))
        workers[id_].complete(workers[id_].request())
        assert socket.closed()[0] == 1000
        homes.add(id_)
    assert len(homes) == 1


def test_by_load_the_workers_take_turns(start: Callable[..., Relay]) -> None:
    relay = start(route_by="load")
    workers = [relay.worker() for _ in range(4)]
    path, turns = TURNS[0]
    assert len({turn(relay, workers, path, fields) for fields in (*turns, *turns)}) == 4
