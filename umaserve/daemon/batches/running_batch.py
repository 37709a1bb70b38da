"""A batch that has not ended: what it waits for, and what comes next."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeVar, cast

from umaserve.core.errors import RequestError
from umaserve.daemon.batches.line_request import Answer
from umaserve.daemon.batches.work import Read, Sizes, Unusable, Work
from umaserve.dialects.batches.lines import Checked, Line, answered
from umaserve.dialects.batches.states import Event, Status
from umaserve.dialects.batches.stored_batch import Problem, StoredBatch

log = logging.getLogger(__name__)

T = TypeVar("T")

_KEY_GONE = Problem("invalid_api_key", "the API key that made the batch is no longer valid")
_DISK = Problem("server_error", "the server could not read or write the batch's files: see its log")


class LineJob(Protocol):
    """A line that runs."""

    def start(self) -> None: ...

    def abandon(self) -> None: ...


class Host(Protocol):
    """What a batch needs of the daemon."""

    def now(self) -> float:
        """Seconds of a clock that only goes forward."""

    def submit(self, job: Callable[[], object], done: Callable[[object], None]) -> None:
        """Run a job on the files' thread."""

    def new_job(self, tenant: str, batch: StoredBatch, line: Line, take: Callable[[Answer], None]) -> LineJob | None:
        """A line as a request of the tenant's; ``None`` where its key is no longer valid."""

    def changed(self, tenant: str, batch: StoredBatch) -> None:
        """Keep what has changed of a batch."""

    def ended(self, running: RunningBatch, sizes: Sizes) -> None:
        """Keep the files of a batch that is about to end."""

    def forget(self, batch_id: str) -> None:
        """Forget a batch that was deleted."""

    def look(self) -> None:
        """Have lines started, in a later turn."""


class RunningBatch:
    """One batch, from its first look at its lines to its end. Jobs of its ``work`` run one after another."""

    def __init__(self, host: Host, tenant: str, batch: StoredBatch, work: Work) -> None:
        self.tenant = tenant
        self.batch = batch
        self.served_at = 0
        """Counts lines of all batches: when one of this batch was started last."""
        self._host = host
        self._work = work
        self._lines: deque[Line] = deque()
        self._jobs: dict[int, LineJob] = {}
        """Lines in work, by their numbers, until their results are written."""
        self._open = self._reading = self._last = False
        """Whether its files are open; lines are being read; all have been read."""
        self._over = False
        """Whether no more lines are to run."""
        self._waits_until = 0.0
        batch.cancel, batch.gone = self._cancel, self._delete

    @property
    def in_work(self) -> int:
        """Lines that run, or whose results are being written."""
        return len(self._jobs)

    @property
    def wants_place(self) -> bool:
        """Whether a line could be started now."""
        return bool(self._lines) and not self._over and self._host.now() >= self._waits_until

    @property
    def wait_s(self) -> float:
        """Seconds until it may try again what was refused; 0 where it need not wait."""
        return max(0.0, self._waits_until - self._host.now()) if self._lines and not self._over else 0.0

    def begin(self) -> None:
        """Look at the lines, or go on where the daemon before this one was."""
        if self.batch.status is Status.VALIDATING:
            self._do(self._work.check, self._checked)
        else:
            self._do(self._work.resume, self._resumed)

    def start_line(self) -> None:
        """Start the next line, where it ``wants_place``."""
        line = self._lines.popleft()
        job = self._host.new_job(self.tenant, self.batch, line, partial(self._answered, line))
        if job is None:
            self._fail(_KEY_GONE)
            return
        self._jobs[line.number] = job
        job.start()
        self._read_more()

    def give_up(self) -> None:
        """End what runs, for the next daemon to run it again."""
        self._over = True
        jobs, self._jobs = self._jobs, {}
        for job in jobs.values():
            job.abandon()

    def expire(self) -> None:
        """The time is over: what has not run never will."""
        if self.batch.status is not Status.IN_PROGRESS:
            return
        self.give_up()
        self._move(Event.RAN)
        if self._open:
            self._write_expired()

    # -- lines ---------------------------------------------------------------------------------------------------

    def _checked(self, checked: Checked) -> None:
        self.batch.total = checked.total
        if self.batch.status is Status.CANCELLING:
            self._finish(Event.FINISHED)
        elif checked.problems:
            self.batch.problems = checked.problems
            self._finish(Event.FAIL)
        else:
            self._move(Event.VALID)
            self._do(self._work.resume, self._resumed)

    def _resumed(self, counts: tuple[int, int]) -> None:
        self._open = True
        self.batch.completed, self.batch.failed = counts
        match self.batch.status:
            case Status.CANCELLING:
                self._finish(Event.FINISHED)
            case Status.FINALIZING:
                self._write_expired()
            case Status.IN_PROGRESS if time.time() >= self.batch.expires_at:
                self.expire()
            case Status.IN_PROGRESS:
                self._read_more()

    def _read_more(self) -> None:
        if not (self._lines or self._reading or self._last or self._over):
            self._reading = True
            self._do(self._work.next, self._have_read)
        elif self._last and not (self._lines or self._jobs or self._over):
            if self.batch.completed + self.batch.failed != self.batch.total:
                self._fail(_DISK)
                return
            self._over = True
            self._move(Event.RAN)
            self._finish(Event.FINISHED)

    def _have_read(self, read: Read) -> None:
        self._reading = False
        self._lines += read.lines
        self._last = read.last
        self._read_more()
        self._host.look()

    def _answered(self, line: Line, answer: Answer) -> None:
        if answer.retry_after_s is not None:
            del self._jobs[line.number]
            self._lines.appendleft(line)
            self._waits_until = self._host.now() + max(1.0, answer.retry_after_s)
            self._host.look()
            return
        well = answer.status == 200
        written = answered(self.batch.id, line, answer.status, answer.body)
        self._do(partial(self._work.write, written, well=well), partial(self._written, line, well))

    def _written(self, line: Line, well: bool, _result: None) -> None:
        self._jobs.pop(line.number, None)
        if well:
            self.batch.completed += 1
        else:
            self.batch.failed += 1
        self._read_more()
        self._host.look()

    # -- the end -------------------------------------------------------------------------------------------------

    def _cancel(self) -> None:
        if self.batch.status not in (Status.VALIDATING, Status.IN_PROGRESS):
            return
        validating = self.batch.status is Status.VALIDATING
        self.give_up()
        self._move(Event.CANCEL)
        if self._open and not validating:
            self._finish(Event.FINISHED)

    def _write_expired(self) -> None:
        def written(number: int) -> None:
            self.batch.failed += number
            late = number or time.time() >= self.batch.expires_at
            self._finish(Event.TIMED_OUT if late else Event.FINISHED)

        self._do(self._work.expire, written)

    def _fail(self, problem: Problem) -> None:
        if self.batch.ended:
            return
        self.give_up()
        self.batch.problems = [problem]
        self._finish(Event.FAIL)

    def _finish(self, event: Event) -> None:
        """End, once what was submitted is done."""
        self._over = True

        def closed(sizes: Sizes) -> None:
            if not self.batch.ended:
                self._host.ended(self, sizes)
                self.batch.cancel = None
                self._move(event)
                self._tell()

        self._do(self._work.close, closed)

    def _delete(self) -> None:
        """The batch is forgotten."""
        if not self.batch.ended:
            self.give_up()
            self._host.forget(self.batch.id)
            self._host.submit(self._work.delete, _complain)

    def _tell(self) -> None:
        batch = self.batch
        counts = {"lines": batch.total, "completed": batch.completed, "failed": batch.failed}
        took_s = int(time.time()) - batch.created_at
        fields = {"batch": batch.id, "status": batch.status.value, **counts, "total_s": took_s}
        log.info("batch ended", extra={"fields": fields})

    def _move(self, event: Event) -> None:
        self.batch.move(event, int(time.time()))
        if not self.batch.deleted:
            self._host.changed(self.tenant, self.batch)

    def _do(self, job: Callable[[], T], done: Callable[[T], None]) -> None:
        """Run a job of the work's. What fails ends the batch."""

        def came(result: object) -> None:
            if self.batch.deleted or self.batch.ended:
                return
            if isinstance(result, Unusable):
                self._fail(result.problem)
            elif isinstance(result, BaseException):
                # Any other exception is a bug, so log its traceback.
                bug = None if isinstance(result, OSError | RequestError) else result
                log.error("batch %s: its files can't be used: %s", self.batch.id, result, exc_info=bug)
                self._fail(_DISK)
            else:
                done(cast("T", result))

        self._host.submit(job, came)


def _complain(result: object) -> None:
    if isinstance(result, BaseException):
        log.error("the files of a batch that is forgotten can't be deleted: %s", result)
