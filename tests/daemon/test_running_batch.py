"""A batch from its first line to its end, whatever happens meanwhile: each line has one result, or none."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from umaserve.daemon.batches import work
from umaserve.daemon.batches.line_request import Answer
from umaserve.daemon.batches.running_batch import RunningBatch
from umaserve.daemon.batches.work import Sizes, Work
from umaserve.dialects.batches.lines import ENDPOINTS, Line
from umaserve.dialects.batches.states import Status
from umaserve.dialects.batches.stored_batch import StoredBatch, batch_of, packed_batch

BATCH_ID = "batch_" + "b" * 24
INPUT, OUTPUT, ERRORS = ("file-" + digit * 24 for digit in "123")
LATER = 4_000_000_000
"""When batches are made that don't expire before the test ends, in seconds since 1970."""
MAX_BYTES = 1 << 20


class Job:
    """A line that runs until the test answers it."""

    def __init__(self, line: Line, take: Callable[[Answer], None]) -> None:
        self.line = line
        self.take = take
        self.started = self.over = False

    def start(self) -> None:
        self.started = True

    def abandon(self) -> None:
        self.over = True

    def answer(self, status: int = 200, retry_after_s: float | None = None) -> None:
        self.over = True
        self.take(Answer(status, b'{"text":"a"}', retry_after_s))


class Box:
    """Implements ``running_batch.Host``. The thread does its next job when the test says so, and a daemon ends so
    too."""

    def __init__(self, path: Path, names: list[str], created_at: int = LATER, max_bytes: int = MAX_BYTES) -> None:
        self.path = path
        self.time = 0.0
        self.max_bytes = max_bytes
        self.key_valid = True
        self.jobs: list[Job] = []
        self.forgotten: list[str] = []
        self._thread: deque[tuple[Callable[[], object], Callable[[object], None]]] = deque()
        lines = [{"custom_id": name, "method": "POST", "url": ENDPOINTS[0], "body": {"messages": []}} for name in names]
        (path / INPUT).write_text("".join(json.dumps(line) + "\n" for line in lines))
        batch = StoredBatch(
            id=BATCH_ID,
            endpoint=ENDPOINTS[0],
            input_id=INPUT,
            output_id=OUTPUT,
            error_id=ERRORS,
            created_at=created_at,
            metadata=None,
        )
        self.row = self._unsaved = packed_batch(batch)
        self._ended = False
        self.start()

    def start(self) -> None:
        """Begin a daemon that knows what the row of the one before says."""
        self._thread.clear()
        self.jobs.clear()
        self._unsaved, self._ended = self.row, False
        batch = batch_of(BATCH_ID, self.row)
        self.running = RunningBatch(self, "ann", batch, Work(batch, self.file, self.max_bytes))
        if not batch.ended:
            self.running.begin()

    def file(self, name: str) -> str:
        return str(self.path / name)

    @property
    def batch(self) -> StoredBatch:
        return self.running.batch

    def step(self, *, killed: bool = False) -> bool:
        """Have the thread do its next job; returns whether there was one. ``killed``: the daemon hears no more of
        it."""
        if not self._thread:
            return False
        job, done = self._thread.popleft()
        try:
            result = job()
        except Exception as error:
            result = error
        if not killed:
            done(result)
        return True

    def save(self) -> None:
        """Have the row on disk say what is known in memory."""
        self.row = self._unsaved
        if self._ended:
            (self.path / BATCH_ID).unlink(missing_ok=True)

    def settle(self) -> None:
        while self.step():
            continue
        self.save()

    def start_lines(self, most: int = 4) -> None:
        while self.running.wants_place and self.running.in_work < most:
            self.running.start_line()

    def run(self) -> None:
        """Answer all lines until the batch has ended."""
        for _ in range(1000):
            self.settle()
            if self.batch.ended:
                return
            self.time += 10
            self.start_lines()
            for job in self.open_jobs:
                job.answer()
        raise AssertionError(self.batch.told())

    @property
    def open_jobs(self) -> list[Job]:
        return [job for job in self.jobs if not job.over]

    def results(self, name: str) -> list[str]:
        path = self.path / name
        return [json.loads(line)["custom_id"] for line in path.read_text().splitlines()] if path.exists() else []

    # -- Host ----------------------------------------------------------------------------------------------------

    def now(self) -> float:
        return self.time

    def submit(self, job: Callable[[], object], done: Callable[[object], None]) -> None:
        self._thread.append((job, done))

    def new_job(self, tenant: str, batch: StoredBatch, line: Line, take: Callable[[Answer], None]) -> Job | None:
        assert (tenant, batch.id) == ("ann", BATCH_ID)
        if not self.key_valid:
            return None
        self.jobs.append(Job(line, take))
        return self.jobs[-1]

    def changed(self, tenant: str, batch: StoredBatch) -> None:
        assert tenant == "ann"
        self._unsaved = packed_batch(batch)

    def ended(self, running: RunningBatch, sizes: Sizes) -> None:
        running.batch.files = frozenset(name for name, size in ((OUTPUT, sizes.output), (ERRORS, sizes.errors)) if size)
        self._ended = True

    def forget(self, batch_id: str) -> None:
        self.forgotten.append(batch_id)

    def look(self) -> None:
        """Do nothing: the test starts lines."""


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Box]:
    return lambda *names, **also: Box(tmp_path, [*names], **also)


def test_a_batch_is_checked_run_and_finished(make: Callable[..., Box]):
    box = make("a", "b", "c")
    assert box.batch.status is Status.VALIDATING
    box.step()
    assert (box.batch.status, box.batch.total) == (Status.IN_PROGRESS, 3)
    box.run()
    assert (box.batch.status, box.batch.completed) == (Status.COMPLETED, 3)
    assert (box.results(OUTPUT), box.results(ERRORS)) == (["a", "b", "c"], [])
    assert {path.name for path in box.path.iterdir()} == {INPUT, OUTPUT}
    assert box.batch.told()["error_file_id"] is None


def test_refusals_are_errors_unless_they_may_pass(make: Callable[..., Box]):
    box = make("a", "b")
    box.settle()
    box.start_lines()
    first, second = box.open_jobs
    first.answer(400)
    second.answer(503, retry_after_s=5.0)
    box.settle()
    assert (box.results(ERRORS), box.batch.failed) == (["a"], 1)
    assert (box.running.wants_place, box.running.wait_s) == (False, 5.0)
    box.time += 5
    assert box.running.wants_place
    box.run()
    assert (box.results(OUTPUT), box.batch.status) == (["b"], Status.COMPLETED)


def test_lines_are_read_as_they_are_needed(make: Callable[..., Box]):
    names = [str(i) for i in range(100)]
    box = make(*names)
    box.settle()
    box.start_lines(1)
    assert [job.line.custom_id for job in box.jobs] == ["0"]
    assert len(box.running._lines) <= work.AHEAD
    box.run()
    assert box.results(OUTPUT) == names


def test_a_cancel_ends_at_once_what_runs(make: Callable[..., Box]):
    box = make("a", "b", "c")
    box.settle()
    box.start_lines(2)
    box.jobs[0].answer()
    box.settle()
    assert box.batch.cancel is not None
    box.batch.cancel()
    assert box.batch.status is Status.CANCELLING
    assert box.open_jobs == []
    box.settle()
    assert (box.batch.status, box.results(OUTPUT)) == (Status.CANCELLED, ["a"])
    assert box.batch.cancel is None
    assert not (box.path / BATCH_ID).exists()


def test_what_has_not_run_in_time_is_an_error(make: Callable[..., Box]):
    box = make("a", "b", "c", "d")
    box.settle()
    box.start_lines(2)
    box.jobs[0].answer()
    box.settle()
    box.running.expire()
    assert box.batch.status is Status.FINALIZING
    box.settle()
    assert (box.batch.status, box.batch.completed, box.batch.failed) == (Status.EXPIRED, 1, 3)
    assert box.results(ERRORS) == ["b", "c", "d"], "b ran when the time was over, and what follows had not begun"
    errors = [json.loads(line) for line in (box.path / ERRORS).read_text().splitlines()]
    assert {one["error"]["code"] for one in errors} == {"batch_expired"}


def test_a_batch_that_is_too_old_after_a_restart_expires(make: Callable[..., Box]):
    box = make("a", "b", created_at=7)
    box.settle()
    assert (box.batch.status, box.batch.failed) == (Status.EXPIRED, 2)
    assert box.jobs == []


def test_a_daemon_goes_on_where_the_one_before_was_killed(make: Callable[..., Box]):
    box = make("a", "b", "c", "d")
    box.settle()
    box.start_lines(3)
    box.jobs[0].answer()
    box.jobs[1].answer(400)
    box.step()
    # The second result is half written when the power of the process ends.
    with (box.path / ERRORS).open("a") as errors:
        errors.write('{"id":"x","custom_id":"b"')
    box.start()
    box.settle()
    assert (box.batch.status, box.batch.total, box.batch.completed) == (Status.IN_PROGRESS, 4, 1)
    box.run()
    assert (box.results(OUTPUT), box.results(ERRORS)) == (["a", "b", "c", "d"], [])


def test_the_input_may_be_deleted_once_the_batch_has_begun(make: Callable[..., Box]):
    box = make("a", "b")
    box.settle()
    (box.path / INPUT).unlink()
    box.start()
    box.run()
    assert box.results(OUTPUT) == ["a", "b"]


def test_an_input_that_was_deleted_before_fails_the_batch(make: Callable[..., Box]):
    box = make("a")
    (box.path / INPUT).unlink()
    box.settle()
    assert (box.batch.status, [one.code for one in box.batch.problems]) == (Status.FAILED, ["file_not_found"])


def test_a_line_that_is_none_fails_the_batch(make: Callable[..., Box]):
    box = make("a", "a")
    box.settle()
    assert (box.batch.status, [one.line for one in box.batch.problems]) == (Status.FAILED, [2])
    assert {path.name for path in box.path.iterdir()} == {INPUT}


def test_a_key_that_is_revoked_ends_the_batch_and_keeps_what_is_done(make: Callable[..., Box]):
    box = make("a", "b", "c")
    box.settle()
    box.start_lines(2)
    box.jobs[0].answer()
    box.key_valid = False
    box.settle()
    box.start_lines()
    box.settle()
    assert (box.batch.status, [one.code for one in box.batch.problems]) == (Status.FAILED, ["invalid_api_key"])
    assert (box.results(OUTPUT), box.open_jobs) == (["a"], [])


def test_results_are_bounded(make: Callable[..., Box]):
    box = make("a", "b", "c", max_bytes=400)
    box.run()
    assert (box.batch.status, [one.code for one in box.batch.problems]) == (Status.FAILED, ["output_too_large"])
    assert box.results(OUTPUT) == ["a", "b"]


def test_a_disk_that_fails_ends_the_batch(make: Callable[..., Box], caplog: pytest.LogCaptureFixture):
    box = make("a")
    (box.path / OUTPUT).mkdir()
    box.settle()
    assert (box.batch.status, [one.code for one in box.batch.problems]) == (Status.FAILED, ["server_error"])
    assert "its files can't be used" in caplog.text


def test_a_batch_that_is_forgotten_leaves_nothing(make: Callable[..., Box]):
    box = make("a", "b")
    box.settle()
    box.start_lines()
    box.jobs[0].answer()
    box.batch.deleted = True
    box.batch.gone()
    assert (box.open_jobs, box.forgotten) == ([], [BATCH_ID])
    box.settle()
    assert {path.name for path in box.path.iterdir()} == {INPUT}


STEPS = [
    *("thread", "thread", "thread", "start", "start", "answer", "answer", "refuse", "retry"),
    *("time", "save", "restart", "killed", "cancel", "expire"),
]


@settings(deadline=None)
@given(
    names=st.integers(1, 12).map(lambda n: [f"r{i}" for i in range(n)]),
    steps=st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 9)), max_size=60),
)
def test_whatever_happens_a_line_has_one_result(
    tmp_path_factory: pytest.TempPathFactory, names: list[str], steps: list[tuple[str, int]]
):
    box = Box(tmp_path_factory.mktemp("batch"), names)
    for what, which in steps:
        jobs = box.open_jobs
        job = jobs[which % len(jobs)] if jobs else None
        match what:
            case "thread":
                box.step()
            case "start":
                box.start_lines()
            case "answer" if job is not None:
                job.answer()
            case "refuse" if job is not None:
                job.answer(400)
            case "retry" if job is not None:
                job.answer(429, retry_after_s=which)
            case "time":
                box.time += which
            case "save":
                box.save()
            case "restart":
                box.start()
            case "killed":
                box.step(killed=True)
                box.start()
            case "cancel" if which == 0 and box.batch.cancel is not None:
                box.batch.cancel()
            case "expire" if which == 0:
                box.running.expire()
        written = box.results(OUTPUT) + box.results(ERRORS)
        assert len(written) == len({*written})
    box.run()
    done, failed = box.results(OUTPUT), box.results(ERRORS)
    assert len({*done, *failed}) == len(done) + len(failed)
    assert (box.batch.completed, box.batch.failed) == (len(done), len(failed))
    assert {*done, *failed} <= {*names}
    if box.batch.status is not Status.CANCELLED:
        assert box.batch.status in (Status.COMPLETED, Status.EXPIRED)
        assert {*done, *failed} == {*names}
    assert box.open_jobs == []
    box.save()
    assert not (box.path / BATCH_ID).exists()
    assert batch_of(BATCH_ID, box.row).told() == box.batch.told()
