"""Generations that one process leaves and the next one takes over, as their clients find them there."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
from world import World

from umaserve.core.errors import Fault, RequestError
from umaserve.core.events import FinishReason, ListedModel, ModelInfo, Started, Token
from umaserve.core.requests import MAX_MEDIA_KEPT, Generate
from umaserve.daemon.detached import Detached
from umaserve.daemon.handover_file import Left, pack, unpack
from umaserve.dialects.generate.conversation import GenerateDialect
from umaserve.dialects.parameters import RequestLimits
from umaserve.sessions.caller import Caller
from umaserve.sessions.manager import SessionManager
from umaserve.sessions.session import Hold, Session
from umaserve.sessions.states import State

WINDOW = 60.0
ALICE, BOB = Caller("generate", "192.0.2.1", "alice"), Caller("generate", "192.0.2.1", "bob")
MODEL = ModelInfo("tiny", "llama", "Q4_1", 135, 9, 4096, 2048, 49152, 576, None, "<s>", "</s>")


class Process(World):
    """A daemon's generations, and whoever has them."""

    def __init__(self, *, leaves: bool = True, window: float = WINDOW) -> None:
        super().__init__()
        self.sessions = SessionManager(clock=self.clock)
        self.detached = Detached(self.loop, self.sessions, window, 1 << 20, leaves=leaves)

    def dialect(self) -> GenerateDialect:
        listed: list[ListedModel] = []
        limits = RequestLimits(max_prompt_bytes=1 << 10)
        return GenerateDialect(limits, lambda _name: MODEL, lambda: listed, lambda: "gen_1", resumable=True)

    def begin(self, *, tokens: int = 3, known: bool = True, **config: object) -> tuple[GenerateDialect, Session]:
        """A stream of Alice's. ``known``: whether she has been told its id."""
        dialect = self.dialect()
        request = dialect.receive(json.dumps({"type": "config", "prompt": "Once", **config}).encode())
        assert isinstance(request, Generate)
        session = self.sessions.start(request, dialect.send, ALICE, self.clock.now)
        session.announced = known
        if known:
            dialect.send(Started())
        for token in range(tokens):
            session.generated.append(token)
            self.sessions.put(session, Token(f"{token} ", token))
        return dialect, session

    def take_over(self, generations: list[Left]) -> None:
        for left in unpack(pack(generations, 1 << 20)):
            self.detached.take_over(left, self.dialect())

    def resume(self, position: int, caller: Caller = ALICE) -> tuple[Session | None, list[dict[str, object]]]:
        _dialect, session, missed = self.detached.take("gen_1", caller.tenant, position)
        return session, [json.loads(message) for message in missed][1:]


@pytest.fixture
def process() -> Iterator[Process]:
    process = Process()
    yield process
    process.close()


@pytest.fixture
def following() -> Iterator[Process]:
    following = Process()
    yield following
    following.close()


@pytest.mark.parametrize("connected", [True, False])
def test_its_own_tenant_finds_it_and_nobody_else(process: Process, following: Process, connected: bool) -> None:
    dialect, session = process.begin()
    if connected:

        def restart() -> None:
            assert process.detached.can_leave(dialect, session)
            process.detached.keep(dialect, session, ALICE)

        process.detached.watch("gen_1", ALICE.tenant, restart, restart)
        process.detached.restart_all()
    else:
        process.detached.keep(dialect, session, ALICE)
        process.detached.leave_all()
    assert (session.state, len(process.detached)) == (State.DONE, 0)
    following.take_over(process.detached.left)
    with pytest.raises(RequestError) as refused:
        following.resume(1, BOB)
    assert refused.value.fault is Fault.NOT_FOUND
    again, missed = following.resume(1)
    assert [message["token"] for message in missed] == ["1 ", "2 "]
    assert missed[-1]["generated_text"] == "0 1 2 "
    assert again is not None
    assert (again.generated, again.holds, again.caller) == ([0, 1, 2], {Hold.DETACHED}, ALICE)
    assert again.begun is not None
    assert again.begun.text == "0 1 2 "


def test_one_that_has_ended_can_still_be_read(process: Process, following: Process) -> None:
    dialect, session = process.begin(options={"stream": False}, tokens=0)
    process.detached.keep(dialect, session, ALICE)
    process.sessions.put(session, Token("Once more", 7))
    process.sessions.finish(session, FinishReason.LENGTH)
    process.detached.leave_all()
    following.take_over(process.detached.left)
    again, (completion,) = following.resume(0)
    assert again is None
    assert (completion["type"], completion["generated_text"]) == ("completion", "Once more")


def test_it_has_what_is_left_of_its_window(process: Process, following: Process) -> None:
    process.detached.keep(*process.begin(), ALICE)
    process.turn(WINDOW - 20)
    before = time.time()
    process.detached.leave_all()
    (left,) = process.detached.left
    assert before + 20 <= left.expires_at <= time.time() + 20
    following.take_over([left])
    following.turn(15)
    assert len(following.detached) == 1
    following.turn(6)
    assert len(following.detached) == 0
    assert not list(following.sessions.running())


@pytest.mark.parametrize("expires_at", [0.0, float("nan"), float("-inf")])
def test_one_whose_time_is_over_is_gone(process: Process, following: Process, expires_at: float) -> None:
    process.detached.keep(*process.begin(), ALICE)
    process.detached.leave_all()
    (left,) = process.detached.left
    following.take_over([Left(left.caller, left.kept, left.begun, expires_at)])
    assert len(following.detached) == 0


def test_one_of_a_time_that_is_far_away_is_kept_no_longer_than_others(process: Process, following: Process) -> None:
    process.detached.keep(*process.begin(), ALICE)
    process.detached.leave_all()
    (left,) = process.detached.left
    following.take_over([Left(left.caller, left.kept, left.begun, float("inf"))] * 2)
    assert len(following.detached) == 1
    following.turn(WINDOW)
    assert len(following.detached) == 0


@pytest.mark.parametrize("reason", ["nobody follows", "unknown id", "large media", "no window"])
def test_what_nobody_could_resume_is_not_left(reason: str) -> None:
    process = Process(leaves=reason != "nobody follows", window=0.0 if reason == "no window" else WINDOW)
    image = {"type": "image", "data": "A" * (MAX_MEDIA_KEPT + 1)}
    prompt = [{"role": "user", "content": [image]}] if reason == "large media" else "Once"
    dialect, session = process.begin(known=reason != "unknown id", tokens=0, prompt=prompt)
    assert not process.detached.can_leave(dialect, session)
    process.detached.keep(dialect, session, ALICE)
    process.detached.leave_all()
    assert (process.detached.left, session.state) == ([], State.DONE)
    process.close()


def test_its_time_stands_still_until_it_is_left(process: Process) -> None:
    process.detached.keep(*process.begin(), ALICE)
    process.turn(WINDOW - 20)
    process.detached.leave_all()
    process.turn(WINDOW)
    before = time.time()
    (left,) = process.detached.left
    assert before + 20 <= left.expires_at <= time.time() + 20


def test_what_is_lost_while_the_daemon_drains_is_left_too(process: Process) -> None:
    process.detached.leave_all()
    dialect, session = process.begin()
    process.detached.keep(dialect, session, ALICE)
    (left,) = process.detached.left
    assert left.kept.text == "0 1 2 "
    assert len(process.detached) == 0
