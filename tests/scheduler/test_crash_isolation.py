"""Who runs after a crash: suspects alone, one after the other, and whoever crashes the engine again fails."""

from __future__ import annotations

from umaserve.core.errors import Fault, RequestError
from umaserve.core.events import Output
from umaserve.core.requests import Generate
from umaserve.scheduler.crash_isolation import TOKENS, CrashIsolation, count_loss
from umaserve.sessions.caller import Caller
from umaserve.sessions.manager import SessionManager
from umaserve.sessions.session import Hold, Session
from umaserve.sessions.states import State


class World:
    def __init__(self, names: str) -> None:
        self.sessions = SessionManager()
        self.said: dict[str, list[Output | RequestError]] = {name: [] for name in names}
        self.of = {name: self.start(name) for name in names}

    def start(self, name: str) -> Session:
        return self.sessions.start(Generate(name, "hello"), self.said[name].append, Caller("uds", "user"), 0.0)

    def crash(self, in_work: str, *, blamed: bool = True) -> CrashIsolation:
        suspects = count_loss([self.of[name] for name in in_work], blamed=blamed)
        self.sessions.start_over()
        return CrashIsolation(self.sessions, suspects)

    def kill(self, in_work: str) -> CrashIsolation:
        return self.crash(in_work, blamed=False)

    def let_in(self, trials: CrashIsolation) -> str:
        return "".join(session.request.id for session in trials.may_begin(self.sessions.take_arrived()))

    def current(self, trials: CrashIsolation) -> str:
        return "" if trials.current is None else trials.current.request.id


def test_without_suspects_all_go_on_at_once() -> None:
    world = World("abc")
    trials = world.crash("")
    assert (world.current(trials), world.let_in(trials), world.let_in(trials)) == ("", "abc", "")


def test_suspects_run_alone_until_they_are_past_the_place() -> None:
    world = World("abcd")
    trials = world.crash("ac")
    assert (world.current(trials), world.let_in(trials), world.let_in(trials)) == ("a", "a", "")
    world.of["a"].generated += [1] * TOKENS
    assert (world.current(trials), world.let_in(trials)) == ("c", "c")
    world.sessions.abandon(world.of["c"])
    assert (world.current(trials), world.let_in(trials)) == ("", "bd")


def test_one_that_crashes_two_engines_fails_and_the_others_do_not() -> None:
    world = World("ab")
    world.crash("ab")
    trials = world.crash("a")
    assert world.of["a"].state is State.ERRORED
    list(world.sessions.deliver())
    (error,) = world.said["a"]
    assert isinstance(error, RequestError)
    assert (error.fault, error.request_id) == (Fault.DECODE_FAILED, "a")
    assert (world.current(trials), world.let_in(trials)) == ("", "b")


def test_whoever_was_not_tried_is_innocent_once_another_has_crashed_alone() -> None:
    world = World("abc")
    world.crash("abc")
    world.crash("a")
    trials = world.crash("bc")
    assert (world.of["b"].running, world.of["c"].running, world.current(trials)) == (True, True, "b")


def test_a_later_crash_is_a_new_one() -> None:
    world = World("a")
    trials = world.crash("a")
    world.of["a"].generated += [1] * TOKENS
    assert world.current(trials) == ""
    trials = world.crash("a")
    assert (world.of["a"].running, world.current(trials)) == (True, "a")


def test_one_that_is_held_is_tried_when_it_goes_on() -> None:
    world = World("ab")
    trials = world.crash("a")
    world.sessions.hold(world.of["a"], Hold.PAUSE)
    assert (world.current(trials), world.let_in(trials)) == ("", "ab")
    world.sessions.release(world.of["a"], Hold.PAUSE)
    assert world.current(trials) == "a"


def test_another_programs_kill_makes_no_suspect() -> None:
    world = World("ab")
    for _ in range(5):
        trials = world.kill("ab")
        assert (world.current(trials), world.let_in(trials)) == ("", "ab")
        for session in world.of.values():
            session.generated += [1] * TOKENS


def test_those_that_two_kills_have_stopped_at_one_place_run_alone_and_a_third_ends_one() -> None:
    world = World("abc")
    world.kill("ab")
    world.of["b"].generated += [1] * (TOKENS - 1)
    trials = world.kill("bac")
    assert (world.current(trials), world.let_in(trials)) == ("b", "b"), "c had one kill only"
    world.of["b"].generated.append(1)
    world.of["b"].generated += [1] * TOKENS
    assert (world.current(trials), world.let_in(trials)) == ("a", "a")
    trials = world.kill("a")
    assert world.of["a"].state is State.ERRORED
    assert (world.current(trials), world.let_in(trials)) == ("", "bc")


def test_one_kill_while_a_suspect_runs_alone_has_it_tried_again() -> None:
    world = World("ab")
    world.crash("ab")
    trials = world.kill("a")
    assert (world.of["a"].running, world.current(trials), world.let_in(trials)) == (True, "a", "a")
    world.crash("a")
    assert world.of["a"].state is State.ERRORED
