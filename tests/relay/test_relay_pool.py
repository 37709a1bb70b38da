"""The pool against workers and clients that keep account of what they may be told: by examples, then in any order."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable

import pytest
from examples import examples
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from umaserve.net.timers import Timer, Timers
from umaserve.relay.pool import pool as pool_module
from umaserve.relay.pool import registry as registry_module
from umaserve.relay.pool import replies as replies_module
from umaserve.relay.pool.in_flight import CANCEL_GRACE_S
from umaserve.relay.pool.pool import MAX_REQUEUES, Pool, PoolLimits
from umaserve.relay.pool.registry import SLACK
from umaserve.relay.pool.replies import EVENT_STREAM
from umaserve.relay.pool.request import RelayedRequest
from umaserve.relay.pool.states import TRANSITIONS, Event, State, TransitionError
from umaserve.wire.relay_messages import (
    Cancel,
    CancelReason,
    Flow,
    FromProxy,
    GracefulShutdown,
    ModelsRefresh,
    Request,
    ResponseChunk,
    ResponseComplete,
    WorkerError,
)

QUEUE_LEN, QUEUE_S, REQUEST_S, RESPONSE_BYTES = 4, 10.0, 25.0, 12
SILENCE_S = 9.0
COMPLETE, TIMED_OUT = "graceful shutdown complete", "graceful shutdown timed out"
SHUTTING_DOWN = ("fail", 503, "the relay is shutting down")
ENDS = ("respond", "end", "fail")
COMMENT = ":\n\n"
BOTH = ("flow", "websocket")


class TimerLoop:
    """A loop of timers only, in half seconds, which floats hold exactly."""

    def __init__(self) -> None:
        self.time = 1000.0
        self.made: list[Timer] = []
        self._timers = Timers()

    def now(self) -> float:
        return self.time

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer:
        self.made.append(self._timers.add(self.time + delay, callback))
        return self.made[-1]

    def live(self) -> set[Timer]:
        self.made = [timer for timer in self.made if timer.callback is not None]
        return set(self.made)

    def advance(self, seconds: float) -> None:
        self.time += seconds
        for callback in self._timers.due(self.time):
            callback()


class Client:
    """Hears one end and then nothing; nothing at all once it has left."""

    def __init__(
        self,
        relay: Relay,
        model: str,
        websocket: bool,
        then: Callable[[], object] | None,
        beginning: int | None = None,
    ) -> None:
        self.relay, self.then = relay, then
        id_ = f"r-{next(relay.numbers)}"
        path = "/generate" if websocket else "/v1/chat/completions"
        self.body = f"body of {id_}"
        self.request = RelayedRequest(
            id_,
            model,
            path,
            not websocket,
            self.body,
            {"x-of": id_},
            self,
            "websocket" if websocket else "",
            beginning,
        )
        self.heard: list[tuple[object, ...]] = []
        self.frames: list[str] = []
        self.left = self.paused = self.answered = False
        self.losses = 0
        self.waited, self.since = 0.0, relay.loop.now()
        """Waiting: until last given to a worker, and since when it does again, or is with one."""

    @property
    def outcome(self) -> tuple[object, ...] | None:
        return self.heard[-1] if self.heard and self.heard[-1][0] in ENDS else None

    @property
    def over(self) -> bool:
        return self.left or self.outcome is not None

    @property
    def got(self) -> str:
        return "".join(str(told[1]) for told in self.heard if told[0] == "write")

    @property
    def opened(self) -> bool:
        return any(told[0] == "begin" for told in self.heard)

    @property
    def begun(self) -> bool:
        """Whether it has got anything but comments."""
        return any(told[0] == "write" and told[1] != COMMENT for told in self.heard)

    def hear(self, *told: object) -> None:
        assert not self.over, f"{self.request} is over: {self.heard}, then {told}"
        self.heard.append(told)
        if told[0] in ENDS:
            assert self.relay.holders(self) == [], "its worker was not told"
            if self.then is not None:
                self.then()

    def respond(self, status: int, headers: object, body: str) -> None:
        assert not self.opened
        self.hear("respond", status, headers, body)

    def begin(self, status: int, headers: object) -> None:
        assert not self.opened
        self.hear("begin", status, headers)

    def write(self, chunk: str | bytes) -> None:
        assert self.opened
        self.hear("write", chunk)

    def end(self) -> None:
        assert self.begun
        self.hear("end")

    def fail(self, status: int, error: str) -> None:
        now = self.relay.loop.now()
        if error == "request timeout":
            assert now - self.since >= REQUEST_S
        elif error.startswith("queue timeout"):
            assert self.waited + now - self.since >= QUEUE_S
        self.hear("fail", status, error)

    # -- what it does --------------------------------------------------------------------------------------------

    def leave(self) -> None:
        self.left = True
        self.relay.pool.leave(self.request)

    def say(self, text: str) -> None:
        self.frames.append(text)
        self.relay.pool.frame(self.request, text)

    def pause(self, paused: bool) -> None:
        self.paused = paused
        self.relay.pool.pause(self.request, paused)


class Link:
    """A worker's connection, with its own account of the worker's places."""

    def __init__(
        self, relay: Relay, models: tuple[str, ...], places: int, features: tuple[str, ...], load: int, lingers: bool
    ) -> None:
        """``lingers``: the pool is told of its loss some time after it was closed."""
        self.relay, self.models, self.places, self.features, self.others = relay, models, places, features, load
        self.lingers = lingers
        self.turn = 0
        self.sent: list[FromProxy] = []
        self.open: dict[str, Client] = {}
        self.cancelled: dict[str, float] = {}
        """Until when each keeps its place."""
        self.bodies: dict[str, list[str]] = {}
        self.said: dict[str, str] = {}
        """Output of each without a status, which is not to reach its client yet."""
        self.held: dict[str, bool] = {}
        self.leaving = self.gone = self.overfull = False
        self.closed: tuple[int, str] | None = None
        self.worker = relay.pool.register(self, "box", models, places, load, features)
        assert self.worker not in relay.pool.workers
        relay.links.append(self)
        relay.known.update(models)
        relay.pool.activate(self.worker)

    @property
    def occupied(self) -> int:
        return len(self.open) + sum(until > self.relay.loop.now() for until in self.cancelled.values())

    @property
    def load(self) -> int:
        return self.others + self.occupied

    @property
    def free(self) -> bool:
        return not self.leaving and self.closed is None and self.occupied < self.places and not self.overfull

    def serves(self, client: Client) -> bool:
        if client.request.is_websocket and "websocket" not in self.features:
            return False
        if not client.request.model:
            return self.models != ()
        return client.request.model in self.models or "*" in self.models

    # -- from the pool -------------------------------------------------------------------------------------------

    def send(self, message: FromProxy) -> None:
        assert not self.gone, message
        self.sent.append(message)
        match message:
            case Request() if message.request_id in self.open:
                assert self.open[message.request_id].request.is_websocket, "given twice"
                self.bodies[message.request_id].append(message.body)
            case Request():
                self._take(self.relay.client(message.request_id), message)
            case Cancel():
                del self.open[message.request_id]
                self.cancelled[message.request_id] = self.relay.loop.now() + CANCEL_GRACE_S
            case Flow():
                assert "flow" in self.features
                assert message.request_id in self.open
                assert self.held[message.request_id] != message.paused
                self.held[message.request_id] = message.paused
            case GracefulShutdown():
                assert not self.leaving
                self.leaving = True

    def _take(self, client: Client, message: Request) -> None:
        request = client.request
        assert (message.model, message.endpoint_path, message.is_streaming, message.body, message.headers) == (
            (request.model, request.path, request.is_streaming, request.body, request.headers)
        )
        assert self.free
        assert self.serves(client)
        assert self.relay.holders(client) == []
        assert not client.over
        assert not client.begun, "it would get its answer twice"
        waiting = [one.request for one in self.relay.waiting() if self.serves(one)]
        overtaken = [one for one in waiting if one.number < request.number]
        assert overtaken == [] or request.home == self.worker.place
        assert all(request.number - one.number <= sum(link.places for link in self.relay.links) for one in overtaken)
        own = [one.number for one in waiting if one.home == self.worker.place]
        assert request.number <= min(own, default=request.number) or request.home != self.worker.place
        self.open[request.id] = client
        self.bodies[request.id], self.held[request.id], self.said[request.id] = [message.body], False, ""
        self.turn = next(self.relay.turns)
        now = self.relay.loop.now()
        client.waited, client.since = client.waited + now - client.since, now

    def close(self, code: int, reason: str) -> None:
        assert code == 1000
        assert not self.gone
        if self.closed is None:
            self.closed = (code, reason)
            if not self.lingers:
                self.drop()

    # -- what it does --------------------------------------------------------------------------------------------

    def drop(self) -> None:
        """The connection is lost."""
        self.gone = True
        self.relay.links.remove(self)
        for client in self.open.values():
            client.losses += 1
            client.since = self.relay.loop.now()
        self.open.clear()
        self.cancelled.clear()
        self.relay.pool.lost(self.worker)

    def update(self, *models: str, load: int = 0) -> None:
        self.models, self.others = models, max(0, load - self.occupied)
        self.relay.known.update(models)
        self.relay.pool.update(self.worker, models, load)

    def report(self, load: int) -> None:
        self.others = max(0, load - self.occupied)
        self.relay.pool.report(self.worker, load)

    def chunk(
        self, id_: str, text: str | bytes, status: int | None = 200, headers: dict[str, str] | None = None
    ) -> None:
        """With a status it is output, whatever it is; without one it may be held back."""
        self.relay.pool.replies.chunk(self.worker, ResponseChunk(id_, text, status, headers))

    def complete(self, id_: str, status: int = 200, body: str | bytes | None = "answer") -> None:
        self._answer(id_)
        self.relay.pool.replies.complete(self.worker, ResponseComplete(id_, status, {"x-by": "box"}, body))

    def read(self, *, all_of_it: bool) -> None:
        """What it was sent, or so little that much waits for it."""
        self.overfull = not all_of_it
        if all_of_it:
            self.relay.pool.drained(self.worker)

    def error(self, id_: str | None, message: str = "broken") -> None:
        if id_ is not None:
            self._answer(id_)
        self.relay.pool.replies.error(self.worker, WorkerError("backend", message, id_))

    def _answer(self, id_: str) -> None:
        client = self.open.pop(id_, None)
        if client is not None:
            client.answered = True
        self.cancelled.pop(id_, None)


class Relay:
    """The pool with all its links and clients, and what must hold of them whenever it has done what it was asked."""

    def __init__(self) -> None:
        self.loop = TimerLoop()
        self.pool = Pool(self.loop, PoolLimits(QUEUE_LEN, QUEUE_S, REQUEST_S, SILENCE_S, RESPONSE_BYTES))
        self.numbers, self.turns = itertools.count(1), itertools.count(1)
        self.links: list[Link] = []
        self.clients: dict[str, Client] = {}
        self.known: set[str] = set()

    def connect(
        self,
        *models: str,
        places: int = 1,
        features: tuple[str, ...] = (),
        load: int = 0,
        lingers: bool = False,
    ) -> Link:
        return Link(self, models, places, features, load, lingers)

    def ask(
        self,
        model: str = "a",
        *,
        websocket: bool = False,
        then: Callable[[], object] | None = None,
        beginning: int | None = None,
    ) -> Client:
        client = Client(self, model, websocket, then, beginning)
        self.clients[client.request.id] = client
        self.pool.submit(client.request)
        return client

    def client(self, id_: str) -> Client:
        return self.clients[id_]

    def holders(self, client: Client) -> list[Link]:
        return [link for link in self.links if client.request.id in link.open]

    def waiting(self) -> list[Client]:
        """Who may be given to a worker yet, in the order of arrival."""
        return [
            client
            for client in self.clients.values()
            if not (
                client.over or client.answered or client.begun or client.losses > MAX_REQUEUES or self.holders(client)
            )
        ]

    def state(self, client: Client) -> State:
        """By what its client was told, and who has it."""
        if client.left:
            return State.LEFT
        if client.outcome is not None:
            return State.FAILED if client.outcome[0] == "fail" else State.DONE
        if client.begun:
            return State.STREAMING
        return State.IN_FLIGHT if self.holders(client) else State.WAITING

    def check(self) -> None:
        pool, now, links = self.pool, self.loop.now(), self.links
        assert set(pool.workers) == {link.worker for link in links}
        for client in self.clients.values():
            places = len(self.holders(client)) + list(pool.queue).count(client.request)
            assert places == (0 if client.over else 1), (client.request, client.heard)
            assert client.request.state is self.state(client)
            if client.over:
                assert client.request.timer is None
        assert list(pool.queue) == [client.request for client in self.waiting()]
        for client in self.waiting():
            assert client.since == now or client.waited + now - client.since < QUEUE_S
            assert not any(link.free and link.serves(client) for link in links), "it waits for nothing"
        for link in links:
            assert link.worker.in_flight == {id_: client.request for id_, client in link.open.items()}
            assert (link.worker.occupied, link.worker.load) == (link.occupied, link.load)
            assert link.occupied <= link.places
            assert link.closed is not None or not link.leaving or link.occupied, "it has nothing left to finish"
            for id_, client in link.open.items():
                assert now - client.since < REQUEST_S
                assert link.bodies[id_] == [client.body, *client.frames]
                if client.begun:
                    assert (client.request.body, client.request.frames) == ("", []), "no other worker will get it"
                assert link.held[id_] == (client.paused and "flow" in link.features)
        self._check_sums()

    def _check_sums(self) -> None:
        pool, workers = self.pool, [link.worker for link in self.links]
        deadlines = {request.timer for request in pool.queue}
        deadlines |= {request.timer for worker in workers for request in worker.in_flight.values()}
        deadlines |= {timer for worker in workers for timer in worker.cancelled.values()}
        drains = {worker.drain for worker in workers}
        assert deadlines <= self.loop.live() <= deadlines | drains
        assert len(pool.queue) <= QUEUE_LEN + pool.totals["requeues"]
        outcomes = [client.outcome for client in self.clients.values() if client.outcome is not None]
        failed = sum(outcome[0] == "fail" for outcome in outcomes)
        assert (pool.totals["requests"], pool.totals["failed"]) == (len(self.clients), failed)
        assert pool.totals["completed"] == len(outcomes) - failed
        assert pool.totals["client_disconnects"] == sum(client.left for client in self.clients.values())
        assert len(pool.in_flight) == sum(len(link.open) for link in self.links)


@pytest.fixture
def relay():
    relay = Relay()
    yield relay
    relay.check()


# The table.


@pytest.mark.parametrize("event", Event)
@pytest.mark.parametrize("state", State)
def test_a_request_moves_by_the_table_only(relay: Relay, state: State, event: Event) -> None:
    request = Client(relay, "a", False, None).request
    request.state = state
    if (state, event) in TRANSITIONS:
        request.move(event)
        assert request.state is TRANSITIONS[state, event]
        return
    with pytest.raises(TransitionError, match=rf"request r-\d+: '{event.value}' in state '{state.value}'"):
        request.move(event)
    assert request.state is state


def test_who_is_done_failed_or_gone_stays_so() -> None:
    assert {state for state, _ in TRANSITIONS}.isdisjoint({State.DONE, State.FAILED, State.LEFT})
    assert set(TRANSITIONS.values()) == set(State) - {State.NEW}


# Who gets what.


def test_a_request_goes_to_the_worker_with_the_lowest_load(relay: Relay) -> None:
    busy, idle = relay.connect("a", places=9, load=2), relay.connect("a", places=9)
    assert [relay.holders(relay.ask()) for _ in range(3)] == [[idle], [idle], [busy]]


def test_a_reported_load_counts_our_requests_in(relay: Relay) -> None:
    one, other = relay.connect("a", places=9), relay.connect("a", places=9)
    assert relay.holders(relay.ask()) == [one]
    one.report(1)
    assert (one.worker.load, one.worker.others) == (1, 0)
    one.report(0)
    assert one.worker.load == 1, "what it has is no opinion"
    other.report(2)
    assert relay.holders(relay.ask()) == [one]
    other.update("a", load=0)
    assert relay.holders(relay.ask()) == [other]


def test_equal_workers_take_turns(relay: Relay) -> None:
    links = [relay.connect("a", places=2) for _ in range(3)]
    clients = [relay.ask() for _ in range(3)]
    for client in clients:
        client_link = relay.holders(client)[0]
        client_link.complete(client.request.id)
    more = [relay.ask() for _ in range(3)]
    assert [relay.holders(client) for client in clients + more] == [[], [], [], *([link] for link in links)]


def test_a_full_worker_gets_no_more(relay: Relay) -> None:
    link = relay.connect("a", places=2)
    clients = [relay.ask() for _ in range(3)]
    assert list(link.open.values()) == clients[:2]
    assert list(relay.pool.queue) == [clients[2].request]


def test_a_worker_that_reads_too_slowly_gets_no_more_until_it_has_read(relay: Relay) -> None:
    slow = relay.connect("a", places=3)
    slow.read(all_of_it=False)
    relay.ask()
    other = relay.connect("a")
    relay.ask()
    assert (len(slow.open), len(other.open), len(relay.pool.queue)) == (0, 1, 1)
    slow.read(all_of_it=True)
    assert (len(slow.open), len(other.open), len(relay.pool.queue)) == (1, 1, 0)


def test_a_websocket_without_a_model_is_for_workers_that_have_any(relay: Relay) -> None:
    leaving = relay.connect("a", features=BOTH)
    leaving.update()
    client = relay.ask("", websocket=True)
    assert list(relay.pool.queue) == [client.request]
    other = relay.connect("b", features=BOTH)
    assert relay.holders(client) == [other]


def test_one_models_wait_is_nobody_elses(relay: Relay) -> None:
    a, b = relay.connect("a"), relay.connect("b", places=2)
    first, waits, other = relay.ask("a"), relay.ask("a"), relay.ask("b")
    assert relay.holders(other) == [b]
    later = [relay.ask("b"), relay.ask("b")]
    b.complete(other.request.id)
    assert [relay.holders(client) for client in [waits, *later]] == [[], [b], [b]]
    a.complete(first.request.id)
    assert relay.holders(waits) == [a]


def test_any_model_is_served_by_a_star(relay: Relay) -> None:
    link = relay.connect("*")
    assert relay.holders(relay.ask("whatever")) == [link]
    assert relay.pool.workers.models() == []


def test_models_are_those_of_connected_workers_once_each(relay: Relay) -> None:
    gone = relay.connect("z")
    relay.connect("b", "a")
    relay.connect("a", "*", "c")
    gone.drop()
    assert relay.pool.workers.models() == ["b", "a", "c"]


def by_registration(relay: Relay, busy: Link) -> None:
    relay.connect("a")


def by_update(relay: Relay, busy: Link) -> None:
    relay.links[1].update("b", "a")


def by_completion(relay: Relay, busy: Link) -> None:
    busy.complete(next(iter(busy.open)))


def by_error(relay: Relay, busy: Link) -> None:
    busy.error(next(iter(busy.open)))


@pytest.mark.parametrize("freed", [by_registration, by_update, by_completion, by_error])
def test_a_place_goes_to_who_waited_longest(relay: Relay, freed: Callable[[Relay, Link], None]) -> None:
    busy = relay.connect("a")
    relay.connect("b")
    clients = [relay.ask() for _ in range(3)]
    relay.links[0].report(0)
    assert relay.holders(clients[1]) == [], "a pong makes no place"
    freed(relay, busy)
    assert len(relay.holders(clients[1])) == 1
    assert list(relay.pool.queue) == [clients[2].request]


def test_a_new_worker_takes_as_many_as_it_has_places_for(relay: Relay) -> None:
    relay.connect("a").drop()
    clients = [relay.ask() for _ in range(4)]
    link = relay.connect("a", places=3)
    assert list(link.open.values()) == clients[:3]


def test_models_taken_away_are_given_no_more_but_finished(relay: Relay) -> None:
    link = relay.connect("a", places=2)
    running = relay.ask()
    link.update("b")
    assert relay.holders(relay.ask("a")) == []
    link.complete(running.request.id)
    assert running.outcome == ("respond", 200, {"x-by": "box"}, "answer")


# Conversations.


def test_a_conversation_goes_back_to_its_worker(relay: Relay) -> None:
    links = [relay.connect("a", places=4) for _ in range(4)]
    homes = {}
    for _ in range(3):
        for beginning in range(0, 1 << 64, 1 << 60):
            client = relay.ask(beginning=beginning)
            (link,) = relay.holders(client)
            assert homes.setdefault(beginning, link) is link
            link.complete(client.request.id)
    assert set(homes.values()) == set(links)


def test_a_conversation_does_not_wait_for_its_worker_while_another_is_free(relay: Relay) -> None:
    links = [relay.connect("a") for _ in range(3)]
    clients = [relay.ask(beginning=7) for _ in range(4)]
    assert {link for client in clients[:3] for link in relay.holders(client)} == set(links)
    home = relay.holders(clients[0])[0]
    home.complete(clients[0].request.id)
    assert relay.holders(clients[3]) == [home]


def test_a_place_goes_first_to_who_waits_for_that_worker(relay: Relay) -> None:
    links = [relay.connect("a", places=2) for _ in range(2)]
    points: dict[Link, int] = {}
    for point in range(0, 1 << 64, 1 << 60):
        (link,) = relay.holders(client := relay.ask(beginning=point))
        link.complete(client.request.id)
        points[link] = point
    for _ in range(4):
        relay.ask()
    one, other = (points[link] for link in links)
    asked = [relay.ask(beginning=point) for point in (one, other, one)] + [relay.ask()]

    def next_of(link: Link) -> Client:
        link.complete(next(iter(link.open)))
        return list(link.open.values())[-1]

    assert next_of(links[1]) is asked[1]
    assert next_of(links[1]) is asked[0], "no place stays free for a conversation's own worker"
    assert next_of(links[0]) is asked[2]
    assert next_of(links[0]) is asked[3]


def test_nobody_is_passed_by_more_than_there_are_places(relay: Relay) -> None:
    link = relay.connect("a", places=2)
    for _ in range(2):
        relay.ask()
    asked = [relay.ask(), *(relay.ask(beginning=7) for _ in range(3))]
    for expected in (asked[1], asked[2], asked[0], asked[3]):
        link.complete(next(iter(link.open)))
        assert list(link.open.values())[-1] is expected


def test_a_conversation_leaves_a_worker_that_is_busier_than_the_others(relay: Relay) -> None:
    links = [relay.connect("a", places=99) for _ in range(4)]
    clients = [relay.ask(beginning=7) for _ in range(40)]
    home = relay.holders(clients[0])[0]
    loads = sorted(link.load for link in links)
    assert home.load == max(loads) <= math.ceil(SLACK * 40 / 4)
    assert loads[0] > 0


def test_a_conversation_finds_its_worker_again_after_a_restart(relay: Relay) -> None:
    links = [relay.connect("a", places=9) for _ in range(3)]
    client = relay.ask(beginning=7)
    (home,) = relay.holders(client)
    home.complete(client.request.id)
    home.drop()
    other = relay.ask(beginning=7)
    assert relay.holders(other) != [home]
    relay.holders(other)[0].complete(other.request.id)
    back = relay.connect("a", places=9)
    assert (back.worker.place, len({link.worker.place for link in links})) == (home.worker.place, 3)
    assert relay.holders(relay.ask(beginning=7)) == [back]


# Who is refused.


def test_a_model_that_nobody_ever_had_is_not_found(relay: Relay) -> None:
    assert relay.ask("a").outcome == ("fail", 404, "no provider for model a")
    assert relay.ask("", websocket=True).outcome == ("fail", 404, "no provider")
    relay.connect("b")
    assert relay.ask("a").outcome == ("fail", 404, "no provider for model a")
    assert relay.ask("b").outcome is None


@pytest.mark.parametrize("offered", ["a", "*"])
def test_a_model_that_somebody_had_is_waited_for(relay: Relay, offered: str) -> None:
    relay.connect(offered).drop()
    client = relay.ask("a")
    assert list(relay.pool.queue) == [client.request]


@pytest.mark.parametrize("offered", ["a", "*"])
def test_a_connected_workers_model_is_found_however_many_were_known(
    relay: Relay, offered: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_module, "MAX_MODELS_KNOWN", 2)
    relay.connect("old").drop()
    relay.connect(offered)
    running = relay.ask("a")
    relay.connect("b", "c")
    assert relay.ask("a").outcome is None
    assert relay.holders(running) != []
    relay.links[0].drop()
    assert relay.ask("old").outcome == ("fail", 404, "no provider for model old"), "only so many are remembered"


def test_a_full_queue_refuses_all_but_those_it_can_serve_or_has_had(relay: Relay) -> None:
    link = relay.connect("a")
    relay.connect("b")
    clients = [relay.ask("a") for _ in range(QUEUE_LEN + 1)]
    assert relay.ask("a").outcome == ("fail", 429, "queue full")
    assert relay.ask("c").outcome == ("fail", 404, "no provider for model c")
    assert relay.ask("b").outcome is None
    link.drop()
    assert list(relay.pool.queue) == [client.request for client in clients], "a requeue is no arrival"


# How a request ends.


def test_a_whole_reply_is_passed_on(relay: Relay) -> None:
    link, client = relay.connect("a"), relay.ask()
    link.complete(client.request.id, 418, "tea")
    assert client.heard == [("respond", 418, {"x-by": "box"}, "tea")]
    other = relay.ask()
    link.complete(other.request.id, 204, None)
    assert other.heard == [("respond", 204, {"x-by": "box"}, "")]
    assert relay.pool.totals["completed"] == 2


@pytest.mark.parametrize(
    ("head", "begun"),
    [((200, None), (200, EVENT_STREAM)), ((201, {"content-type": "text/x"}), (201, {"content-type": "text/x"}))],
)
def test_a_stream_is_passed_on_in_its_parts(relay: Relay, head: tuple, begun: tuple) -> None:
    link, client = relay.connect("a"), relay.ask()
    link.chunk(client.request.id, "one", *head)
    link.chunk(client.request.id, "two", 500, {"x": "y"})
    link.complete(client.request.id)
    assert client.heard == [("begin", *begun), ("write", "one"), ("write", "two"), ("end",)]


@pytest.mark.parametrize("chunks", [['{"e":1}'], ["", "{", '"e":', "1}"]])
def test_an_error_that_comes_like_a_stream_is_an_error_yet(relay: Relay, chunks: list[str]) -> None:
    link, client = relay.connect("a"), relay.ask()
    for chunk in chunks:
        link.chunk(client.request.id, chunk, None)
    assert client.heard == []
    link.complete(client.request.id, 400, "")
    assert client.heard == [("respond", 400, {"x-by": "box"}, '{"e":1}')]


@pytest.mark.parametrize(
    "chunks", [["data:1\n"], ["\n", ":x\n"], ["", "i", "d:1\n"], ["\ufeff", "event", ":x\n"], ["retry:1\n"]]
)
def test_what_begins_like_events_is_a_stream_once_that_shows(relay: Relay, chunks: list[str]) -> None:
    link, client = relay.connect("a"), relay.ask()
    for chunk in chunks:
        assert client.heard == []
        link.chunk(client.request.id, chunk, None)
    assert client.heard[0] == ("begin", 200, EVENT_STREAM)
    assert client.got == "".join(chunks)
    link.chunk(client.request.id, "{", None)
    assert client.heard[-1] == ("write", "{")


def test_what_is_longer_than_an_error_is_a_stream(relay: Relay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replies_module, "MAX_HELD", 4)
    link, client = relay.connect("a"), relay.ask()
    link.chunk(client.request.id, "1234", None)
    assert client.heard == []
    link.chunk(client.request.id, "5", None)
    assert client.heard == [("begin", 200, EVENT_STREAM), ("write", "1234"), ("write", "5")]


def test_who_has_seen_nothing_of_its_output_gets_another_worker(relay: Relay) -> None:
    link, client = relay.connect("a"), relay.ask()
    other = relay.connect("a")
    link.chunk(client.request.id, "x" * RESPONSE_BYTES, None)
    link.drop()
    assert relay.holders(client) == [other]
    other.chunk(client.request.id, "y" * (RESPONSE_BYTES - 1), None)
    other.complete(client.request.id, body="y")
    assert client.heard == [("respond", 200, {"x-by": "box"}, "y" * RESPONSE_BYTES)]


def test_a_stream_that_its_worker_calls_a_failure_is_one(relay: Relay) -> None:
    link, client = relay.connect("a"), relay.ask()
    link.chunk(client.request.id, "one")
    link.complete(client.request.id, 400)
    assert client.outcome == ("fail", 502, "the worker failed after it had begun to answer")


@pytest.mark.parametrize("chunks", [[], ["one"]])
def test_a_workers_error_fails_its_request(relay: Relay, chunks: list[str]) -> None:
    link, client = relay.connect("a"), relay.ask()
    for chunk in chunks:
        link.chunk(client.request.id, chunk)
    link.error(None)
    assert client.outcome is None, "an error of the link is nobody's"
    link.error(client.request.id, "out of memory")
    assert client.outcome == ("fail", 502, "out of memory")


def test_who_waits_too_long_is_told_and_no_worker_is(relay: Relay) -> None:
    link = relay.connect("a")
    running, client = relay.ask(), relay.ask()
    relay.loop.advance(QUEUE_S - 0.5)
    assert client.outcome is None
    relay.loop.advance(0.5)
    assert client.outcome == ("fail", 504, "queue timeout: no worker available within deadline")
    assert [type(message) for message in link.sent] == [Request]
    assert (relay.holders(running), relay.pool.totals["queue_timeouts"]) == ([link], 1)


@pytest.mark.parametrize("chunks", [[], ["one"]])
def test_who_is_served_too_long_is_told_and_so_is_its_worker(relay: Relay, chunks: list[str]) -> None:
    link, client = relay.connect("a"), relay.ask()
    for chunk in chunks:
        link.chunk(client.request.id, chunk)
    relay.loop.advance(REQUEST_S - 0.5)
    assert client.outcome is None
    relay.loop.advance(0.5)
    assert client.outcome == ("fail", 504, "request timeout")
    assert link.sent[1:] == [Cancel(client.request.id, CancelReason.TIMEOUT)]
    assert relay.pool.totals["request_timeouts"] == 1


def test_a_conversation_may_take_any_time_but_not_be_silent(relay: Relay) -> None:
    link = relay.connect("a", features=["websocket"])
    client = relay.ask("a", websocket=True)
    for turn in range(3):
        relay.loop.advance(SILENCE_S - 0.5)
        if turn % 2:
            link.chunk(client.request.id, "said")
        else:
            relay.pool.frame(client.request, "said")
    relay.loop.advance(SILENCE_S - 0.5)
    assert client.outcome is None
    relay.loop.advance(0.5)
    assert client.outcome == ("fail", 504, f"conversation: nothing was said for {SILENCE_S:g} s")
    assert link.sent[-1] == Cancel(client.request.id, CancelReason.TIMEOUT)


def test_a_reply_in_parts_may_not_grow_for_ever(relay: Relay) -> None:
    link, client = relay.connect("a"), relay.ask()
    link.chunk(client.request.id, "x" * RESPONSE_BYTES)
    assert client.outcome is None
    link.chunk(client.request.id, "x")
    assert client.outcome == ("fail", 502, f"response: larger than {RESPONSE_BYTES} bytes")
    assert client.got == "x" * RESPONSE_BYTES
    assert isinstance(link.sent[-1], Cancel)
    waits = relay.ask()
    assert relay.holders(waits) == []
    link.complete(client.request.id)
    assert relay.holders(waits) == [link]


def test_a_whole_reply_may_not_be_larger_either(relay: Relay) -> None:
    link, client, waits = relay.connect("a"), relay.ask(), relay.ask()
    link.complete(client.request.id, body="x" * (RESPONSE_BYTES + 1))
    assert client.heard == [("fail", 502, f"response: larger than {RESPONSE_BYTES} bytes")]
    link.complete(waits.request.id, body="x" * RESPONSE_BYTES)
    assert waits.outcome == ("respond", 200, {"x-by": "box"}, "x" * RESPONSE_BYTES)


# Lost workers.


def test_who_has_had_comments_only_gets_another_worker(relay: Relay) -> None:
    link, client = relay.connect("a"), relay.ask()
    other = relay.connect("a")
    for _ in range(2):
        link.chunk(client.request.id, COMMENT)
    link.drop()
    assert relay.holders(client) == [other]
    other.chunk(client.request.id, COMMENT, None)
    other.chunk(client.request.id, "data: 1", None)
    other.complete(client.request.id)
    assert [told[0] for told in client.heard] == ["begin", *["write"] * 4, "end"]
    assert client.got == COMMENT * 3 + "data: 1"


@pytest.mark.parametrize(("status", "body"), [(400, '{"error": 1}'), (200, "{}")])
def test_after_comments_a_whole_reply_can_only_be_a_late_error(relay: Relay, status: int, body: str) -> None:
    link, client = relay.connect("a"), relay.ask()
    other = relay.connect("a")
    link.chunk(client.request.id, COMMENT)
    link.drop()
    other.complete(client.request.id, status, body=body)
    assert client.outcome == ("fail", 502, "the worker failed after it had begun to answer")


def test_who_lost_its_worker_is_served_by_another_at_once(relay: Relay) -> None:
    one, client = relay.connect("a"), relay.ask()
    other = relay.connect("a")
    one.drop()
    assert relay.holders(client) == [other]
    assert (client.request.requeues, relay.pool.totals["requeues"]) == (1, 1)


def test_who_lost_its_worker_waits_in_its_old_place(relay: Relay) -> None:
    links = [relay.connect("a", places=2), relay.connect("a")]
    clients = [relay.ask() for _ in range(6)]
    for link in links:
        link.drop()
    assert list(relay.pool.queue) == [client.request for client in clients]


def test_of_those_who_lost_one_worker_the_first_to_come_is_the_first_served(relay: Relay) -> None:
    link = relay.connect("b", places=2)
    relay.connect("a").drop()
    first, second = relay.ask("a"), relay.ask("b")
    link.update("a", "b")
    assert list(link.open.values()) == [second, first]
    relay.connect("a", "b")
    link.drop()
    assert relay.holders(first) != []
    assert list(relay.pool.queue) == [second.request]


def test_who_has_lost_its_worker_too_often_is_given_up(relay: Relay) -> None:
    link = relay.connect("a")
    client = relay.ask()
    for _ in range(MAX_REQUEUES):
        link.drop()
        assert client.outcome is None
        link = relay.connect("a")
        assert relay.holders(client) == [link]
    link.drop()
    assert client.outcome == ("fail", 503, "requeue attempts exhausted")


def test_who_has_had_output_gets_no_second_worker(relay: Relay) -> None:
    link, client = relay.connect("a"), relay.ask()
    relay.connect("a")
    link.chunk(client.request.id, "")
    link.drop()
    assert client.outcome == ("fail", 502, "the worker disconnected after it had begun to answer")


def test_time_in_the_queue_is_counted_over_requeues_and_time_with_a_worker_is_not(relay: Relay) -> None:
    link = relay.connect("a")
    link.drop()
    client = relay.ask()
    relay.loop.advance(QUEUE_S - 1)
    link = relay.connect("a")
    relay.loop.advance(REQUEST_S - 1)
    link.drop()
    relay.loop.advance(0.5)
    assert client.outcome is None
    link = relay.connect("a")
    relay.loop.advance(REQUEST_S - 1)
    assert client.outcome is None, "each worker has the whole time"
    link.drop()
    relay.loop.advance(0.5)
    assert client.outcome == ("fail", 504, "queue timeout: no worker available within deadline")


def test_who_has_waited_once_has_the_rest_of_its_time_when_its_next_worker_is_lost(relay: Relay) -> None:
    link = relay.connect("a")
    client = relay.ask()
    relay.loop.advance(REQUEST_S - 1)
    link.drop()
    relay.loop.advance(QUEUE_S / 2)
    relay.connect("a").drop()
    assert client.request.waited_s == QUEUE_S / 2
    relay.loop.advance(QUEUE_S / 2 - 0.5)
    assert client.outcome is None
    relay.loop.advance(0.5)
    assert client.outcome == ("fail", 504, "queue timeout: no worker available within deadline")


# Cancelled requests.


def by_answer(relay: Relay, link: Link, id_: str) -> None:
    link.complete(id_)


def by_failure(relay: Relay, link: Link, id_: str) -> None:
    link.error(id_)


def by_grace(relay: Relay, link: Link, id_: str) -> None:
    relay.loop.advance(CANCEL_GRACE_S - 0.5)
    relay.check()
    assert link.occupied == 1
    relay.loop.advance(0.5)


@pytest.mark.parametrize("freed", [by_answer, by_failure, by_grace])
def test_the_place_of_a_client_that_left_is_kept_until_its_worker_is_done(
    relay: Relay, freed: Callable[[Relay, Link, str], None]
) -> None:
    link, client, waits = relay.connect("a"), relay.ask(), relay.ask()
    client.leave()
    assert link.sent[1:] == [Cancel(client.request.id, CancelReason.CLIENT_DISCONNECT)]
    link.chunk(client.request.id, "late")
    assert (relay.holders(waits), relay.pool.totals["late_messages"]) == ([], 1)
    freed(relay, link, client.request.id)
    assert relay.holders(waits) == [link]
    link.complete(client.request.id)
    link.error(client.request.id)
    assert relay.pool.totals["late_messages"] == 3
    assert relay.holders(waits) == [link]


def test_who_leaves_the_queue_is_gone_from_it(relay: Relay) -> None:
    link = relay.connect("a")
    relay.ask()
    client = relay.ask()
    client.leave()
    assert list(relay.pool.queue) == []
    assert len(link.sent) == 1


def test_what_a_worker_says_of_anothers_request_is_dropped(relay: Relay) -> None:
    one = relay.connect("a")
    client = relay.ask()
    liar = relay.connect("b")
    liar.chunk(client.request.id, "lie")
    liar.complete(client.request.id)
    liar.error(client.request.id)
    liar.error("r-none")
    assert client.heard == []
    assert (relay.holders(client), relay.pool.totals["late_messages"]) == ([one], 4)


def test_a_lost_workers_cancelled_requests_are_forgotten(relay: Relay) -> None:
    link, client = relay.connect("a"), relay.ask()
    client.leave()
    link.drop()
    assert relay.loop.live() == set()


# Drains and the end.


@pytest.mark.parametrize("lingers", [False, True])
def test_an_idle_worker_that_drains_is_closed_at_once(relay: Relay, lingers: bool) -> None:
    link = relay.connect("a", lingers=lingers)
    relay.pool.drain(link.worker, "maintenance", 29.6)
    assert link.sent == [GracefulShutdown("maintenance", 30)]
    assert (link.closed, link.gone) == ((1000, COMPLETE), not lingers)
    assert relay.holders(relay.ask()) == []


def test_a_worker_that_drains_finishes_and_gets_no_more(relay: Relay) -> None:
    link = relay.connect("a", places=3)
    one, other = relay.ask(), relay.ask()
    relay.pool.drain(link.worker, "maintenance", 30)
    relay.pool.drain(link.worker, "again", 1)
    waits = relay.ask()
    link.complete(one.request.id)
    assert (link.closed, relay.holders(waits)) == (None, [])
    link.error(other.request.id)
    assert link.closed == (1000, COMPLETE)
    assert relay.loop.live() == {waits.request.timer}


def test_a_worker_that_drains_too_long_loses_its_requests(relay: Relay) -> None:
    link, client = relay.connect("a", places=2), relay.ask()
    begun = relay.ask()
    link.chunk(begun.request.id, "one")
    relay.pool.drain(link.worker, "maintenance", 5)
    other = relay.connect("a")
    relay.loop.advance(4.5)
    assert link.closed is None
    relay.loop.advance(0.5)
    assert link.closed == (1000, TIMED_OUT)
    assert relay.holders(client) == [other]
    assert begun.outcome == ("fail", 502, "the worker disconnected after it had begun to answer")


def test_a_drain_ends_with_the_answer_to_a_cancel_or_its_grace(relay: Relay) -> None:
    answers, silent = relay.connect("a"), relay.connect("a")
    clients = [relay.ask(), relay.ask()]
    for link, client in zip([answers, silent], clients, strict=True):
        relay.pool.drain(link.worker, "maintenance", 30)
        client.leave()
        assert link.closed is None
    answers.complete(clients[0].request.id)
    relay.loop.advance(CANCEL_GRACE_S)
    assert (answers.closed, silent.closed) == ((1000, COMPLETE), (1000, COMPLETE))


def test_a_shut_down_fails_who_waits_and_lets_the_others_finish(relay: Relay) -> None:
    link, idle = relay.connect("a", places=2), relay.connect("b")
    clients = [relay.ask() for _ in range(4)]
    relay.pool.shut_down("stopping", 5)
    assert [client.outcome for client in clients] == [None, None, SHUTTING_DOWN, SHUTTING_DOWN]
    assert relay.ask().outcome == SHUTTING_DOWN
    assert (link.closed, idle.closed) == (None, (1000, COMPLETE))
    link.complete(clients[0].request.id)
    link.drop()
    assert clients[1].outcome == SHUTTING_DOWN, "it can't wait for another"
    assert relay.loop.live() == set()


def test_the_end_cancels_what_still_runs(relay: Relay) -> None:
    link, client, idle = relay.connect("a", "b"), relay.ask("a"), relay.connect("a", lingers=True)
    relay.pool.shut_down("stopping", 5)
    relay.pool.end_all()
    assert client.outcome == SHUTTING_DOWN
    assert link.sent[-1] == Cancel(client.request.id, CancelReason.SERVER_SHUTDOWN)
    assert (link.closed, idle.closed) == ((1000, TIMED_OUT), (1000, COMPLETE))


def test_a_refresh_asks_for_the_models(relay: Relay) -> None:
    link = relay.connect("a")
    relay.pool.refresh(link.worker, "periodic")
    assert link.sent == [ModelsRefresh("periodic")]


# WebSockets, and slow readers.


def test_a_websocket_goes_to_workers_that_know_them_only(relay: Relay) -> None:
    relay.connect("a")
    link = relay.connect("a", places=2, features=("websocket",))
    client = relay.ask("a", websocket=True)
    assert relay.holders(client) == [link]
    assert relay.holders(relay.ask("", websocket=True)) == [link], "no model named: any"


@pytest.mark.parametrize("model", ["a", ""])
def test_a_websocket_waits_for_no_worker_that_carries_none(relay: Relay, model: str) -> None:
    relay.connect("a")
    relay.connect("b", features=BOTH).drop()
    assert relay.ask(model, websocket=True).outcome == ("fail", 503, pool_module.LACKING["websocket"])
    waits = relay.ask("b", websocket=True)
    assert list(relay.pool.queue) == [waits.request], "its worker may come back"
    link = relay.connect("a", "b", features=BOTH)
    relay.ask(model, websocket=True)
    assert len(relay.pool.queue) == 1, "its worker is busy"
    assert relay.holders(waits) == [link]


def test_what_is_no_text_goes_to_workers_that_send_bytes(relay: Relay) -> None:
    relay.connect("a")
    client = Client(relay, "a", False, None)
    client.request.needs = "bytes"
    relay.clients[client.request.id] = client
    relay.pool.submit(client.request)
    assert client.outcome == ("fail", 503, pool_module.LACKING["bytes"])
    link = relay.connect("a", features=("bytes",))
    clients = [Client(relay, "a", False, None) for _ in range(2)]
    for client, body in zip(clients, (b"\0\xff", None), strict=True):
        client.request.needs = "bytes"
        relay.clients[client.request.id] = client
        relay.pool.submit(client.request)
        assert relay.holders(client) == [link]
        if body is None:
            for part in (b"\xff", b"\0"):
                link.chunk(client.request.id, part, None, None)
        link.complete(client.request.id, body=body)
    assert clients[0].heard == [("respond", 200, {"x-by": "box"}, b"\0\xff")]
    assert clients[1].heard == [("begin", 200, EVENT_STREAM), ("write", b"\xff"), ("write", b"\0"), ("end",)]


def test_a_websockets_messages_follow_it_to_its_next_worker(relay: Relay) -> None:
    link = relay.connect("a", features=("websocket",))
    client = relay.ask("a", websocket=True)
    client.say("two")
    link.drop()
    client.say("three")
    link = relay.connect("a", features=("websocket",))
    client.say("four")
    assert link.bodies[client.request.id] == [client.body, "two", "three", "four"]
    link.chunk(client.request.id, "answer")
    client.say("five")
    assert link.bodies[client.request.id][-1] == "five"
    assert (client.request.body, client.request.frames) == ("", []), "no other worker will get it"


def test_a_worker_that_understands_is_told_of_a_slow_reader_once(relay: Relay) -> None:
    link, client = relay.connect("a", features=("flow",)), relay.ask()
    for paused in (True, True, False, False):
        client.pause(paused)
    assert link.sent[1:] == [Flow(client.request.id, True), Flow(client.request.id, False)]


def test_a_worker_that_does_not_understand_is_not_told(relay: Relay) -> None:
    link, client = relay.connect("a", features=("websocket",)), relay.ask()
    client.pause(True)
    assert len(link.sent) == 1


def test_a_slow_readers_next_worker_is_told_with_the_request(relay: Relay) -> None:
    relay.connect("a").drop()
    client = relay.ask()
    client.pause(True)
    for _ in range(2):
        link = relay.connect("a", features=("flow",))
        assert [type(message) for message in link.sent] == [Request, Flow]
        link.drop()
    client.pause(False)
    assert [type(message) for message in relay.connect("a", features=("flow",)).sent] == [Request]


# Clients that ask again when they are told.


@pytest.mark.parametrize("answer", [Link.complete, Link.error])
def test_who_asks_again_at_once_overtakes_nobody(relay: Relay, answer: Callable[[Link, str], None]) -> None:
    link, client, waits = relay.connect("a"), relay.ask(then=relay.ask), relay.ask()
    answer(link, client.request.id)
    assert relay.holders(waits) == [link]
    assert len(relay.pool.queue) == 1


def test_who_asks_again_when_its_worker_is_lost_overtakes_nobody(relay: Relay) -> None:
    link = relay.connect("a", places=3)
    begun, other, third = relay.ask(then=relay.ask), relay.ask(), relay.ask()
    link.chunk(begun.request.id, "one")
    spare = relay.connect("a", places=2)
    link.drop()
    assert list(spare.open.values()) == [other, third]
    assert len(relay.pool.queue) == 1


def test_who_is_refused_and_asks_again_is_refused_again(relay: Relay) -> None:
    relay.connect("a")
    clients = [relay.ask(then=relay.ask) for _ in range(QUEUE_LEN + 2)]
    assert clients[-1].outcome == ("fail", 429, "queue full")
    relay.pool.shut_down("stopping", 5)
    assert [client.outcome for client in relay.clients.values()].count(SHUTTING_DOWN) == 2 * QUEUE_LEN


# All of it in any order.

INDEX = st.integers(0, 7)
MODELS = st.lists(st.sampled_from(["a", "a", "b", "c", "*"]), max_size=2, unique=True).map(tuple)
WHOSE = st.sampled_from(["own", "own", "own", "own", "cancelled", "anybody's", "nobody's"])
LOAD = st.integers(0, 5)


class AnyOrder(RuleBasedStateMachine):
    """Each rule foresees what its own client is told; ``Relay.check`` holds after all of them."""

    @initialize(models=MODELS, places=st.integers(1, 3), requests=st.integers(0, 4), ends=st.booleans())
    def begin(self, models: tuple[str, ...], places: int, requests: int, ends: bool) -> None:
        self.relay = Relay()
        self.relay.connect("a", *models, places=places, features=BOTH)
        for number in range(requests):
            self.relay.ask("a", websocket=number % 2 > 0)
        self.ends = ends

    @property
    def clients(self) -> list[Client]:
        return [client for client in self.relay.clients.values() if not client.over]

    def link(self, index: int, whose: str = "own") -> Link:
        """One that has something to lose or to say, mostly."""
        busy = [link for link in self.relay.links if link.open] if whose == "own" else []
        links = busy or self.relay.links
        return links[index % len(links)]

    def id(self, link: Link, whose: str, index: int) -> str:
        found = {"own": link.open, "cancelled": link.cancelled, "anybody's": self.relay.clients}.get(whose)
        return list(found)[index % len(found)] if found else "r-none"

    def heard(self) -> int:
        return sum(len(client.heard) for client in self.relay.clients.values())

    # -- clients -------------------------------------------------------------------------------------------------

    @rule(
        model=st.sampled_from(["a", "a", "a", "b", "c", "d", ""]),
        websocket=st.booleans(),
        again=st.booleans(),
        count=st.integers(1, 3),
        beginning=st.none() | st.sampled_from([0, 1 << 62, (1 << 64) - 1]),
    )
    def ask(self, model: str, websocket: bool, again: bool, count: int, beginning: int | None) -> None:
        for _ in range(count):
            self.ask_one(model, websocket or not model, again, beginning)

    def ask_one(self, model: str, websocket: bool, again: bool, beginning: int | None) -> None:
        relay = self.relay
        closing, full = relay.pool.closing, len(relay.pool.queue) >= QUEUE_LEN
        provided = bool(relay.known & {model, "*"} if model else relay.known)
        wanted = Client(relay, model, websocket, None)
        offering = [link for link in relay.links if (link.models if not model else {model, "*"} & set(link.models))]
        fit = {
            link: (link.load >= link.places, link.load, link.turn)
            for link in relay.links
            if link.free and link.serves(wanted)
        }
        loads = [link.load for link in relay.links if link.serves(wanted) and not link.leaving]
        most = math.ceil(SLACK * (sum(loads) + 1) / len(loads)) if loads else 0
        within = {link for link in fit if link.load < min(most, link.places)} if beginning is not None else set()
        then = (lambda: relay.ask("a")) if again else None
        client = relay.ask(model, websocket=websocket, then=then, beginning=beginning)
        if closing:
            assert client.outcome == SHUTTING_DOWN
        elif fit:
            (link,) = relay.holders(client)
            assert link in within if within else fit[link] == min(fit.values())
        elif provided and websocket and offering and not any("websocket" in link.features for link in offering):
            assert client.outcome == ("fail", 503, pool_module.LACKING["websocket"])
        elif not provided:
            assert client.outcome == ("fail", 404, f"no provider for model {model}" if model else "no provider")
        elif full:
            assert client.outcome == ("fail", 429, "queue full")
        else:
            assert list(relay.pool.queue)[-1] is client.request

    @precondition(lambda self: self.clients)
    @rule(index=INDEX)
    def leave(self, index: int) -> None:
        client = self.clients[index % len(self.clients)]
        links = self.relay.holders(client)
        client.leave()
        for link in links:
            assert link.sent[-1] == Cancel(client.request.id, CancelReason.CLIENT_DISCONNECT)

    @precondition(lambda self: any(client.request.is_websocket for client in self.clients))
    @rule(index=INDEX, text=st.sampled_from(["x", "y"]))
    def say(self, index: int, text: str) -> None:
        sockets = [client for client in self.clients if client.request.is_websocket]
        sockets[index % len(sockets)].say(text)

    @precondition(lambda self: self.clients)
    @rule(index=INDEX, paused=st.booleans())
    def pause(self, index: int, paused: bool) -> None:
        self.clients[index % len(self.clients)].pause(paused)

    # -- workers -------------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.relay.links) < 4 and not self.relay.pool.closing)
    @rule(
        models=MODELS,
        places=st.integers(1, 3),
        features=st.sampled_from([BOTH, ("flow",), ("websocket",), ()]),
        load=LOAD,
        lingers=st.booleans(),
    )
    def connect(
        self, models: tuple[str, ...], places: int, features: tuple[str, ...], load: int, lingers: bool
    ) -> None:
        self.relay.connect(*models, places=places, features=features, load=load, lingers=lingers)

    @precondition(lambda self: self.relay.links)
    @rule(index=INDEX, whose=WHOSE, which=INDEX, size=st.integers(0, 8), status=st.sampled_from([200, None]))
    def chunk(self, index: int, whose: str, which: int, size: int, status: int | None) -> None:
        link = self.link(index, whose)
        id_ = self.id(link, whose, which)
        client, before, late = link.open.get(id_), self.heard(), self.relay.pool.totals["late_messages"]
        got = client.got + ("" if client.begun else link.said[id_]) if client is not None else ""
        holds = client is not None and not (client.begun or client.request.is_websocket or status)
        link.chunk(id_, "x" * size, status)
        if client is None:
            assert (self.heard(), self.relay.pool.totals["late_messages"]) == (before, late + 1)
        elif len(got) + size > RESPONSE_BYTES:
            assert client.outcome == ("fail", 502, f"response: larger than {RESPONSE_BYTES} bytes")
        elif holds:
            link.said[id_] += "x" * size
            assert not client.begun
        else:
            assert client.got == got + "x" * size

    @precondition(lambda self: self.relay.links)
    @rule(
        index=INDEX, whose=WHOSE, which=INDEX, status=st.sampled_from([200, 200, 500]), body=st.sampled_from(["", "x"])
    )
    def complete(self, index: int, whose: str, which: int, status: int, body: str) -> None:
        link = self.link(index, whose)
        id_ = self.id(link, whose, which)
        client, before = link.open.get(id_), self.heard()
        link.complete(id_, status, body)
        if client is None:
            assert self.heard() == before
        elif client.begun:
            assert client.outcome is not None
            assert client.outcome[0] == ("end" if status == 200 else "fail")
        elif len(link.said[id_] + body) > RESPONSE_BYTES:
            assert client.outcome == ("fail", 502, f"response: larger than {RESPONSE_BYTES} bytes")
        else:
            assert client.outcome == ("respond", status, {"x-by": "box"}, link.said[id_] + body)

    @precondition(lambda self: self.relay.links)
    @rule(index=INDEX, whose=WHOSE, which=INDEX)
    def error(self, index: int, whose: str, which: int) -> None:
        link = self.link(index, whose)
        id_ = self.id(link, whose, which)
        client, before = link.open.get(id_), self.heard()
        link.error(id_)
        if client is None:
            assert self.heard() == before
        else:
            assert client.outcome == ("fail", 502, "broken")

    @precondition(lambda self: self.relay.links)
    @rule(index=INDEX, load=LOAD)
    def report(self, index: int, load: int) -> None:
        self.link(index, "any").report(load)

    @precondition(lambda self: self.relay.links)
    @rule(index=INDEX, all_of_it=st.booleans())
    def read(self, index: int, all_of_it: bool) -> None:
        self.link(index).read(all_of_it=all_of_it)

    @precondition(lambda self: self.relay.links)
    @rule(index=INDEX, models=MODELS, load=LOAD)
    def update(self, index: int, models: tuple[str, ...], load: int) -> None:
        self.link(index, "any").update(*models, load=load)

    @precondition(lambda self: self.relay.links)
    @rule(index=INDEX)
    def vanish(self, index: int) -> None:
        link = self.link(index)
        had = list(link.open.values())
        link.drop()
        for client in had:
            assert client.over == (client.begun or client.losses > MAX_REQUEUES or self.relay.pool.closing)

    @precondition(lambda self: self.relay.links and not self.relay.pool.closing)
    @rule(index=INDEX)
    def come_back(self, index: int) -> None:
        link = self.link(index)
        link.drop()
        self.relay.connect(*link.models, places=link.places, features=link.features, lingers=link.lingers)

    # -- operators, and time -------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.relay.links) > 2)
    @rule(index=INDEX, timeout_s=st.sampled_from([0.0, 1.0, 5.0, 60.0]))
    def drain(self, index: int, timeout_s: float) -> None:
        link = self.link(index, "any")
        self.relay.pool.drain(link.worker, "maintenance", timeout_s)
        assert link.leaving

    @rule(seconds=st.sampled_from([0.0, 0.5, 1.0, 2.0, 4.0, 9.0, 15.0]))
    def wait(self, seconds: float) -> None:
        self.relay.loop.advance(seconds)

    @precondition(lambda self: self.ends and self.relay.loop.now() > 1020)
    @rule(timeout_s=st.sampled_from([0.0, 5.0]))
    def shut_down(self, timeout_s: float) -> None:
        self.relay.pool.shut_down("stopping", timeout_s)
        assert list(self.relay.pool.queue) == []

    @precondition(lambda self: self.ends and self.relay.pool.closing)
    @rule()
    def end_all(self) -> None:
        self.relay.pool.end_all()
        assert len(self.relay.pool.in_flight) == 0
        assert all(link.closed is not None for link in self.relay.links)

    # -- what holds ----------------------------------------------------------------------------------------------

    @invariant()
    def holds(self) -> None:
        self.relay.check()

    def teardown(self) -> None:
        if sys.exc_info()[0] is not None:
            return  # What went wrong is told already.
        relay = self.relay
        for index, link in enumerate(list(relay.links)):
            if index % 2 or link.closed is not None:
                link.drop()
        while any(link.open for link in relay.links):
            for link in list(relay.links):
                for id_ in list(link.open):
                    link.complete(id_)
            relay.check()
        # Some had waited for a place that a cancelled request kept, and then for a worker that says nothing.
        for _ in range(20):
            relay.loop.advance(QUEUE_S)
            relay.check()
        for link in list(relay.links):
            assert (link.worker.occupied, link.worker.load) == (0, link.others)
            link.drop()
        relay.check()
        assert all(client.over for client in relay.clients.values())
        assert list(relay.pool.queue) == []
        assert relay.loop.live() == set()


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=examples(300), stateful_step_count=50)
