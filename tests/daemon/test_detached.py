"""Lost connections: what they leave costs no computing, is found again by its own tenant, and is gone in the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from world import World

from umaserve.core.commands import Command
from umaserve.core.errors import Fault, RequestError
from umaserve.core.events import Finished, FinishReason, Output, Token
from umaserve.core.requests import Generate
from umaserve.daemon.detached import LOST_BYTES, Detached
from umaserve.dialects.dialect import Reply
from umaserve.dialects.generate.generation import Kept
from umaserve.sessions.caller import Caller
from umaserve.sessions.manager import SessionManager
from umaserve.sessions.session import Hold, Session
from umaserve.sessions.states import State

WINDOW = 60.0
OUTPUT_BYTES = LOST_BYTES
ORIGIN = Caller("generate", "192.0.2.1")
KEYED = Caller("generate", "192.0.2.1", "garden")


class Remembering:
    """Implements ``ResumableDialect``: it keeps what it was given, and each output takes ``OUTPUT_BYTES``."""

    ready = True

    def __init__(self, request_id: str | None) -> None:
        self.request_id = request_id
        self.told: list[Output | RequestError] = []

    @property
    def held_bytes(self) -> int:
        return OUTPUT_BYTES * len(self.told)

    @property
    def finished(self) -> bool:
        return any(isinstance(output, Finished | RequestError) for output in self.told)

    @property
    def kept(self) -> None:
        return None

    def take_over(self, kept: Kept) -> None:
        raise AssertionError("it keeps nothing")

    def receive(self, payload: bytes) -> Command | None:
        raise AssertionError("a lost connection receives nothing")

    def send(self, output: Output) -> Reply:
        self.told.append(output)
        return Reply(repr(output).encode())

    def fail(self, error: RequestError) -> Reply:
        self.told.append(error)
        return Reply(b"failed")

    refuse = fail

    def replay(self, position: int) -> list[bytes]:
        if position > len(self.told):
            raise RequestError(Fault.BAD_REQUEST, "position", "too far")
        return [repr(output).encode() for output in self.told[position:]]


class LostStreams(World):
    """Streams whose connections are lost, and what is kept of them."""

    def __init__(self, window: float = WINDOW, max_bytes: int = 100 * LOST_BYTES) -> None:
        super().__init__()
        self.sessions = SessionManager(clock=self.clock)
        self.detached = Detached(self.loop, self.sessions, window, max_bytes)
        self.received: list[Output | RequestError] = []

    def streaming(self, request_id: str = "r", caller: Caller = ORIGIN, tokens: int = 3) -> tuple[Remembering, Session]:
        """A stream whose connection is still there."""
        dialect = Remembering(request_id)
        request = Generate(request_id, "hello")
        session = self.sessions.start(request, self.received.append, caller, self.clock.now)
        self.sessions.prompt_done(session)
        for token in range(tokens):
            dialect.send(Token(str(token), token))
        return dialect, session

    def keep(self, request_id: str = "r", caller: Caller = ORIGIN, tokens: int = 3) -> tuple[Remembering, Session]:
        dialect, session = self.streaming(request_id, caller, tokens)
        self.detached.keep(dialect, session, caller)
        return dialect, session

    def take(
        self, request_id: str = "r", caller: Caller = ORIGIN, position: int = 0
    ) -> tuple[Session | None, list[bytes]]:
        _dialect, session, missed = self.detached.take(request_id, caller.tenant, position)
        return session, missed

    def deliver(self) -> None:
        for _ in self.sessions.deliver():
            continue


@pytest.fixture
def make() -> Iterator[Callable[..., LostStreams]]:
    worlds: list[LostStreams] = []

    def make(**options: float) -> LostStreams:
        worlds.append(LostStreams(**options))
        return worlds[-1]

    yield make
    for world in worlds:
        world.close()


@pytest.fixture
def world(make: Callable[..., LostStreams]) -> LostStreams:
    return make()


def not_found(world: LostStreams, request_id: str = "r", caller: Caller = ORIGIN) -> bool:
    with pytest.raises(RequestError) as refused:
        world.take(request_id, caller)
    return refused.value.fault is Fault.NOT_FOUND


def test_what_is_kept_is_held_and_remembers_what_was_under_way(world: LostStreams) -> None:
    dialect, session = world.keep()
    assert (session.state, session.holds, len(world.detached)) == (State.STREAM, {Hold.DETACHED}, 1)
    world.sessions.put(session, Token("late", 3))
    world.deliver()
    assert world.received == []
    assert dialect.told[-1] == Token("late", 3)
    taken, missed = world.take(position=2)
    assert taken is session
    assert missed == [repr(output).encode() for output in (Token("2", 2), Token("late", 3))]
    assert session.holds == {Hold.DETACHED}, "the new connection releases it, when it has sent what was missed"
    assert len(world.detached) == 0


def test_a_reader_that_was_behind_holds_back_its_successor_no_more(world: LostStreams) -> None:
    dialect, session = world.streaming()
    world.sessions.hold(session, Hold.READER)
    world.sessions.hold(session, Hold.PAUSE)
    world.detached.keep(dialect, session, ORIGIN)
    assert session.holds == {Hold.DETACHED, Hold.PAUSE}
    world.take()
    world.sessions.release(session, Hold.DETACHED)
    assert session.state is State.STREAM, "what the client has paused stays so"
    world.sessions.release(session, Hold.PAUSE)
    assert session.state is State.DECODE


def test_a_generation_can_be_lost_and_taken_again_and_again(world: LostStreams) -> None:
    dialect, session = world.keep()
    for _ in range(3):
        taken, _missed = world.take()
        assert taken is session
        world.turn(WINDOW - 1)
        world.detached.keep(dialect, session, ORIGIN)
    assert session.running


@pytest.mark.parametrize(
    ("request_id", "caller"),
    [("other", ORIGIN), ("r", Caller("generate", "192.0.2.2")), ("r", KEYED), ("", ORIGIN)],
)
def test_nobody_else_finds_it(world: LostStreams, request_id: str, caller: Caller) -> None:
    world.keep()
    assert not_found(world, request_id, caller)
    assert len(world.detached) == 1
    world.take()


def test_a_key_finds_its_own_from_anywhere(world: LostStreams) -> None:
    _, session = world.keep(caller=KEYED)
    assert not_found(world)
    taken, _missed = world.take(caller=Caller("generate", "198.51.100.9", "garden"))
    assert taken is session


def test_a_wrong_position_loses_nothing(world: LostStreams) -> None:
    world.keep(tokens=3)
    with pytest.raises(RequestError, match="too far"):
        world.take(position=4)
    _session, missed = world.take(position=3)
    assert missed == []


def test_it_is_kept_for_its_window_and_no_longer(world: LostStreams) -> None:
    _, session = world.keep()
    world.turn(WINDOW - 0.001)
    assert session.running
    world.turn(0.001)
    assert (session.state, len(world.detached)) == (State.DONE, 0)
    assert not_found(world)


def test_one_that_was_taken_outlives_the_window(world: LostStreams) -> None:
    _, session = world.keep()
    world.take()
    world.turn(2 * WINDOW)
    assert session.running


def test_the_oldest_go_when_they_take_too_much_together(make: Callable[..., LostStreams]) -> None:
    # Each takes what its tokens take, and as much again as one of them.
    world = make(max_bytes=12 * LOST_BYTES)
    kept = [world.keep(f"r{number}", tokens=4)[1] for number in range(2)]
    assert len(world.detached) == 2
    kept += [world.keep(f"r{number}", tokens=2)[1] for number in range(2, 4)]
    assert [session.running for session in kept] == [False, True, True, True]
    kept.append(world.keep("large", tokens=11)[1])
    assert [session.running for session in kept] == [False, False, False, False, True]
    kept.append(world.keep("too large", tokens=12)[1])
    assert not any(session.running for session in kept)
    assert len(world.detached) == 0
    world.turn(2 * WINDOW)


@pytest.mark.parametrize("leave", ["taken", "expired"])
def test_what_is_no_longer_kept_takes_no_room(make: Callable[..., LostStreams], leave: str) -> None:
    world = make(max_bytes=12 * LOST_BYTES)
    for _ in range(3):
        dialect, session = world.keep(tokens=11)
        assert session.running
        dialect.send(Token("what was under way", 11))
        match leave:
            case "taken":
                world.take()
            case "expired":
                world.turn(WINDOW)
        assert len(world.detached) == 0


def test_generations_without_any_text_fill_the_memory_too(make: Callable[..., LostStreams]) -> None:
    world = make(max_bytes=12 * LOST_BYTES)
    kept = [world.keep(f"r{number}", tokens=0)[1] for number in range(20)]
    assert [session.running for session in kept] == [False] * 8 + [True] * 12


# Whose client comes back before anybody has seen that the connection was lost.


class Connected:
    """A connection that has a generation and does not know that its client is gone."""

    def __init__(self, world: LostStreams, request_id: str = "r", caller: Caller = ORIGIN) -> None:
        self.world, self.request_id = world, request_id
        self.dialect, self.session = world.streaming(request_id, caller)
        self.aborted = 0
        world.detached.watch(request_id, caller.tenant, self.abort, self.abort)

    def abort(self) -> None:
        self.aborted += 1
        self.world.detached.unwatch(self.request_id)
        self.world.detached.keep(self.dialect, self.session, ORIGIN)


def test_a_resume_takes_over_from_a_connection_that_is_still_open(world: LostStreams) -> None:
    old = Connected(world)
    session, missed = world.take(position=1)
    assert (session, len(missed), old.aborted, len(world.detached)) == (old.session, 2, 1, 0)
    assert session.holds == {Hold.DETACHED}
    assert not_found(world), "the old connection has it no more"
    assert old.aborted == 1


@pytest.mark.parametrize(("request_id", "caller"), [("other", ORIGIN), ("r", Caller("generate", "192.0.2.2"))])
def test_nobody_else_takes_over(world: LostStreams, request_id: str, caller: Caller) -> None:
    old = Connected(world)
    assert not_found(world, request_id, caller)
    assert (old.aborted, old.session.state, old.session.holds) == (0, State.DECODE, set())


def test_a_resume_from_a_wrong_position_can_be_tried_again(world: LostStreams) -> None:
    old = Connected(world)
    with pytest.raises(RequestError, match="too far"):
        world.take(position=4)
    session, _missed = world.take(position=3)
    assert session is old.session


def test_a_connection_that_has_gone_on_to_another_generation_is_left_alone(world: LostStreams) -> None:
    old = Connected(world)
    world.detached.unwatch("r")
    world.detached.unwatch(None)
    assert not_found(world)
    assert old.aborted == 0


def test_without_a_window_nobody_is_taken_over_from(make: Callable[..., LostStreams]) -> None:
    world = make(window=0.0)
    old = Connected(world)
    assert not_found(world)
    assert old.aborted == 0


@pytest.mark.parametrize("reason", ["no window", "no request", "draining"])
def test_what_cannot_be_kept_ends_with_its_connection(make: Callable[..., LostStreams], reason: str) -> None:
    world = make(window=0.0 if reason == "no window" else WINDOW)
    dialect, session = world.streaming()
    if reason == "no request":
        dialect.request_id = None
    world.sessions.draining = reason == "draining"
    world.detached.keep(dialect, session, ORIGIN)
    assert (session.state, len(world.detached)) == (State.DONE, 0)
    assert world.detached.enabled == (reason != "no window")


def test_dropping_all_leaves_none(world: LostStreams) -> None:
    kept = [world.keep(f"r{number}")[1] for number in range(3)]
    world.detached.leave_all()
    assert not world.detached.left
    assert (len(world.detached), [session.state for session in kept]) == (0, [State.DONE] * 3)
    world.turn(2 * WINDOW)


@pytest.mark.parametrize("delivered", [True, False])
@pytest.mark.parametrize("fails", [False, True])
def test_one_that_ended_meanwhile_is_told_of_and_makes_way_for_the_next_request(
    world: LostStreams, delivered: bool, fails: bool
) -> None:
    dialect, session = world.keep()
    if fails:
        world.sessions.fail(session, RequestError(Fault.TIMED_OUT, "request", "too long"))
    else:
        world.sessions.finish(session, FinishReason.LENGTH)
    if delivered:
        world.deliver()
    taken, missed = world.take(position=3)
    assert len(missed) == delivered
    if not delivered:
        # The end is still to be delivered, to the new connection.
        assert taken is session
        taken.sink = world.received.append
        world.deliver()
        assert [type(output) for output in world.received] == [RequestError if fails else Finished]
        return
    assert isinstance(dialect.told[-1], RequestError if fails else Finished)
    assert taken is None


def test_one_whose_end_was_delivered_before_the_connection_was_lost_can_be_replayed(world: LostStreams) -> None:
    dialect, session = world.streaming()
    world.sessions.finish(session, FinishReason.STOP)
    session.sink = lambda output: dialect.send(output)
    world.deliver()
    world.detached.keep(dialect, session, ORIGIN)
    taken, missed = world.take(position=3)
    assert (taken, len(missed)) == (None, 1)
    world.turn(2 * WINDOW)


def test_a_prompt_is_kept_as_well_and_not_computed(world: LostStreams) -> None:
    dialect = Remembering("r")
    session = world.sessions.start(Generate("r", "hello"), world.received.append, ORIGIN, 0.0)
    world.detached.keep(dialect, session, ORIGIN)
    assert (session.state, list(world.sessions.held())) == (State.PREFILL, [session])
    world.take()
    world.sessions.release(session, Hold.DETACHED)
    assert (session.state, list(world.sessions.held())) == (State.PREFILL, [])
