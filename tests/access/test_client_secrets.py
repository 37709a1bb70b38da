"""Client secrets: what they grant, and for how long."""

from __future__ import annotations

import pytest

from umaserve.access import client_secrets
from umaserve.access.client_secrets import MAX_OF_ONE, ClientSecrets
from umaserve.core.errors import RequestError
from umaserve.sessions.caller import Caller

MINE, OTHERS = Caller("realtime", "ip:10.0.0.1", "mine"), Caller("realtime", "ip:10.0.0.2")


def test_a_secret_is_valid_until_its_time_is_over() -> None:
    now = [0.0]
    made = ClientSecrets(lambda: now[0])
    value = made.new(MINE, {"instructions": "Be brief."}, 10)
    found = made.find(value)
    assert found is not None
    assert (found.key, found.settings) == ("mine", {"instructions": "Be brief."})
    assert made.find(value + "x") is None
    assert made.find("") is None
    now[0] = 10.0
    assert made.find(value) is None


def test_those_of_one_client_are_bounded_and_the_oldest_ends() -> None:
    made = ClientSecrets(lambda: 0.0)
    other = made.new(OTHERS, {}, 10)
    first, *rest = [made.new(MINE, {}, 10) for _ in range(MAX_OF_ONE + 1)]
    assert made.find(first) is None
    assert all(made.find(value) for value in (*rest, other))


def test_those_of_all_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_secrets, "MAX_SECRETS", 2)
    now = [0.0]
    made = ClientSecrets(lambda: now[0])
    made.new(OTHERS, {}, 10)
    made.new(MINE, {}, 20)
    with pytest.raises(RequestError, match="limit") as refused:
        made.new(MINE, {}, 10)
    assert refused.value.retry_after_s
    now[0] = 10.0
    assert made.new(MINE, {}, 10)
