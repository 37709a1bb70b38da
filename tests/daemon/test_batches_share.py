"""How batches share the few places that there are for their lines."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from clock import Clock

from umaserve.daemon.batches.batches import AT_ONCE, Batches
from umaserve.daemon.batches.line_request import Answer, LineRequest
from umaserve.daemon.services import Services
from umaserve.daemon.store.store import Store
from umaserve.dialects.batches.lines import ENDPOINTS, Line
from umaserve.dialects.batches.stored_batch import StoredBatch
from umaserve.settings.daemon import Config
from umaserve.wire.multipart import Part, write_form

WAIT_S = 10.0


class Job:
    """A line that runs until the test answers it."""

    def __init__(self, tenant: str, batch_id: str, take: Callable[[Answer], None]) -> None:
        self.tenant, self.batch_id = tenant, batch_id
        self.over = False
        self._take = take

    def start(self) -> None:
        """Do nothing: the test answers."""

    def abandon(self) -> None:
        self.over = True

    def answer(self, retry_after_s: float | None = None) -> None:
        self.over = True
        self._take(Answer(200, b"{}", retry_after_s))


class Turns(Batches):
    """Batches whose lines the test answers, on a loop that turns when the test waits."""

    def __init__(self, store: Store, clock: Clock) -> None:
        assert store.files is not None
        self.jobs: list[Job] = []
        self.later: list[tuple[float, Callable[[], None]]] = []
        self._soon: list[Callable[[], None]] = []
        loop = SimpleNamespace(now=clock, call_soon=self._soon.append, call_later=self._call_later)
        super().__init__(cast("Services", SimpleNamespace(loop=loop)), store.files, lambda caller: caller)

    def _call_later(self, seconds: float, call: Callable[[], None]) -> SimpleNamespace:
        entry = (seconds, call)
        self.later.append(entry)
        return SimpleNamespace(cancel=lambda: entry in self.later and self.later.remove(entry))

    def new_job(self, tenant: str, batch: StoredBatch, line: Line, take: Callable[[Answer], None]) -> LineRequest:
        self.jobs.append(Job(tenant, batch.id, take))
        return cast("LineRequest", self.jobs[-1])

    def turn(self) -> None:
        soon, self._soon[:] = [*self._soon], []
        for call in soon:
            call()

    @property
    def running(self) -> list[Job]:
        return [job for job in self.jobs if not job.over]


class Box:
    """A daemon's store, and its batches."""

    def __init__(self, path: Path) -> None:
        self.clock = Clock()
        self._woken = threading.Semaphore(0)
        self.store = Store(Config(store=str(path)), self.clock, self._woken.release)
        self.batches = Turns(self.store, self.clock)
        self._made = 0

    def wait(self, condition: Callable[[], bool]) -> None:
        self._turn()
        while not condition():
            assert self._woken.acquire(timeout=WAIT_S)
            self._turn()

    def _turn(self) -> None:
        for thread in self.store.threads:
            thread.collect()
        self.batches.turn()

    def begin(self, tenant: str, n_lines: int = 20) -> str:
        self._made += 1
        file_id, batch_id = f"file-{self._made:024x}", f"batch_{self._made:024x}"
        values = [{"custom_id": str(i), "method": "POST", "url": ENDPOINTS[0], "body": {}} for i in range(n_lines)]
        content = "".join(json.dumps(line) + "\n" for line in values).encode()
        content_type, body = write_form([Part("purpose", memoryview(b"batch")), Part("file", memoryview(content), "a")])
        files = self.store.files
        assert files is not None
        kept: list[object] = []
        files.take(tenant, file_id, body, content_type, kept.append)
        self.wait(lambda: bool(kept))
        batch = StoredBatch(
            id=batch_id,
            endpoint=ENDPOINTS[0],
            input_id=file_id,
            output_id=f"file-{self._made + 100:024x}",
            error_id=f"file-{self._made + 200:024x}",
            created_at=4_000_000_000,
            metadata=None,
        )
        own = files.kept.of(tenant)
        own.batches.keep(batch)
        own.begin(batch)
        return batch_id


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    box = Box(tmp_path / "store")
    yield box
    box.batches.stop()
    assert box.store.stop(WAIT_S)


def in_place(box: Box) -> Counter[str]:
    return Counter(job.tenant for job in box.batches.running)


def test_no_line_runs_until_a_model_is_there_and_then_a_few(box: Box):
    batch = box.begin("ann")
    files = box.store.files
    assert files is not None
    box.wait(lambda: files.kept.batches.get("ann", batch, "").total == 20)
    assert box.batches.jobs == []
    box.batches.start()
    box.wait(lambda: len(box.batches.running) == AT_ONCE)
    assert box.batches.snapshot() == {"batches_unfinished": 1, "batch_lines_running": AT_ONCE, "batch_lines_total": 0}


def test_tenants_share_the_places_whatever_the_number_of_their_batches(box: Box):
    box.batches.start()
    mine = [box.begin("ann") for _ in range(3)]
    box.wait(lambda: len(box.batches.running) == AT_ONCE)
    box.begin("bob")
    for _ in range(AT_ONCE):
        done = len(box.batches.jobs)
        next(job for job in box.batches.running if job.tenant == "ann").answer()
        box.wait(lambda done=done: len(box.batches.jobs) > done)
        if in_place(box)["bob"] == AT_ONCE // 2:
            break
    assert in_place(box) == {"ann": AT_ONCE // 2, "bob": AT_ONCE // 2}
    for _ in range(12):
        done = len(box.batches.jobs)
        box.batches.running[0].answer()
        box.wait(lambda done=done: len(box.batches.jobs) > done)
    assert in_place(box) == {"ann": AT_ONCE // 2, "bob": AT_ONCE // 2}
    served = Counter(job.batch_id for job in box.batches.jobs if job.batch_id in mine)
    assert max(served.values()) - min(served[one] for one in mine) <= AT_ONCE


def test_a_batch_that_was_refused_is_tried_again_when_it_may_pass(box: Box):
    box.batches.start()
    box.begin("ann", 1)
    box.wait(lambda: len(box.batches.running) == 1)
    box.batches.running[0].answer(retry_after_s=5.0)
    box.wait(lambda: any(seconds == 5.0 for seconds, _call in box.batches.later))
    assert box.batches.running == []
    box.clock.now += 5
    next(call for seconds, call in box.batches.later if seconds == 5.0)()
    box.wait(lambda: len(box.batches.running) == 1)
    box.batches.running[0].answer()
    box.wait(lambda: box.batches.snapshot()["batches_unfinished"] == 0)


def test_a_daemon_that_ends_gives_up_what_runs(box: Box):
    box.batches.start()
    box.begin("ann")
    box.wait(lambda: len(box.batches.running) == AT_ONCE)
    box.batches.stop()
    assert box.batches.running == []
