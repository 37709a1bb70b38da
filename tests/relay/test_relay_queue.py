"""The queue, beside one that looks at all who wait: who is next for a worker, and how often one is passed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from umaserve.dialects.parameters import PRIORITY_HEADER
from umaserve.net.timers import Timer, Timers
from umaserve.relay.pool.queue import Queue
from umaserve.relay.pool.request import RelayedRequest
from umaserve.relay.pool.worker import Worker

PLACES = ("box", "box 2", "box 3")
OFFERS = (("a",), ("a", "b"), ("*",))


class Clock:
    def __init__(self) -> None:
        self.timers = Timers()

    def now(self) -> float:
        return 0.0

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer:
        return self.timers.add(delay, callback)


class Link:
    overfull = False


def request(number: int, model: str, home: str, *, background: bool) -> RelayedRequest:
    headers = {PRIORITY_HEADER: "background"} if background else {}
    made = RelayedRequest(f"r-{number}", model, "/", False, "", headers, None, home=home)  # type: ignore[arg-type]
    made.number = number
    return made


COME = st.tuples(
    st.just("come"),
    st.sampled_from(["a", "a", "b"]),
    st.sampled_from(["", *PLACES]),
    st.sampled_from([False] * 4 + [True]),
)
LATE = st.tuples(st.just("come back"), st.integers(0, 9))
FREE = st.tuples(st.just("free"), st.integers(0, 2))
GONE = st.tuples(st.just("leave"), st.integers(0, 9))


@given(st.lists(COME | FREE | GONE | LATE | COME | FREE, max_size=80), st.integers(0, 6))
def test_a_worker_gets_its_own_ones_first_and_nobody_is_passed_more_often_than_that(steps: list, reach: int) -> None:
    queue = Queue(Clock(), 10.0, lambda _request: None)
    workers = [
        Worker(place, place, Link(), models, 1, frozenset(), place=place)  # type: ignore[arg-type]
        for place, models in zip(PLACES, OFFERS, strict=True)
    ]
    waiting: list[RelayedRequest] = []
    given_: list[RelayedRequest] = []
    passed = Counter[RelayedRequest]()
    number = 0
    for step in steps:
        match step:
            case "come", model, home, background:
                number += 1
                waiting.append(request(number, model, home, background=background))
                queue.add(waiting[-1])
            case "come back", index if given_:
                waiting.append(given_.pop(index % len(given_)))
                queue.add(waiting[-1])
            case "leave", index if waiting:
                queue.remove(waiting.pop(index % len(waiting)))
            case "free", index:
                worker = workers[index]
                served = sorted((one for one in waiting if worker.serves(one)), key=lambda one: one.order)
                found = queue.next_for(worker, reach)
                assert (found is None) == (not served)
                if found is None:
                    continue
                first = served[0]
                own = next((one for one in served if one.home == worker.place), first)
                near = own.number <= first.number + reach and own.order[0] == first.order[0]
                assert found is (own if near else first)
                later = [one for one in served if one.order < found.order]
                assert all(one.order[0] == found.order[0] for one in later)
                passed.update(later)
                queue.remove(found)
                waiting.remove(found)
                given_.append(found)
        assert list(queue) == sorted(waiting, key=lambda one: one.order)
    assert max(passed.values(), default=0) <= reach
    for one in waiting:
        queue.remove(one)
    assert (len(queue), queue._lines) == (0, {})
