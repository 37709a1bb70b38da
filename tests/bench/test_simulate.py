"""The simulator loses nobody and nothing, shows what policies are for, and reads its boxes."""

from __future__ import annotations

import dataclasses
import itertools
import sys
from pathlib import Path

import numpy as np
import orjson
import pytest

from bench import simulate
from bench.box import Box
from bench.simulator import POLICIES, Job, Load, Run, Simulation, jobs, most_rate
from umaserve.core.errors import ConfigError
from umaserve.core.requests import Priority
from umaserve.scheduler.policy.snapshot import AGING_S, Plan
from umaserve.sessions.cost_model import Cost

BOX = Box(Cost(0.002, 0.004, 0.003, 0.0001), slots=8, cells=4000, batch_tokens=256)
LOAD = Load(prompt_tokens=60, answer_tokens=10)
COUNT = 400


def run(policy: str, load: float, **options: float) -> Run:
    """``COUNT`` sessions at ``load`` times what the box could carry."""
    rate = load * most_rate(BOX, jobs(LOAD, COUNT, 1.0, seed=1))
    return Simulation(BOX, jobs(LOAD, COUNT, rate, seed=1), POLICIES[policy], **options).run()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("load", [0.3, 1.5])
def test_every_session_ends_once_with_all_its_tokens_or_is_refused(policy: str, load: float):
    done = run(policy, load, queue=32, noise=0.2)
    assert [job.id for job in done.sessions] == list(range(COUNT))
    for job in done.sessions:
        made = (0, 0) if job.refused else (job.answer_tokens, job.prompt_tokens + job.answer_tokens - 1)
        assert (job.generated, job.computed) == made
        assert job.refused or job.arrived_at < job.first_token_at <= job.last_token_at <= done.ended_at
        assert not job.placed
    gaps = sum(job.generated - 1 for job in done.sessions if job.generated and job.priority is Priority.INTERACTIVE)
    assert len(done.gaps) == gaps
    assert any(job.refused for job in done.sessions) == (load > 1)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_session_ends_whole_where_answers_outgrow_the_cells(policy: str):
    narrow = dataclasses.replace(BOX, cells=1500)
    load = Load(prompt_tokens=40, answer_tokens=100)
    simulation = Simulation(narrow, jobs(load, 100, 2.0, seed=1), POLICIES[policy], queue=100)
    preempted, give_way = [], simulation._give_way
    simulation._give_way = lambda job: (preempted.append(job.id), give_way(job))
    for job in simulation.run().sessions:
        assert (job.generated, job.placed) == (job.answer_tokens, False)
    assert preempted


def test_the_same_seed_makes_the_same_run():
    assert run("umaserve", 0.9, noise=0.3, seed=3) == run("umaserve", 0.9, noise=0.3, seed=3)
    assert run("umaserve", 0.9, noise=0.3, seed=3) != run("umaserve", 0.9, noise=0.3, seed=4)


def test_background_work_that_has_aged_waits_no_longer_than_the_interactive_before_it():
    done = run("umaserve", 1.5, queue=COUNT)
    served = [job for job in done.sessions if job.ttft_s > AGING_S]
    assert any(job.priority is Priority.BACKGROUND for job in served)
    for job, later in itertools.combinations(served, 2):
        if later.arrived_at > job.arrived_at + AGING_S:
            assert later.first_token_at > job.first_token_at, "a newcomer does not overtake who has waited so long"


def test_first_come_first_served_has_worse_gaps_than_ours_in_a_loaded_system():
    worst = {name: float(np.percentile(run(name, 0.8).gaps, 99)) for name in POLICIES}
    assert worst["umaserve"] <= LOAD.tbt_s < worst["decode first"]
    assert worst["umaserve"] < worst["first come"]


def test_more_sessions_keep_their_targets_with_ours():
    attained = {name: sum(job.attained for job in run(name, 0.9).sessions) for name in POLICIES}
    assert max(attained, key=attained.__getitem__) == "umaserve"


def test_what_one_session_alone_takes_is_its_ticks():
    job = Job(0, 5.0, 10, 3, 8, Priority.INTERACTIVE, 1.0, 0.1)
    done = Simulation(BOX, [job], POLICIES["umaserve"]).run()
    cost = BOX.cost
    times = [cost.seconds(0, 10, 0), cost.seconds(1, 0, 10), cost.seconds(1, 0, 11)]
    assert done.ticks == 3
    assert list(done.gaps) == pytest.approx(times[1:])
    assert done.ended_at == pytest.approx(5.0 + sum(times))
    assert job.computed == 0, "the sessions given are left as they are"


def test_a_policy_that_plans_nothing_for_ever_is_told_so():
    with pytest.raises(RuntimeError, match="1 sessions wait for ever"):
        Simulation(BOX, jobs(LOAD, 1, 1.0, seed=1), lambda _snapshot: Plan(())).run()


def test_a_session_that_never_fits_is_refused_beforehand():
    with pytest.raises(ValueError, match=r"a session of .* cells can't run on a box with 50"):
        Simulation(dataclasses.replace(BOX, cells=50), jobs(LOAD, 9, 1.0, seed=1), POLICIES["umaserve"])


# Boxes.


def good() -> dict[str, object]:
    capacity = {"slots": BOX.slots, "cells": BOX.cells, "batch_tokens": BOX.batch_tokens}
    return {"note": "invented", **dataclasses.asdict(BOX.cost), **capacity}


@pytest.mark.parametrize("file", sorted(simulate.COSTS.glob("*.json")), ids=lambda file: file.stem)
def test_the_boxes_that_come_along_can_be_read_and_say_where_they_are_from(file: Path):
    assert Box.load(file).note


def test_a_box_is_read_as_it_was_written(tmp_path: Path):
    file = tmp_path / "box.json"
    file.write_bytes(orjson.dumps(good()))
    assert Box.load(file) == dataclasses.replace(BOX, note="invented")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"slots": "8"}, "box.slots: expected a whole number from 1 to 65536, got a string"),
        ({"cells": 0}, "box.cells: expected a whole number from 1 to"),
        ({"fixed_s": -1}, "box.fixed_s: expected a number from 0 to 60, got -1"),
        ({"prefill_row_s": 0}, "box.prefill_row_s: expected a number above 0 up to 60, got 0"),
        ({"attention_s": None}, "box.attention_s: expected a number of seconds, got null"),
        ({"batch_tokens": None}, "box.batch_tokens: expected a whole number, got null"),
        ({"batch_tokens": 7}, "box.slots: expected at most batch_tokens, got 8"),
        ({"note": 1}, "box.note: expected a string"),
        ({"colour": "red"}, 'box: expected only fixed_s, .*, note, got "colour"'),
    ],
)
def test_a_wrong_box_is_refused_with_the_name_of_its_field(tmp_path: Path, change: dict[str, object], message: str):
    file = tmp_path / "box.json"
    file.write_bytes(orjson.dumps(good() | change))
    with pytest.raises(ConfigError, match=f"^{file}: {message}"):
        Box.load(file)


@pytest.mark.parametrize(
    ("text", "message"), [(b"[]", "box: expected an object, got an array"), (b"{", "payload: not valid JSON")]
)
def test_what_is_no_object_is_refused(tmp_path: Path, text: bytes, message: str):
    (tmp_path / "box.json").write_bytes(text)
    with pytest.raises(ConfigError, match=message):
        Box.load(tmp_path / "box.json")


# The command.


def test_the_command_prints_a_row_for_each_policy_and_load(capsys: pytest.CaptureFixture[str]):
    assert simulate.main(["--sessions", "40", "--rates", "20", "80", "--background", "0"]) == 0
    output = capsys.readouterr()
    rows = [line for line in output.out.splitlines() if line.startswith("|")]
    assert len(rows) == 2 + 2 * len(POLICIES)
    assert [row.split("|")[3].strip() for row in rows[2:]] == 2 * [*POLICIES]
    assert all(row.split("|")[9].strip() == "-" for row in rows[2:]), "there is no background work"
    assert output.err.count("sessions/s") == 2 * len(POLICIES)


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--box", "/nowhere.json"], 2, "/nowhere.json: No such file"),
        (["--background", "2"], 2, "expected a number from 0 to 1, got 2"),
        (["--rates", "0"], 2, "expected a number above 0, got 0"),
        (["--sessions", "0"], 2, "expected at least 1, got 0"),
        (["--sessions", "9", "--answer-tokens", "9999"], 1, "can't run on a box with 16384"),
    ],
)
def test_a_wrong_argument_is_told_in_a_line(
    arguments: list[str], status: int, message: str, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit) as exited:
        simulate.main(arguments)
    assert exited.value.code == status
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_without_matplotlib_the_table_is_printed_and_the_message_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(SystemExit) as exited:
        simulate.main(["--sessions", "9", "--rates", "50", "--png", str(tmp_path / "curves.png")])
    output = capsys.readouterr()
    assert exited.value.code == 1
    assert "umaserve[bench]" in output.err
    assert output.out.startswith("## Simulated")


def test_the_curves_are_drawn(tmp_path: Path):
    pytest.importorskip("matplotlib")
    file = tmp_path / "curves.png"
    simulate.main(["--sessions", "9", "--rates", "50", "90", "--png", str(file)])
    assert file.read_bytes().startswith(b"\x89PNG")
