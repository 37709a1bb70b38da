"""llama-server's way to steer a completion that runs, by its id: whose it is, what is asked, and what is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from http_world import HttpWorld, post

from umaserve.core.commands import EndThought, Modify, Pause
from umaserve.core.events import Prefilled, Token
from umaserve.sessions.session import Hold, Session

PATH = "/v1/chat/completions/control"
CHAT = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
NONE = {"success": False, "message": "no active completion for this id"}


@pytest.fixture
def world() -> Iterator[HttpWorld]:
    world = HttpWorld()
    yield world
    world.close()


def started(world: HttpWorld, path: str = "/v1/chat/completions", **fields: Any) -> list[Session]:
    before = {session.id for session in world.sessions.running()}
    world.send(post(path, {**CHAT, "prompt": "hi", **fields}))
    return [session for session in world.sessions.running() if session.id not in before]


def asked(world: HttpWorld, body: Any, peer: str = "ip:127.0.0.1", path: str = PATH) -> Any:
    """The reply to another connection of ``peer``: the status where it is an error, with what it says."""
    client, connection = world.join(peer)
    client.sendall(post(path, body))
    world.turn()
    received = client.recv(65536)
    connection.channel.abort()
    client.close()
    reply = json.loads(received.partition(b"\r\n\r\n")[2])
    status = int(received.split()[1])
    return reply if status == 200 else (status, reply["error"]["message"])


def test_a_paused_completion_goes_on(world: HttpWorld) -> None:
    (session,) = started(world)
    assert asked(world, {"id": session.request.id, "action": "pause"}) == {"success": True}
    assert session.holds == {Hold.PAUSE}
    assert asked(world, {"id": session.request.id, "action": "resume"}, path=PATH[3:]) == {"success": True}
    assert not session.holds


def test_a_cancelled_completion_ends_as_at_a_stop_string(world: HttpWorld) -> None:
    (session,) = started(world)
    world.sessions.put(session, Prefilled(3))
    world.sessions.put(session, Token("a", 1))
    world.deliver()
    assert asked(world, {"id": session.request.id, "action": "cancel"}) == {"success": True}
    world.deliver()
    assert session.ended
    assert re.findall(rb'"finish_reason":"(\w+)"', world.received()) == [b"stop"]
    assert asked(world, {"id": session.request.id, "action": "cancel"}) == NONE


def commands(session: Session, world: HttpWorld) -> list[Any]:
    return world.sessions._changes.get(session.id, [])


def test_a_thought_is_ended(world: HttpWorld) -> None:
    (session,) = started(world)
    assert asked(world, {"id": session.request.id, "action": "reasoning_end"}) == {"success": True}
    assert commands(session, world) == [EndThought()]


def test_parameters_are_changed(world: HttpWorld) -> None:
    (session,) = started(world, temperature=0.5, top_k=3)
    wanted = {"temperature": 1.5, "max_tokens": 9, "stop": "x"}
    assert asked(world, {"id": session.request.id, "action": "modify", "parameters": wanted}) == {"success": True}
    (command,) = commands(session, world)
    assert isinstance(command, Modify)
    assert (command.request.sampling.temperature, command.request.sampling.top_k) == (1.5, 3)
    assert (command.request.max_tokens, command.request.stop) == (9, ("x",))


def test_all_answers_of_one_request_are_steered(world: HttpWorld) -> None:
    sessions = started(world, n=2)
    of_all = sessions[0].request.id.rpartition("-")[0]
    assert asked(world, {"id": of_all, "action": "pause"}) == {"success": True}
    assert [session.holds for session in sessions] == [{Hold.PAUSE}] * 2
    assert asked(world, {"id": sessions[1].request.id, "action": "resume"}) == {"success": True}
    assert [session.holds for session in sessions] == [{Hold.PAUSE}, set()]


@pytest.mark.parametrize("action", ["pause", "cancel", "reasoning_end", "modify"])
def test_nobody_else_steers_it(world: HttpWorld, action: str) -> None:
    (session,) = started(world)
    body = {"id": session.request.id, "action": action, "parameters": {"temperature": 2}}
    assert asked(world, body, peer="ip:127.0.0.2") == NONE
    assert not session.ended
    assert not session.holds
    assert commands(session, world) == []


def test_nobody_steers_who_cannot_be_told_from_others(world: HttpWorld) -> None:
    (session,) = started(world)
    through_relay = world.services.facts(replace(session.caller, several=True))
    assert through_relay.steer(session.request.id, lambda _request: Pause()) == 0
    assert world.services.facts(session.caller).steer(session.request.id, lambda _request: Pause()) == 1
    assert session.holds == {Hold.PAUSE}


@pytest.mark.parametrize("given", ["chatcmpl", "-0", "chatcmpl-0", "x" * 256])
def test_ids_of_none_that_runs(world: HttpWorld, given: str) -> None:
    started(world)
    assert asked(world, {"id": given, "action": "pause"}) == NONE


def test_a_generation_has_its_own_ways(world: HttpWorld) -> None:
    (session,) = started(world, "/v1/generate", messages=None)
    assert asked(world, {"id": session.request.id, "action": "pause"}) == NONE


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"action": "pause"}, "id: expected a non-empty string of at most 256 bytes, got null"),
        ({"id": 5, "action": "pause"}, "id: expected a non-empty string of at most 256 bytes, got a whole number"),
        (
            {"id": "x", "action": "jump"},
            'action: expected "reasoning_end" or "pause" or "resume" or "modify" or "cancel", got "jump"',
        ),
        ({"id": "", "action": "modify"}, "id: expected a non-empty string of at most 256 bytes, got an empty one"),
    ],
)
def test_what_is_refused(world: HttpWorld, body: Any, said: str) -> None:
    assert asked(world, body) == (400, said)


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        (None, "parameters: expected at least one of "),
        ({"x": 1}, "parameters: expected at least one of "),
        ({"grammar": 'root ::= "a"'}, "parameters.grammar: expected to be absent, since it can't change while"),
        ({"temperature": 11}, "parameters.temperature: expected a number from 0 to 10, got 11"),
        ({"stop_token_ids": [123456789]}, "parameters: expected token ids below 256, the vocabulary's size, got 1234"),
    ],
)
def test_changes_that_are_refused(world: HttpWorld, parameters: Any, said: str) -> None:
    sessions = started(world, n=2)
    of_all = sessions[0].request.id.rpartition("-")[0]
    status, message = asked(world, {"id": of_all, "action": "modify", "parameters": parameters})
    assert (status, message[: len(said)]) == (400, said)
    assert [commands(session, world) for session in sessions] == [[], []]
