"""All batches: which of them gets to run its next line."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from umaserve.core.requests import Priority
from umaserve.daemon.batches.line_request import Answer, LineRequest
from umaserve.daemon.batches.running_batch import RunningBatch
from umaserve.daemon.batches.work import Sizes, Work
from umaserve.daemon.http.routes import DIALECTS, Routes
from umaserve.daemon.services import Services
from umaserve.daemon.store.kept_files import KeptFiles
from umaserve.dialects.batches.lines import Line
from umaserve.dialects.batches.stored_batch import StoredBatch
from umaserve.dialects.batches.stored_file import OUTPUT
from umaserve.net.timers import Timer
from umaserve.sessions.caller import Caller

AT_ONCE = 4
"""Lines of all batches that are in the daemon at a time: enough for it to compute several in one tick, and few enough
that whoever comes finds the queue short."""
LINGER_S = 2.0
"""How long the input of a batch that has ended is kept: the store's file is written by then."""


class Batches:
    """Implements ``running_batch.Host``. Tenants share the places: next is a line of who has fewest, and of that one's
    batches the line of the one that has waited longest."""

    def __init__(self, services: Services, files: KeptFiles, renewed: Callable[[Caller], Caller | None]) -> None:
        """``renewed``: the caller with what its key grants by now; ``None`` if it is no longer valid."""
        self._services = services
        self._files = files
        self._renewed = renewed
        self._routes = Routes(DIALECTS)
        self._running: dict[str, RunningBatch] = {}
        self._expiries: dict[str, Timer] = {}
        self._started = self._looking = False
        self._lines = self._lines_done = 0
        self._retry: Timer | None = None
        files.kept.begin = self._begin
        for tenant, batch in [*files.kept.batches.everyones()]:
            if not batch.ended:
                self._begin(tenant, batch)

    def start(self) -> None:
        """Run lines, from now on: a model is there."""
        self._started = True
        self.look()

    def stop(self) -> None:
        """Give up what runs, for the next daemon to go on with."""
        self._started = False
        for running in self._running.values():
            running.give_up()
        for timer in self._expiries.values():
            timer.cancel()

    def snapshot(self) -> dict[str, int]:
        """Metrics."""
        return {
            "batches_unfinished": len(self._running),
            "batch_lines_running": sum(running.in_work for running in self._running.values()),
            "batch_lines_total": self._lines_done,
        }

    def _begin(self, tenant: str, batch: StoredBatch) -> None:
        work = Work(batch, self._files.folder.path, self._files.kept.files.max_each // 2)
        running = RunningBatch(self, tenant, batch, work)
        self._running[batch.id] = running
        left_s = max(0.0, batch.expires_at - time.time())
        self._expiries[batch.id] = self._services.loop.call_later(left_s, running.expire)
        running.begin()

    # -- for running batches -------------------------------------------------------------------------------------

    def now(self) -> float:
        return self._services.loop.now()

    def submit(self, job: Callable[[], object], done: Callable[[object], None]) -> None:
        self._files.folder.thread.submit(job, done)

    def new_job(
        self, tenant: str, batch: StoredBatch, line: Line, take: Callable[[Answer], None]
    ) -> LineRequest | None:
        found = self._routes.find(batch.endpoint)
        assert found is not None
        name = tenant.removeprefix("key:")
        key = "" if name == tenant else name
        caller = self._renewed(Caller(found.dialect.name, f"batch:{batch.id}" if key else tenant, key))
        if caller is None:
            return None

        def answered(answer: Answer) -> None:
            self._lines_done += answer.retry_after_s is None
            take(answer)

        return LineRequest(self._services, found, replace(caller, priority=Priority.BACKGROUND), line, answered)

    def changed(self, tenant: str, batch: StoredBatch) -> None:
        self._files.kept.batches.keep(tenant, batch)

    def ended(self, running: RunningBatch, sizes: Sizes) -> None:
        batch = running.batch
        kept = []
        for file_id, length, what in (
            (batch.output_id, sizes.output, "output"),
            (batch.error_id, sizes.errors, "error"),
        ):
            if length:
                kept.append(file_id)
                file = self._files.new_file(file_id, f"{batch.id}_{what}.jsonl", OUTPUT, length)
                self._files.kept.files.keep(running.tenant, file)
        batch.files = frozenset(kept)
        # Not before the row says that it has ended: a daemon that was killed between them would take it for lost.
        self._services.loop.call_later(LINGER_S, partial(self._files.folder.delete, batch.id))
        self.forget(batch.id)

    def forget(self, batch_id: str) -> None:
        """Forget a batch that has ended, or was forgotten."""
        self._running.pop(batch_id, None)
        if timer := self._expiries.pop(batch_id, None):
            timer.cancel()

    def look(self) -> None:
        if not self._looking:
            self._looking = True
            self._services.loop.call_soon(self._start_lines)

    def _start_lines(self) -> None:
        self._looking = False
        for _ in range(AT_ONCE):
            in_work = Counter({one.tenant: 0 for one in self._running.values()})
            for one in self._running.values():
                in_work[one.tenant] += one.in_work
            ready = [one for one in self._running.values() if one.wants_place]
            if not self._started or not ready or in_work.total() >= AT_ONCE:
                break
            self._lines += 1
            chosen = min(ready, key=lambda one: (in_work[one.tenant], one.served_at))
            chosen.served_at = self._lines
            chosen.start_line()
        self._look_again_later()

    def _look_again_later(self) -> None:
        """Look when the wait of a batch is over that was refused."""
        waits = [wait for one in self._running.values() if (wait := one.wait_s)]
        if waits and self._started and self._retry is None:

            def again() -> None:
                self._retry = None
                self.look()

            self._retry = self._services.loop.call_later(min(waits), again)
