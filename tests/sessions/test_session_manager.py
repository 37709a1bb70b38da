"""Sessions: every move is in the table or an error, and outputs come in order and never after the client has gone."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from examples import examples
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from umaserve.core.commands import Modify, Pause, Resume, Steering
from umaserve.core.errors import Fault, RequestError
from umaserve.core.events import Finished, FinishReason, Output, Steered, Timing, Token
from umaserve.core.requests import Generate, Priority
from umaserve.sessions.answer_text import AnswerText
from umaserve.sessions.caller import Caller
from umaserve.sessions.detokenizer import Detokenizer
from umaserve.sessions.engine_api import Prepared
from umaserve.sessions.manager import MAX_CHANGES, SessionManager
from umaserve.sessions.session import Hold, Session
from umaserve.sessions.states import RUNNING, TRANSITIONS, Event, State, TransitionError

REQUEST = Generate("r", "hello")
ORIGIN = Caller("uds", "uid:1000")
NOW = 5.0


def failure() -> RequestError:
    return RequestError(Fault.DECODE_FAILED, "decode", "failed")


def ignore(_output: Output | RequestError) -> None:
    pass


def manage() -> SessionManager:
    return SessionManager(clock=lambda: NOW)


def prepared() -> Prepared:
    return Prepared([5, 6, 7], 10, None)


def text(stops: tuple[str, ...] = ()) -> AnswerText:
    return AnswerText(Detokenizer([b"x\n"], stops), None)


def end(session: Session, reason: FinishReason) -> Finished:
    """The end at ``NOW`` of a request that was made at 2.0 and never began."""
    return Finished(reason, session.usage, Timing(3.0, 3.0, 3.0))


def running(manager: SessionManager, sink: Callable[[Output | RequestError], None] = ignore) -> Session:
    return manager.start(REQUEST, sink, ORIGIN, 2.0)


def deliver(manager: SessionManager) -> list[tuple[Session, Output | RequestError]]:
    return list(manager.deliver())


# The table.

# Written out a second time: a move can't be added without a test saying so.
MOVES = {
    State.PREFILL: {
        "prompt done": State.DECODE,
        "preempt": State.PREFILL,
        "finish": State.DONE,
        "fail": State.ERRORED,
    },
    State.DECODE: {"hold": State.STREAM, "preempt": State.PREFILL, "finish": State.DONE, "fail": State.ERRORED},
    State.STREAM: {"release": State.DECODE, "preempt": State.PREFILL, "finish": State.DONE, "fail": State.ERRORED},
    State.DONE: {},
    State.ERRORED: {},
}

METHODS: dict[Event, Callable[[SessionManager, Session], None]] = {
    Event.PROMPT_DONE: lambda manager, session: manager.prompt_done(session),
    Event.HOLD: lambda manager, session: manager.hold(session, Hold.READER),
    Event.RELEASE: lambda manager, session: manager.release(session, Hold.READER),
    Event.PREEMPT: lambda manager, session: manager.preempted(session),
    Event.FINISH: lambda manager, session: manager.finish(session, FinishReason.STOP),
    Event.FAIL: lambda manager, session: manager.fail(session, failure()),
}

FORGIVING = {Event.HOLD, Event.RELEASE}
"""A reader falls behind and catches up whenever it likes, also when no stream is left to be held."""


@pytest.mark.parametrize(("state", "event"), list(itertools.product(State, Event)), ids=lambda value: value.name)
def test_every_event_in_every_state(state: State, event: Event) -> None:
    manager = manage()
    session = running(manager)
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
    assert {state for state in State if "fail" in MOVES[state]} == {*RUNNING}


# Outputs.


def test_outputs_come_in_order_and_the_end_comes_last() -> None:
    manager = manage()
    got: list[Output | RequestError] = []
    session = running(manager, got.append)
    manager.put(session, Token("a", 1))
    manager.put(session, Token("b", 2))
    manager.finish(session, FinishReason.LENGTH)
    assert got == []
    assert manager.undelivered
    told = deliver(manager)
    assert got == [Token("a", 1), Token("b", 2), end(session, FinishReason.LENGTH)]
    assert told == [(session, output) for output in got]
    assert not manager.undelivered
    assert deliver(manager) == []


def test_the_end_releases_what_was_held_back() -> None:
    manager = manage()
    got: list[Output | RequestError] = []
    session = running(manager, got.append)
    session.prepared = prepared()
    session.text = text(("\n\n",))
    session.generated.append(0)
    said, _ = session.text.push(0)
    manager.put(session, Token(said.text, 0))
    manager.cancel(session, "r")
    deliver(manager)
    assert got == [Token("x", 0), Token("\n", 0, elapsed_s=3.0, sampled=False), end(session, FinishReason.CANCELLED)]
    assert (session.usage.prompt_tokens, session.usage.completion_tokens) == (3, 1)


def test_an_error_names_its_request() -> None:
    manager = manage()
    got: list[Output | RequestError] = []
    manager.fail(running(manager, got.append), failure())
    deliver(manager)
    assert [(error.fault, error.request_id) for error in got] == [(Fault.DECODE_FAILED, "r")]


@pytest.mark.parametrize("others_end", [None, "finish", "fail"])
def test_a_sink_may_abandon_itself_and_others(others_end: str | None) -> None:
    manager = manage()
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


@pytest.mark.parametrize("ended", [False, True])
def test_a_sink_that_raises_costs_its_own_session(ended: bool, caplog: pytest.LogCaptureFixture) -> None:
    ends: list[tuple[Session, str]] = []
    manager = SessionManager(clock=lambda: NOW, ended=lambda session, end: ends.append((session, end)))

    def fail(_output: Output | RequestError) -> None:
        raise LookupError("a mistake of ours")

    got: list[Output | RequestError] = []
    wrong, right = running(manager, fail), running(manager, got.append)
    for session in (wrong, right):
        manager.put(session, Token("a", 1))
        manager.put(session, Token("b", 2))
    if ended:
        manager.finish(wrong, FinishReason.STOP)
    assert deliver(manager) == [(right, Token("a", 1)), (right, Token("b", 2))]
    assert got == [Token("a", 1), Token("b", 2)]
    assert (wrong.ended, right.running) == (True, True)
    assert ends == [(wrong, "failed")]
    assert len(caplog.records) == 1
    manager.put(right, Token("c", 3))
    assert deliver(manager) == [(right, Token("c", 3))]


def test_the_last_output_that_a_sink_does_not_take_is_an_end_all_the_same() -> None:
    ends: list[str] = []
    manager = SessionManager(clock=lambda: NOW, ended=lambda _session, end: ends.append(end))

    def fail_at_the_end(output: Output | RequestError) -> None:
        if isinstance(output, Finished):
            raise LookupError("a mistake of ours")

    manager.finish(running(manager, fail_at_the_end), FinishReason.STOP)
    assert deliver(manager) == []
    assert ends == ["failed"]


def test_a_sink_may_end_its_session() -> None:
    manager = manage()
    got: list[Output | RequestError] = []

    def cancel_at_first(output: Output | RequestError) -> None:
        got.append(output)
        manager.cancel(session, "r")

    session = running(manager, cancel_at_first)
    manager.put(session, Token("a", 1))
    manager.put(session, Token("b", 2))
    deliver(manager)
    assert got == [Token("a", 1), Token("b", 2), end(session, FinishReason.CANCELLED)]


def test_the_caller_hears_of_an_output_when_it_was_handed_over() -> None:
    manager = manage()
    got: list[Output | RequestError] = []
    session = running(manager, got.append)
    for number in range(3):
        manager.put(session, Token("a", number))
    for count, (_, output) in enumerate(manager.deliver(), start=1):
        assert len(got) == count
        assert got[-1] is output


def test_the_end_says_how_long_it_took() -> None:
    manager = manage()
    got: list[Output | RequestError] = []
    session = running(manager, got.append)
    session.started_at, session.first_made_at = 2.5, 4.0
    manager.finish(session, FinishReason.STOP)
    deliver(manager)
    assert got == [Finished(FinishReason.STOP, session.usage, Timing(0.5, 2.0, 3.0))]


def test_an_end_whose_text_cannot_be_checked_is_a_failure() -> None:
    manager = manage()
    session = running(manager)
    session.text = text()
    session.text.finish = lambda: (_ for _ in ()).throw(failure())
    manager.cancel(session, "r")
    assert session.state is State.ERRORED
    ((_, error),) = deliver(manager)
    assert isinstance(error, RequestError)
    assert (error.fault, error.request_id) == (Fault.DECODE_FAILED, "r")


def test_each_end_is_told_of_once() -> None:
    left: list[tuple[Session, str]] = []
    manager = SessionManager(clock=lambda: NOW, ended=lambda *told: left.append(told))
    runs, ended, delivered, failed = (running(manager) for _ in range(4))
    manager.finish(delivered, FinishReason.STOP)
    manager.fail(failed, RequestError(Fault.BUSY, "request", "no"))
    deliver(manager)
    manager.finish(ended, FinishReason.STOP)
    manager.abandon(runs, "replaced")
    for session in (runs, ended, delivered, failed) * 2:
        manager.abandon(session)
    assert left == [(delivered, "stop"), (failed, "busy"), (runs, "replaced"), (ended, "abandoned")]


# Holds and steering.


@pytest.mark.parametrize("first", Hold)
@pytest.mark.parametrize("second", Hold)
def test_a_stream_goes_on_when_no_hold_is_left(first: Hold, second: Hold) -> None:
    manager = manage()
    session = running(manager)
    manager.prompt_done(session)
    manager.hold(session, first)
    manager.hold(session, second)
    manager.release(session, first)
    assert session.state is (State.DECODE if first is second else State.STREAM)
    manager.release(session, second)
    assert session.state is State.DECODE
    assert list(manager.held()) == []


@pytest.mark.parametrize("why", Hold)
def test_a_hold_before_the_first_token_waits_for_it_unless_it_is_the_readers(why: Hold) -> None:
    manager = manage()
    session = running(manager)
    manager.hold(session, why)
    assert session.state is State.PREFILL
    assert list(manager.held()) == ([] if why is Hold.READER else [session])
    manager.prompt_done(session)
    assert session.state is (State.DECODE if why is Hold.READER else State.STREAM)


def test_the_held_are_listed_from_their_first_hold_on() -> None:
    manager = manage()
    one, two, three = (running(manager) for _ in range(3))
    for session in (one, two, three):
        manager.prompt_done(session)
    for session in (two, three, one, two):
        manager.hold(session, Hold.PAUSE)
    manager.hold(two, Hold.READER)
    manager.release(two, Hold.PAUSE)
    assert list(manager.held()) == [two, three, one]
    manager.release(two, Hold.READER)
    manager.hold(two, Hold.DETACHED)
    manager.cancel(three, "r")
    assert list(manager.held()) == [one, two]


@pytest.mark.parametrize("why", Hold)
def test_nothing_is_held_that_does_not_run(why: Hold) -> None:
    manager = manage()
    done = running(manager)
    manager.cancel(done, "r")
    manager.hold(done, why)
    manager.release(done, why)
    assert done.state is State.DONE
    assert list(manager.held()) == []


def test_who_lost_its_place_waits_again_with_what_it_has_made() -> None:
    manager = manage()
    session = running(manager)
    session.slot, session.computed = 3, 7
    session.generated += [1, 2]
    manager.prompt_done(session)
    manager.hold(session, Hold.PAUSE)
    manager.preempted(session)
    assert (session.state, session.slot, session.computed) == (State.PREFILL, None, 0)
    assert session.generated == [1, 2]
    assert manager.waiting == 0, "it is still held"
    manager.release(session, Hold.PAUSE)
    assert (session.state, manager.waiting) == (State.PREFILL, 1)


def test_pause_and_resume_hold_at_once_and_are_acknowledged_between_ticks_in_their_order() -> None:
    manager = manage()
    session = running(manager)
    session.prepared = prepared()
    manager.prompt_done(session)
    commands = [Pause(), Resume(), Modify(REQUEST), Resume(), Pause()]
    for command, state in zip(commands, [State.STREAM, *[State.DECODE] * 3, State.STREAM], strict=True):
        manager.steer(session, command)
        assert session.state is state
    assert deliver(manager) == []
    assert manager.take_changes(9) == [(session, commands)]


@pytest.mark.parametrize("command", [Pause(), Resume(), Modify(REQUEST)], ids=lambda command: type(command).__name__)
def test_steering_what_does_not_run_is_ignored(command: Pause | Resume | Modify) -> None:
    manager = manage()
    done = running(manager)
    manager.finish(done, FinishReason.STOP)
    manager.steer(done, command)
    assert [type(output) for _, output in deliver(manager)] == [Finished]
    assert manager.take_changes(9) == []


def test_modifications_wait_until_the_request_is_prepared_and_stay_in_order() -> None:
    manager = manage()
    early, late, gone = (running(manager) for _ in range(3))
    changes = [Modify(Generate("r", "hello", number + 1)) for number in range(3)]
    for session, change in itertools.product((early, late, gone), changes):
        manager.steer(session, change)
    assert not manager.changing
    late.prepared = gone.prepared = prepared()
    manager.abandon(gone)
    assert manager.changing
    assert manager.take_changes(9) == [(late, changes)]
    assert manager.take_changes(9) == []
    assert not manager.changing
    early.prepared = prepared()
    assert manager.take_changes(9) == [(early, changes)]
    assert deliver(manager) == [], "who applies them says so"


def test_changes_are_taken_of_so_many_requests_at_once_and_the_others_wait() -> None:
    manager = manage()
    sessions = [running(manager) for _ in range(5)]
    for session, command in itertools.product(sessions, (Pause(), Resume())):
        session.prepared = prepared()
        manager.steer(session, command)
    taken = []
    while manager.changing:
        taken.append([session for session, _commands in manager.take_changes(2)])
    assert taken == [sessions[:2], sessions[2:4], sessions[4:]]


def test_more_modifications_than_may_wait_are_refused_and_a_pause_never_is() -> None:
    manager = manage()
    session = running(manager)
    changes = [Modify(Generate("r", "hello", number + 1)) for number in range(MAX_CHANGES + 1)]
    for change in changes:
        manager.steer(session, change)
    ((_, refused),) = deliver(manager)
    assert isinstance(refused, Steered)
    assert refused.command is changes[-1]
    assert f"{MAX_CHANGES} changes" in str(refused.refusal)
    manager.steer(session, Pause())
    assert session.holds == {Hold.PAUSE}
    assert deliver(manager) == [(session, Steered(Pause()))]
    session.prepared = prepared()
    assert manager.take_changes(9) == [(session, changes[:-1])]


# Admission and time.


@pytest.mark.parametrize("asked", Priority)
@pytest.mark.parametrize("granted", Priority)
def test_no_request_gets_a_better_class_than_its_origin_is_granted(asked: Priority, granted: Priority) -> None:
    manager = manage()
    request, caller = Generate("r", "hello", priority=asked), Caller("uds", "uid:1000", priority=granted)
    session = manager.start(request, ignore, caller, 2.0)
    assert session.request.priority is max(asked, granted)
    assert (session.request.id, session.request.prompt) == ("r", "hello")


def test_who_is_not_admitted_leaves_nothing_behind() -> None:
    asked: list[tuple[Caller, int, float]] = []

    def admit(caller: Caller, waiting: int, now: float) -> None:
        asked.append((caller, waiting, now))
        if len(asked) > 2:
            raise RequestError(Fault.RATE_LIMITED, "request", "no")

    told: list[tuple[str, Generate, Caller, str, float]] = []

    def ended(session: Session, end: str) -> None:
        told.append((end, session.request, session.caller, session.model, session.requested_at))

    manager = SessionManager(admit, lambda: NOW, ended, "tiny")
    first, second = running(manager), running(manager)
    first.slot = 0
    with pytest.raises(RequestError) as refused:
        manager.start(REQUEST, ignore, ORIGIN, 4.0)
    assert refused.value.request_id == "r"
    assert asked == [(ORIGIN, 0, 2.0), (ORIGIN, 1, 2.0), (ORIGIN, 1, 4.0)]
    assert told == [("rate_limited", REQUEST, ORIGIN, "tiny", 4.0)]
    assert manager.take_arrived() == [first, second] == list(manager.running())


def test_a_part_of_an_admitted_request_is_asked_of_nobody() -> None:
    def admit(_caller: Caller, _waiting: int, _now: float) -> None:
        raise RequestError(Fault.RATE_LIMITED, "request", "no")

    manager = SessionManager(admit)
    manager.draining = True
    session = manager.start(REQUEST, ignore, ORIGIN, 2.0, admitted=True)
    assert manager.take_arrived() == [session]


def test_only_those_without_a_place_and_without_a_hold_wait() -> None:
    manager = manage()
    sessions = [running(manager) for _ in range(4)]
    sessions[0].slot = 0
    manager.hold(sessions[1], Hold.PAUSE)
    manager.cancel(sessions[2], "r")
    assert manager.waiting == 1


@pytest.mark.parametrize(("seconds", "expired"), [(2.9, True), (3.0, False), (100.0, False)])
def test_a_request_that_takes_too_long_fails_unless_it_is_held(seconds: float, expired: bool) -> None:
    manager = manage()
    waits, streams, paused = (running(manager) for _ in range(3))
    young = manager.start(REQUEST, ignore, ORIGIN, 4.9)
    for session in (streams, paused):
        manager.prompt_done(session)
    manager.hold(paused, Hold.PAUSE)
    manager.expire(seconds)
    errors = dict(deliver(manager))
    assert set(errors) == ({waits, streams} if expired else set())
    for error in errors.values():
        assert isinstance(error, RequestError)
        assert (error.fault, error.request_id) == (Fault.TIMED_OUT, "r")
        assert f"{seconds:g} s" in error.message
    assert {young, paused} <= set(manager.running())


def test_the_time_for_which_it_was_held_does_not_count_however_often() -> None:
    now = 0.0
    manager = SessionManager(clock=lambda: now)
    session = manager.start(REQUEST, ignore, ORIGIN, 0.0)
    manager.prompt_done(session)
    for holds in ([Hold.PAUSE], [Hold.READER, Hold.DETACHED], [Hold.PAUSE, Hold.PAUSE]):
        now += 1.0
        for why in holds:
            manager.hold(session, why)
            now += 50.0
        for why in holds:
            manager.release(session, why)
            now += 0.0 if not session.holds else 50.0
    now += 1.0
    manager.expire(4.0)
    assert session.running
    manager.expire(3.9)
    assert not session.running


@pytest.mark.parametrize(
    ("caller", "tenant"),
    [
        (Caller("uds", "uid:1000"), "uid:1000"),
        (Caller("http", "192.0.2.1", "garden"), "key:garden"),
        (Caller("http", "key:garden"), "key:garden"),
    ],
)
def test_a_tenant_is_its_key_or_else_its_peer(caller: Caller, tenant: str) -> None:
    assert caller.tenant == tenant


# Arrivals, cancelling and draining.


def test_arrivals_are_taken_once_and_only_while_they_stand() -> None:
    manager = manage()
    sessions = [running(manager) for _ in range(4)]
    manager.cancel(sessions[1], "r")
    manager.abandon(sessions[2])
    assert manager.take_arrived() == [sessions[0], sessions[3]]
    assert manager.take_arrived() == []
    assert list(manager.running()) == [sessions[0], sessions[3]]
    assert manager.get(sessions[3].id) is sessions[3]


@pytest.mark.parametrize("request_id", ["other", "", "R"])
def test_a_cancel_for_another_request_is_ignored(request_id: str) -> None:
    manager = manage()
    session = running(manager)
    manager.cancel(session, request_id)
    assert session.state is State.PREFILL


def test_a_cancel_may_cross_the_end() -> None:
    manager = manage()
    session = running(manager)
    manager.finish(session, FinishReason.STOP)
    manager.cancel(session, "r")
    assert [output.reason for _, output in deliver(manager)] == [FinishReason.STOP]


def test_draining_refuses_what_is_new() -> None:
    manager = manage()
    running_one = running(manager)
    manager.draining = True
    with pytest.raises(RequestError) as refused:
        manager.start(REQUEST, ignore, ORIGIN, 3.0)
    assert (refused.value.fault, refused.value.request_id) == (Fault.SHUTTING_DOWN, "r")
    assert manager.take_arrived() == [running_one], "what ran goes on"


def test_totals() -> None:
    manager = manage()
    beside = SessionManager(clock=lambda: NOW, totals=manager.totals)
    ids = {running(one).id for one in (manager, beside, manager)}
    assert len(ids) == 3
    manager.draining = True
    with pytest.raises(RequestError):
        running(manager)
    assert manager.totals.sessions == 4, "one that was refused counts too"


# All of it in any order.


class Sessions(RuleBasedStateMachine):
    """The manager against a table of expected states, holds and outputs."""

    sessions = Bundle("sessions")

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.manager = SessionManager(clock=lambda: self.now)
        self.numbers = itertools.count()
        self.state: dict[int, State] = {}
        self.holds: dict[int, set[Hold]] = {}
        self.held: list[int] = []
        self.waiting: dict[int, list[object]] = {}
        self.expected: dict[int, list[object]] = {}
        self.got: dict[int, list[object]] = {}
        self.arrived: list[Session] = []
        self.requested: dict[int, float] = {}
        self.held_s: dict[int, float] = {}
        """For how long each has been held, by the turns of the clock."""
        self.changes: dict[Session, list[Steering]] = {}

    def move(self, session: Session, event: Event, *outputs: object) -> None:
        """Make the move if the table has it; else see that it is refused."""
        state = MOVES[self.state[session.id]].get(event.value)
        if state is None:
            with pytest.raises(TransitionError):
                METHODS[event](self.manager, session)
            return
        METHODS[event](self.manager, session)
        self.moved(session, state, *outputs)

    def moved(self, session: Session, state: State, *outputs: object) -> None:
        self.state[session.id] = state
        self.waiting[session.id] += outputs
        if state not in RUNNING:
            self.changes.pop(session, None)
            if session.id in self.held:
                self.held.remove(session.id)

    @rule(target=sessions)
    def start(self) -> Session:
        got: list[object] = []
        session = self.manager.start(REQUEST, lambda output: got.append(_plain(output)), ORIGIN, self.now)
        self.state[session.id] = State.PREFILL
        self.holds[session.id] = set()
        self.waiting[session.id], self.expected[session.id], self.got[session.id] = [], [], got
        self.arrived.append(session)
        self.requested[session.id] = self.now
        self.held_s[session.id] = 0.0
        return session

    @rule(session=sessions, id_=st.sampled_from(["r", "r", "other"]))
    def cancel(self, session: Session, id_: str) -> None:
        self.manager.cancel(session, id_)
        if id_ == "r" and self.state[session.id] in RUNNING:
            self.moved(session, State.DONE, FinishReason.CANCELLED)

    @rule(session=consumes(sessions))
    def abandon(self, session: Session) -> None:
        self.manager.abandon(session)
        if self.state[session.id] not in (State.DONE, State.ERRORED):
            self.moved(session, State.DONE)
        self.waiting[session.id].clear()

    @rule(session=sessions, why=st.sampled_from(Hold))
    def hold(self, session: Session, why: Hold) -> None:
        self.manager.hold(session, why)
        self.expect_hold(session, why)

    def expect_hold(self, session: Session, why: Hold) -> None:
        state = self.state[session.id]
        if state not in RUNNING or (state is State.PREFILL and why is Hold.READER):
            return
        self.holds[session.id].add(why)
        if session.id not in self.held:
            self.held.append(session.id)
        if state is State.DECODE:
            self.state[session.id] = State.STREAM

    @rule(session=sessions, why=st.sampled_from(Hold))
    def release(self, session: Session, why: Hold) -> None:
        self.manager.release(session, why)
        self.expect_release(session, why)

    def expect_release(self, session: Session, why: Hold) -> None:
        self.holds[session.id].discard(why)
        if self.holds[session.id] or session.id not in self.held:
            return
        self.held.remove(session.id)
        if self.state[session.id] is State.STREAM:
            self.state[session.id] = State.DECODE

    @rule(session=sessions, command=st.sampled_from([Pause(), Resume()]))
    def pause_or_resume(self, session: Session, command: Pause | Resume) -> None:
        self.manager.steer(session, command)
        if self.state[session.id] in RUNNING:
            expect = self.expect_hold if isinstance(command, Pause) else self.expect_release
            expect(session, Hold.PAUSE)
            self.expect_change(session, command)

    @rule(session=sessions, count=st.integers(1, 3))
    def modify(self, session: Session, count: int) -> None:
        for _ in range(count):
            command = Modify(Generate("r", "hello", 1 + next(self.numbers)))
            self.manager.steer(session, command)
            if self.state[session.id] in RUNNING:
                self.expect_change(session, command)

    def expect_change(self, session: Session, command: Steering) -> None:
        changes = self.changes.setdefault(session, [])
        if len(changes) == MAX_CHANGES:
            self.waiting[session.id].append((command, not isinstance(command, Modify)))
        else:
            changes.append(command)

    @rule(session=sessions)
    def prepare(self, session: Session) -> None:
        session.prepared = prepared()

    @rule(most=st.integers(1, 3))
    def take_changes(self, most: int) -> None:
        ready = [session for session in self.changes if session.prepared is not None]
        assert self.manager.changing == bool(ready)
        assert self.manager.take_changes(most) == [(session, self.changes.pop(session)) for session in ready[:most]]

    @rule(session=sessions)
    def prompt_done(self, session: Session) -> None:
        self.move(session, Event.PROMPT_DONE)
        if self.state[session.id] is State.DECODE and self.holds[session.id]:
            self.state[session.id] = State.STREAM

    @rule(session=sessions)
    def preempt(self, session: Session) -> None:
        self.move(session, Event.PREEMPT)

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

    @rule(seconds=st.integers(0, 3))
    def expire(self, seconds: int) -> None:
        self.now += 1.0
        for id_ in self.held:
            self.held_s[id_] += 1.0
        late = [
            session
            for session in self.manager.running()
            if session.id not in self.held
            and self.now - self.requested[session.id] - self.held_s[session.id] > float(seconds)
        ]
        self.manager.expire(seconds)
        for session in late:
            self.moved(session, State.ERRORED, Fault.TIMED_OUT)

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

    @invariant()
    def the_held_are_listed_from_the_one_held_longest(self) -> None:
        assert [(session.id, session.holds) for session in self.manager.held()] == [
            (id_, self.holds[id_]) for id_ in self.held
        ]

    @invariant()
    def a_stream_stands_still_as_long_as_it_is_held(self) -> None:
        for session in self.manager.running():
            assert session.state is not (State.DECODE if session.holds else State.STREAM)


def _plain(output: Output | RequestError) -> object:
    match output:
        case Token():
            return output.token_id
        case Finished():
            return output.reason
        case Steered():
            return output.command, output.refusal is None
        case RequestError():
            return output.fault
    raise AssertionError(output)


TestSessions = Sessions.TestCase
TestSessions.settings = settings(max_examples=examples(50), stateful_step_count=40)
