"""The simulated fleet answers every request once, and shows what routing by prefix is for; so do measured turns."""

from __future__ import annotations

import pytest

from bench import fleet, turns
from bench.fleet_simulator import IN_ORDER, LOWEST_LOAD, POLICIES, PREFIX, Fleet, Load

LOAD = Load(think_s=5.0, places=4)
SECONDS = 90.0


@pytest.mark.parametrize("policy", POLICIES)
def test_each_request_is_given_to_one_worker_and_answered(policy: str) -> None:
    made = Fleet(policy, 3, 40, LOAD, seed=1)
    served = made.run(SECONDS)
    asked = made.served
    assert len(served) > 200
    for one in served:
        assert not one.failed
        assert one.asked_at <= one.given_at < one.first_at <= SECONDS
        assert LOAD.system <= one.reused < one.prompt
    assert made.pool.totals["requests"] == len(asked)
    unanswered = len(asked) - made.pool.totals["completed"]
    assert unanswered == len(made.pool.in_flight) + len(made.pool.queue)
    assert [one.asked_at for one in Fleet(policy, 3, 40, LOAD, seed=1).run(SECONDS)] == [one.asked_at for one in served]


def test_by_prefix_more_is_reused() -> None:
    shares = {}
    for policy in (PREFIX, LOWEST_LOAD):
        served = Fleet(policy, 5, 50, LOAD, seed=1).run(SECONDS)
        shares[policy] = sum(one.reused for one in served) / sum(one.prompt for one in served)
    assert shares[PREFIX] > 1.2 * shares[LOWEST_LOAD]


def test_more_is_reused_by_those_who_wait_for_their_worker() -> None:
    shares = {}
    for policy in (PREFIX, IN_ORDER):
        made = Fleet(policy, 5, 120, LOAD, seed=1)
        served = made.run(SECONDS)
        assert sum(one.given_at > one.asked_at for one in served) > 200
        shares[policy] = sum(one.reused for one in served) / sum(one.prompt for one in served)
    assert shares[PREFIX] > 1.2 * shares[IN_ORDER]


def test_it_prints_a_row_for_each_policy(capsys: pytest.CaptureFixture[str]) -> None:
    assert fleet.main(["--workers", "3", "--clients", "20", "--seconds", "120"]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")][2:]
    assert [row.split("|")[3].strip() for row in rows] == [*POLICIES]


def test_of_measured_turns_the_later_ones_are_compared() -> None:
    slow = [turns.Turn(number, 0.4 if number > 1 else 9.0) for number in range(1, 7)] * 4
    fast = [turns.Turn(number, 0.1 if number > 1 else 9.0) for number in range(1, 7)] * 4
    lines = turns.report({"prefix": fast, "load": slow}).splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    assert cells == [
        ["prefix", "20", "100", "100", "100"],
        ["load", "20", "400", "400", "400"],
        ["times better", "", "4.0", "4.0", "4.0"],
    ]
