"""Sessions: every move is in the table or an error, and outputs come in order and never after the client has gone."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from umaserve.engine.text import TextStream
from umaserve.errors import Fault, RequestError
from umaserve.messages import Finished, FinishReason, Generate, Output, Token
from umaserve.serving.sessions import (
    RUNNING,
    TRANSITIONS,
    Event,
    Session,
    SessionManager,
    State,
    TransitionError,
)
from umaserve.serving.ticks import Prepared

REQUEST = Generate("r", "hello")


def failure() -> RequestError:
    return RequestError(Fault.DECODE_FAILED, "decode: failed")


def ignore(_output: Output | RequestError) -> None:
    pass


def opened(manager: SessionManager, sink: Callable[[Output | RequestError], None] = ignore) -> Session:
    return manager.open(sink, "uid:1000")


def running(manager: SessionManager, sink: Callable[[Output | RequestError], None] = ignore) -> Session:
    session = opened(manager, sink)
    manager.request(session, REQUEST, 2.0)
    return session


def deliver(manager: SessionManager) -> list[tuple[Session, Output | RequestError]]:
    return list(manager.deliver())


# The table.

# Written out a second time: a move can't be added without a test saying so.
MOVES = {
    State.RECV_REQ: {"request": State.PREFILL, "finish": State.DONE},
    State.PREFILL: {"prompt done": State.DECODE, "finish": State.DONE, "fail": State.ERRORED},
    State.DECODE: {"hold": State.STREAM, "finish": State.DONE, "fail": State.ERRORED},
    State.STREAM: {"release": State.DECODE, "finish": State.DONE, "fail": State.ERRORED},
    State.DONE: {},
    State.ERRORED: {},
}

METHODS: dict[Event, Callable[[SessionManager, Session], None]] = {
    Event.REQUEST: lambda manager, session: manager.request(session, REQUEST, 2.0),
    Event.PROMPT_DONE: lambda manager, session: manager.prompt_done(session),
    Event.HOLD: lambda manager, session: manager.hold(session),
    Event.RELEASE: lambda manager, session: manager.release(session),
    Event.FINISH: lambda manager, session: manager.finish(session, FinishReason.STOP),
    Event.FAIL: lambda manager, session: manager.fail(session, failure()),
}

FORGIVING = {Event.HOLD, Event.RELEASE}
"""A reader falls behind and catches up whenever it likes, also when no stream is left to be held."""


@pytest.mark.parametrize(("state", "event"), list(itertools.product(State, Event)), ids=lambda value: value.name)
def test_every_event_in_every_state(state: State, event: Event) -> None:
    manager = SessionManager()
    session = opened(manager)
    session.state = state
    expected = MOVES[state].get(event.value)
    assert TRANSITIONS.get((state, event)) is expected
    if expected is not None or event in FORGIVING:
        METHODS[event](manager, session)
        assert session.state is (expected or state)
    else:
        with pytest.raises(TransitionError, match=rf"session \d+: '{event.value}' in state {state.value}"):
            METHODS[event](manager, session)
        assert session.state is state
        assert deliver(manager) == [], "a refused move leaves nothing to be sent"
    # Hold and release pass the table by only where it has no move for them.
    if expected is None:
        with pytest.raises(TransitionError):
            manager._move(session, event)


def test_running_is_what_can_still_fail() -> None:
    assert {state for state in State if "fail" in MOVES[state]} == RUNNING


# Outputs.


def test_outputs_come_in_order_and_the_end_comes_last() -> None:
    manager = SessionManager()
    got: list[Output | RequestError] = []
    session = running(manager, got.append)
    manager.put(session, Token("a", 1))
    manager.put(session, Token("b", 2))
    manager.finish(session, FinishReason.LENGTH)
    assert got == []
    assert manager.undelivered
    told = deliver(manager)
    assert got == [Token("a", 1), Token("b", 2), Finished(FinishReason.LENGTH, session.usage)]
    assert told == [(session, output) for output in got]
    assert not manager.undelivered
    assert deliver(manager) == []


def test_the_end_releases_what_was_held_back() -> None:
    manager = SessionManager()
    got: list[Output | RequestError] = []
    session = running(manager, got.append)
    session.prepared = Prepared([5, 6, 7], 10, TextStream([b"x\n"], ["\n\n"]), None)
    session.generated.append(0)
    text, _ = session.prepared.text.push(0)
    manager.put(session, Token(text, 0))
    manager.cancel(session, "r")
    deliver(manager)
    assert got == [Token("x", 0), Token("\n", 0), Finished(FinishReason.CANCELLED, session.usage)]
    assert (session.usage.prompt_tokens, session.usage.completion_tokens) == (3, 1)


def test_an_error_names_its_request() -> None:
    manager = SessionManager()
    got: list[Output | RequestError] = []
    manager.fail(running(manager, got.append), failure())
    deliver(manager)
    assert [(error.fault, error.request_id) for error in got] == [(Fault.DECODE_FAILED, "r")]


@pytest.mark.parametrize("others_end", [None, "finish", "fail"])
def test_a_sink_may_abandon_itself_and_others(others_end: str | None) -> None:
    manager = SessionManager()
    got: list[str] = []

    def leave(_output: Output | RequestError) -> None:
        got.append("one")
        manager.abandon(one)
        manager.abandon(two)

    one = running(manager, leave)
    two = running(manager, lambda _output: got.append("two"))
    for session in (one, one, two):
        manager.put(session, Token("a", 1))
    if others_end == "finish":
        manager.finish(two, FinishReason.STOP)
    elif others_end == "fail":
        manager.fail(two, failure())
    assert [session for session, _ in deliver(manager)] == [one]
    assert got == ["one"]
    assert not manager.undelivered


def test_a_sink_may_end_its_session() -> None:
    manager = SessionManager()
    got: list[Output | RequestError] = []

    def cancel_at_first(output: Output | RequestError) -> None:
        got.append(output)
        manager.cancel(session, "r")

    session = running(manager, cancel_at_first)
    manager.put(session, Token("a", 1))
    manager.put(session, Token("b", 2))
    deliver(manager)
    assert got == [Token("a", 1), Token("b", 2), Finished(FinishReason.CANCELLED, session.usage)]


def test_the_caller_hears_of_an_output_when_it_was_handed_over() -> None:
    manager = SessionManager()
    got: list[Output | RequestError] = []
    session = running(manager, got.append)
    for number in range(3):
        manager.put(session, Token("a", number))
    for count, (_, output) in enumerate(manager.deliver(), start=1):
        assert len(got) == count
        assert got[-1] is output


# Arrivals, cancelling and draining.


def test_arrivals_are_taken_once_and_only_while_they_stand() -> None:
    manager = SessionManager()
    sessions = [running(manager) for _ in range(4)]
    manager.cancel(sessions[1], "r")
    manager.abandon(sessions[2])
    assert manager.take_arrived() == [sessions[0], sessions[3]]
    assert manager.take_arrived() == []
    assert list(manager.running()) == [sessions[0], sessions[3]]
    assert manager.get(sessions[3].id) is sessions[3]


@pytest.mark.parametrize("request_id", ["other", "", "R"])
def test_a_cancel_for_another_request_is_ignored(request_id: str) -> None:
    manager = SessionManager()
    session = running(manager)
    manager.cancel(session, request_id)
    assert session.state is State.PREFILL


def test_a_cancel_may_cross_the_end() -> None:
    manager = SessionManager()
    session = running(manager)
    manager.finish(session, FinishReason.STOP)
    manager.cancel(session, "r")
    manager.cancel(opened(manager), "r")
    assert [output.reason for _, output in deliver(manager)] == [FinishReason.STOP]


def test_draining_refuses_what_is_new() -> None:
    manager = SessionManager()
    running_one = running(manager)
    new = opened(manager)
    manager.draining = True
    with pytest.raises(RequestError) as refused:
        manager.request(new, REQUEST, 3.0)
    assert (refused.value.fault, refused.value.request_id) == (Fault.SHUTTING_DOWN, "r")
    assert new.state is State.RECV_REQ
    assert manager.take_arrived() == [running_one], "what ran goes on"


def test_totals() -> None:
    manager = SessionManager()
    ids = {opened(manager).id for _ in range(3)}
    assert len(ids) == 3
    assert manager.totals.sessions == 3


# All of it in any order.


class Sessions(RuleBasedStateMachine):
    """The manager against a table of expected states and outputs."""

    sessions = Bundle("sessions")

    def __init__(self) -> None:
        super().__init__()
        self.manager = SessionManager()
        self.numbers = itertools.count()
        self.state: dict[int, State] = {}
        self.waiting: dict[int, list[object]] = {}
        self.expected: dict[int, list[object]] = {}
        self.got: dict[int, list[object]] = {}
        self.arrived: list[Session] = []
        self.requested: list[int] = []

    def move(self, session: Session, event: Event, *outputs: object) -> None:
        """Make the move if the table has it; else see that it is refused."""
        state = MOVES[self.state[session.id]].get(event.value)
        if state is None and event not in FORGIVING:
            with pytest.raises(TransitionError):
                METHODS[event](self.manager, session)
            return
        METHODS[event](self.manager, session)
        self.state[session.id] = state or self.state[session.id]
        self.waiting[session.id] += outputs

    @rule(target=sessions)
    def open(self) -> Session:
        got: list[object] = []
        session = opened(self.manager, lambda output: got.append(_plain(output)))
        self.state[session.id] = State.RECV_REQ
        self.waiting[session.id], self.expected[session.id], self.got[session.id] = [], [], got
        return session

    @rule(session=sessions)
    def request(self, session: Session) -> None:
        if self.state[session.id] is State.RECV_REQ:
            self.arrived.append(session)
            self.requested.append(session.id)
        self.move(session, Event.REQUEST)

    @rule(session=sessions, id_=st.sampled_from(["r", "r", "other"]))
    def cancel(self, session: Session, id_: str) -> None:
        self.manager.cancel(session, id_)
        if id_ == "r" and self.state[session.id] in RUNNING:
            self.state[session.id] = State.DONE
            self.waiting[session.id].append(FinishReason.CANCELLED)

    @rule(session=consumes(sessions))
    def abandon(self, session: Session) -> None:
        self.manager.abandon(session)
        if self.state[session.id] not in (State.DONE, State.ERRORED):
            self.state[session.id] = State.DONE
        self.waiting[session.id].clear()

    @rule(session=sessions)
    def hold(self, session: Session) -> None:
        self.move(session, Event.HOLD)

    @rule(session=sessions)
    def release(self, session: Session) -> None:
        self.move(session, Event.RELEASE)

    @rule(session=sessions)
    def prompt_done(self, session: Session) -> None:
        self.move(session, Event.PROMPT_DONE)

    @rule(session=sessions)
    def finish(self, session: Session) -> None:
        self.move(session, Event.FINISH, FinishReason.STOP)

    @rule(session=sessions)
    def fail(self, session: Session) -> None:
        self.move(session, Event.FAIL, Fault.DECODE_FAILED)

    @rule(session=sessions)
    def put(self, session: Session) -> None:
        if self.state[session.id] in RUNNING:
            number = next(self.numbers)
            self.manager.put(session, Token("x", number))
            self.waiting[session.id].append(number)

    @rule()
    def take_arrived(self) -> None:
        assert self.manager.take_arrived() == [s for s in self.arrived if self.state[s.id] in RUNNING]
        self.arrived = []

    @rule()
    def deliver(self) -> None:
        assert self.manager.undelivered == any(self.waiting.values())
        deliver(self.manager)
        for id_, waiting in self.waiting.items():
            self.expected[id_] += waiting
            waiting.clear()

    @invariant()
    def nothing_else_was_sent(self) -> None:
        assert self.got == self.expected

    @invariant()
    def the_running_are_listed_oldest_first(self) -> None:
        listed = [(session.id, session.state) for session in self.manager.running()]
        assert listed == [(id_, self.state[id_]) for id_ in self.requested if self.state[id_] in RUNNING]


def _plain(output: Output | RequestError) -> object:
    match output:
        case Token():
            return output.token_id
        case Finished():
            return output.reason
        case RequestError():
            return output.fault
    raise AssertionError(output)


TestSessions = Sessions.TestCase
TestSessions.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
