"""Slots, cells and host memory, played as the scheduler plays them against an engine that holds lists."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from examples import examples
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from standin import SAVED_BYTES, StandInMemory

from umaserve.core.requests import Generate
from umaserve.kvcache.prefix_cache import MIN_REUSED
from umaserve.kvcache.slots import Room, Slots
from umaserve.sessions.caller import Caller
from umaserve.sessions.engine_api import Capacity, SavedBytes
from umaserve.sessions.kv_operations import Copy, Load, Release, Save, Shed
from umaserve.sessions.manager import SessionManager
from umaserve.sessions.session import Session

TOKEN = st.integers(0, 1)
OWNERS = st.sampled_from(["one", "two"])
INDEX = st.integers(0, 9)
LONGEST = 24
PROMPTS = st.builds(lambda same, then: [0] * same + then, st.integers(0, 12), st.lists(TOKEN, min_size=1, max_size=4))
"""Many begin alike."""


def session(number: int = 0) -> Session:
    return Session(number, SessionManager(), Generate("r", "hello"), print, Caller("uds", "uid:1000"))


def capacity(
    *,
    slots: int = 3,
    cells: int = 60,
    sequences: int = 0,
    cached_cells: int = 0,
    host_bytes: int = 0,
    takes_back: bool = True,
    divisions: Sequence[tuple[int, int]] = (),
) -> Capacity:
    saved_bytes = SAVED_BYTES if host_bytes else SavedBytes()
    return Capacity(
        slots,
        cells,
        LONGEST,
        16,
        sequences=sequences or slots,
        cached_cells=cached_cells,
        takes_back=takes_back,
        host_bytes=host_bytes,
        saved_bytes=saved_bytes,
        divisions=divisions,
    )


@dataclass
class Player:
    """A session with what it computes and for whom."""

    session: Session
    scope: str
    tokens: list[int]
    prompt: int
    """How many of the tokens are the prompt's."""


class Played(RuleBasedStateMachine):
    @initialize(
        slots=st.integers(1, 3),
        more=st.integers(0, 3),
        cells=st.integers(LONGEST, 60),
        cached_cells=st.sampled_from([30, 60, 12, 1, 0]),
        host_bytes=st.sampled_from([0, 30, 70, 200]),
        divided=st.booleans(),
        takes_back=st.booleans(),
    )
    def begin(
        self, slots: int, more: int, cells: int, cached_cells: int, host_bytes: int, divided: bool, takes_back: bool
    ) -> None:
        divided &= cached_cells > 0
        self.capacity = capacity(
            slots=slots,
            cells=cells,
            sequences=slots + more,
            cached_cells=min(cached_cells, cells),
            host_bytes=host_bytes,
            takes_back=takes_back or cached_cells > 0,
            divisions=[(parts, cells // parts) for parts in (3, 2) if divided and parts <= slots + more],
        )
        self.slots = Slots(self.capacity)
        self.memory = StandInMemory(self.capacity)
        self.players: list[Player] = []
        self.numbers = itertools.count()
        self.shed = False

    def tick(self) -> None:
        """What a tick does before its own work, after which each session finds what it counts on."""
        self.memory.move(self.slots.take_kv_operations())
        for player in self.players:
            assert player.session.slot is not None
            assert self.memory.tokens(player.session.slot) == player.tokens[: player.session.computed]
            made = {cell.made for cell in self.memory.sequences[player.session.slot]}
            assert made <= {player.scope}, "somebody else's tokens"
        assert sum(map(len, self.memory.sequences)) - self.slots.used_cells == self.slots.cached_cells
        if self.shed:
            assert self.memory.saved == {}
        self.shed = False

    def compute(self, player: Player, count: int) -> None:
        self.tick()
        at = player.session.computed
        end = self.slots.coming.before_checkpoint(player.session, min(at + count, len(player.tokens)))
        assert player.session.slot is not None
        self.memory.add(player.session.slot, player.tokens[at:end], player.scope)
        player.session.computed = end
        if at < player.prompt:
            self.slots.share(player.session, player.tokens[:end], whole=end >= player.prompt)

    @precondition(lambda self: self.slots.free and self.slots.free_cells > 1)
    @rule(scope=OWNERS, tokens=PROMPTS, extra=st.integers(1, 8))
    def take(self, scope: str, tokens: list[int], extra: int) -> None:
        free = min(self.slots.free_cells, self.slots.max_cells)
        prompt = tokens[: free - 1]
        cells = min(len(prompt) + extra, free)
        player = Player(session(next(self.numbers)), scope, prompt, len(prompt))
        reusable = self.slots.reusable(scope, prompt)
        assert reusable == 0 or MIN_REUSED <= reusable < len(prompt)
        slot = self.slots.take(player.session, Room(cells, prompt, scope))
        assert (player.session.slot, player.session.cells) == (slot, cells)
        # What was saved may be gone when others have been saved to make way.
        assert player.session.computed in (reusable, 0)
        self.players.append(player)

    @precondition(lambda self: self.slots.free and self.slots.free_cells > 1)
    @rule(scope=OWNERS, tokens=PROMPTS, extra=st.integers(1, 8))
    def come_and_go(self, scope: str, tokens: list[int], extra: int) -> None:
        self.take(scope, tokens, extra)
        player = self.players[-1]
        self.compute(player, len(tokens))
        self.players.pop()
        self.slots.give_up(player.session, player.tokens, keep=True)

    @precondition(lambda self: self.players)
    @rule(index=INDEX, count=st.integers(1, 16), following=st.lists(TOKEN, min_size=1, max_size=5))
    def go_on(self, index: int, count: int, following: list[int]) -> None:
        """Prefill, or decode where that is done."""
        player = self.players[index % len(self.players)]
        if player.session.computed == len(player.tokens):
            player.tokens = (player.tokens + following)[: player.session.cells]
        self.compute(player, count)

    @precondition(lambda self: self.players)
    @rule(index=INDEX, keep=st.booleans(), unsure=st.integers(0, 3))
    def give_up(self, index: int, keep: bool, unsure: int) -> None:
        """``unsure``: so many of the last tokens are not the sequence's."""
        player = self.players.pop(index % len(self.players))
        self.slots.give_up(player.session, player.tokens[: max(0, player.session.computed - unsure)], keep=keep)
        assert (player.session.slot, player.session.cells) == (None, 0)

    @precondition(lambda self: self.players)
    @rule(index=INDEX)
    def fail(self, index: int) -> None:
        """Nobody knows what the slot holds."""
        self.tick()
        player = self.players.pop(index % len(self.players))
        assert player.session.slot is not None
        del self.memory.sequences[player.session.slot][player.session.computed // 2 :]
        self.slots.give_up(player.session, [], keep=True)

    @precondition(lambda self: self.players)
    @rule(index=INDEX, extra=st.integers(0, 12))
    def promise(self, index: int, extra: int) -> None:
        player = self.players[index % len(self.players)]
        before, cells = player.session.cells, min(len(player.tokens) + extra, LONGEST)
        possible = cells - before <= self.slots.free_cells and cells <= max(before, self.slots.max_cells)
        assert self.slots.promise(player.session, cells) == possible
        assert player.session.cells == (cells if possible else before)

    @precondition(lambda self: self.capacity.divisions)
    @rule(which=INDEX)
    def divide(self, which: int) -> None:
        ways = [(0, self.capacity.cells), *self.capacity.divisions]
        needs = [player.session.cells for player in self.players]
        fitting = [p for p, each in ways if not p or (p >= len(needs) and max(needs, default=0) <= each)]
        self.slots.divide(fitting[which % len(fitting)])

    @precondition(lambda self: self.players)
    @rule(index=INDEX)
    def close_gaps(self, index: int) -> None:
        self.slots.close_gaps([player.session for player in self.players[: index + 1]])

    @rule()
    def forget_cached(self) -> None:
        self.slots.forget_cached()
        assert self.slots.cached_cells == self.slots.host_bytes == 0
        self.shed = True
        self.tick()

    @rule()
    def tick_without_work(self) -> None:
        self.tick()

    @invariant()
    def promises_hold(self) -> None:
        promised = sum(player.session.cells for player in self.players)
        assert self.slots.free_cells == self.capacity.cells - promised >= 0
        assert promised + self.slots.cached_cells <= self.capacity.cells
        assert 0 <= self.slots.free <= self.capacity.slots - len(self.players)
        assert all(player.session.cells <= self.slots.max_cells for player in self.players)
        assert 0 <= self.slots.cached_cells <= self.capacity.cached_cells
        assert 0 <= self.slots.host_bytes <= self.capacity.host_bytes
        held = [player.session.slot for player in self.players]
        assert len(set(held)) == len(held)
        assert list(self.slots.holders) == [player.session for player in self.players]


TestPlayed = Played.TestCase
TestPlayed.settings = settings(max_examples=examples(150), stateful_step_count=40)


# What becomes of what is kept.


def leave(slots: Slots, tokens: list[int], number: int = 0, prompt: int | None = None) -> int:
    """A session that computes ``tokens``, of which so many are its prompt, and ends; where they are kept."""
    one = session(number)
    slot = slots.take(one, Room(len(tokens), tokens[:prompt], ""))
    one.computed = len(tokens)
    slots.share(one, tokens)
    slots.give_up(one, tokens, keep=True)
    slots.take_kv_operations()
    return slot


def begin(slots: Slots, tokens: list[int], cells: int = 0, number: int = 1) -> Session:
    one = session(number)
    slots.take(one, Room(cells or len(tokens), tokens, ""))
    return one


EIGHT = [1, 2, 3, 4, 5, 6, 7, 8]


def test_who_continues_all_that_is_kept_gets_its_slot() -> None:
    slots = Slots(capacity(sequences=6, cached_cells=60))
    kept = leave(slots, EIGHT)
    one = begin(slots, [*EIGHT, 9])
    assert (one.slot, one.computed, slots.cached_cells) == (kept, 8, 0)
    assert slots.take_kv_operations() == [Release(kept, 8)]


def test_who_continues_a_part_of_it_gets_a_copy_where_there_is_room() -> None:
    slots = Slots(capacity(sequences=6, cached_cells=60))
    kept = leave(slots, EIGHT)
    one = begin(slots, [*EIGHT[:5], 9])
    assert one.slot is not None
    assert (one.slot != kept, one.computed, slots.cached_cells) == (True, 5, 8)
    assert slots.take_kv_operations() == [Copy(kept, one.slot, 5)]


def test_a_prompt_that_comes_again_is_computed_in_the_cells_it_had() -> None:
    slots = Slots(capacity(sequences=6, cached_cells=60))
    kept = leave(slots, [*EIGHT, 9, 10], prompt=8)
    leave(slots, [7] * 8)
    for _ in range(3):
        one = begin(slots, EIGHT)
        assert (one.slot, one.computed) == (kept, 7)
        assert slots.take_kv_operations() == [Release(kept, 7)]
        slots.give_up(one, [*EIGHT, 9, 10], keep=True)
        slots.take_kv_operations()


def test_one_that_a_longer_prompt_began_with_is_computed_in_a_copy() -> None:
    slots = Slots(capacity(sequences=6, cached_cells=60))
    kept = leave(slots, [*EIGHT, 9, 10], prompt=9)
    one = begin(slots, EIGHT)
    assert one.slot is not None
    assert slots.take_kv_operations() == [Copy(kept, one.slot, 7)]


@pytest.mark.parametrize("scarce", [{"sequences": 1, "slots": 1}, {"cells": 20}], ids=["slots", "cells"])
def test_it_is_cut_short_for_who_continues_a_part_where_there_is_none(scarce: dict[str, int]) -> None:
    slots = Slots(capacity(**{"sequences": 6, "cached_cells": 20} | scarce))
    kept = leave(slots, EIGHT)
    one = begin(slots, [*EIGHT[:5], 9], cells=16)
    assert (one.slot, one.computed, slots.cached_cells) == (kept, 5, 0)
    assert slots.take_kv_operations() == [Release(kept, 5)]


def test_fewer_than_are_worth_it_are_not_reused() -> None:
    slots = Slots(capacity(sequences=6, cached_cells=60))
    leave(slots, EIGHT)
    assert begin(slots, [*EIGHT[: MIN_REUSED - 1], 9], number=1).computed == 0
    assert begin(slots, [*EIGHT[:MIN_REUSED], 9], number=2).computed == MIN_REUSED
    assert begin(slots, EIGHT[: MIN_REUSED + 1], number=3).computed == MIN_REUSED, "the last one gives the logits"


def test_the_one_used_longest_ago_goes_first() -> None:
    slots = Slots(capacity(sequences=6, cached_cells=16))
    leave(slots, [1] * 8)
    leave(slots, [2] * 8)
    slots.give_up(begin(slots, [1] * 5), [], keep=False)
    slots.take_kv_operations()
    leave(slots, [3] * 8)
    assert [slots.reusable("", [number] * 9) for number in (1, 2, 3)] == [8, 0, 8]


def test_what_was_saved_is_loaded_and_cut_to_what_is_wanted() -> None:
    slots = Slots(capacity(slots=1, sequences=1, cached_cells=60, host_bytes=100))
    leave(slots, EIGHT)
    other = begin(slots, [9] * 8)
    size = SAVED_BYTES[0] + SAVED_BYTES[1] * len(EIGHT)
    assert slots.take_kv_operations() == [Save(0, 0, size), Release(0)]
    assert slots.host_bytes == size
    slots.give_up(other, [], keep=True)
    slots.take_kv_operations()
    assert begin(slots, [*EIGHT[:6], 9]).computed == 6
    assert slots.take_kv_operations() == [Load(0, size, 0), Release(0, 6)]
    slots.forget_cached()
    assert (slots.host_bytes, slots.take_kv_operations()) == (0, [Shed()])


@pytest.mark.parametrize("moment", ["computing", "computed"])
def test_what_another_computes_can_be_awaited_and_then_shared(moment: str) -> None:
    slots = Slots(capacity(sequences=6, cached_cells=60))
    one = begin(slots, EIGHT)
    if moment == "computed":
        slots.share(one, EIGHT)
    coming = slots.coming.match("", [*EIGHT, 9])
    assert (coming and (coming.holder, coming.length)) == ((one.id, 8) if moment == "computing" else None)
    assert slots.reusable("", [*EIGHT, 9]) == (0 if moment == "computing" else 8)
    assert slots.coming.match("another", [*EIGHT, 9]) is None
    slots.give_up(one, [], keep=True)
    assert (slots.coming.match("", [*EIGHT, 9]), slots.reusable("", [*EIGHT, 9])) == (None, 0)


@pytest.mark.parametrize("change", ["take", "share", "give_up", "forget_cached"])
def test_every_change_of_what_can_be_reused_can_be_seen(change: str) -> None:
    slots = Slots(capacity(sequences=6, cached_cells=60))
    leave(slots, [9] * 8)
    one = begin(slots, EIGHT)
    before = slots.version
    match change:
        case "take":
            begin(slots, [7] * 8, number=2)
        case "share":
            slots.share(one, EIGHT)
        case "give_up":
            slots.give_up(one, EIGHT, keep=True)
        case "forget_cached":
            slots.forget_cached()
    assert slots.version > before


def test_a_slot_is_given_up_once() -> None:
    slots = Slots(capacity())
    one = begin(slots, EIGHT)
    slots.give_up(one, EIGHT, keep=True)
    with pytest.raises(RuntimeError, match="session 1 has no slot"):
        slots.give_up(one, EIGHT, keep=True)


# -- sequences that can't be cut ---------------------------------------------------------------------------------------


class Uncut:
    """Sessions on slots whose sequences can't be cut, each with so much prompt that checkpoints pay."""

    def __init__(self) -> None:
        self.capacity = Capacity(3, 20000, 10000, 16, sequences=3, host_bytes=10**6, saved_bytes=SAVED_BYTES)
        self.slots = Slots(self.capacity)
        self.memory = StandInMemory(self.capacity)
        self.numbers = itertools.count()

    def take(self, tokens: list[int], **room: bool) -> Session:
        one = session(next(self.numbers))
        self.slots.take(one, Room(len(tokens) + 8, tokens, "", **room))
        return one

    def compute(self, one: Session, tokens: list[int], end: int) -> list[int]:
        """Compute up to ``end``; returns where the runs end."""
        ends = []
        while one.computed < end:
            self.memory.move(self.slots.take_kv_operations())
            until = self.slots.coming.before_checkpoint(one, end)
            assert one.slot is not None
            self.memory.add(one.slot, tokens[one.computed : until], "")
            one.computed = until
            self.slots.share(one, tokens[:until], whole=until == len(tokens))
            ends.append(until)
        return ends

    def run(self, tokens: list[int], **room: bool) -> tuple[int, list[int]]:
        """One session from start to end; returns how much it reused, and where its runs ended."""
        one = self.take(tokens, **room)
        reused = one.computed
        ends = self.compute(one, tokens, len(tokens))
        self.slots.give_up(one, tokens, keep=True)
        self.memory.move(self.slots.take_kv_operations())
        return reused, ends


def test_what_can_not_be_cut_is_saved_shortly_before_its_prompts_end_and_at_its_end():
    world = Uncut()
    prompt = list(range(1, 101))
    assert world.run(prompt) == (0, [96, 100])
    assert world.run(prompt) == (96, [100])
    assert world.run([*prompt, 7, 7]) == (100, [102])
    assert world.run([*prompt[:97], *[0] * 40]) == (96, [133, 137])


def test_a_long_prompt_is_saved_at_doubling_lengths():
    world = Uncut()
    prompt = [1 + number % 250 for number in range(5000)]
    assert world.run(prompt) == (0, [1024, 2048, 4096, 4996, 5000])
    assert world.run([*prompt[:3000], 0, *prompt[3000:]])[0] == 2048


def test_where_prompts_part_the_second_is_saved_for_the_third():
    world = Uncut()
    system = list(range(1, 61))
    assert world.run([*system, *[100] * 40]) == (0, [96, 100])
    assert world.run([*system, *[101] * 40]) == (0, [60, 96, 100])
    assert world.run([*system, *[102] * 40]) == (60, [96, 100])


def test_where_a_prompt_parts_from_one_in_prefill_that_one_is_saved():
    world = Uncut()
    system = list(range(1, 61))
    first, second = [*system, *[100] * 40], [*system, *[101] * 40]
    one = world.take(first)
    assert world.compute(one, first, 20) == [20]
    assert world.slots.coming.match("", second) == (one.id, 60)
    assert world.compute(one, first, 100) == [60, 96, 100]
    assert world.slots.reusable("", second) == 60
    assert world.run(second) == (60, [96, 100])


def test_what_nobody_may_reuse_has_no_checkpoints():
    world = Uncut()
    assert world.run(list(range(1, 101)), shared=False) == (0, [100])


@pytest.mark.parametrize("length", [1, 3, 4, 19])
def test_a_short_prompt_has_no_checkpoints(length: int):
    assert Uncut().run([7] * length) == (0, [length])
