"""Sequences that operators save under names, and restore: links to files of the disk cache."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from umaserve.core.errors import Fault, RequestError
from umaserve.core.events import SlotFile
from umaserve.kvcache.disk_cache import PRIVATE, DiskCache
from umaserve.kvcache.prefix_cache import Tokens
from umaserve.kvcache.slots import Slots
from umaserve.sessions.engine_api import Engine, JobQueue, NamedFile

log = logging.getLogger(__name__)

Answered = Callable[[SlotFile | RequestError], None]


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A sequence to be saved: whose, and as what."""

    scope: str
    tokens: Tokens
    filename: str
    asked_at: float
    answered: Answered


class SlotFiles:
    """Saves and restores, one sequence after another. A sequence stays its tenant's: whoever restores it lets its
    tenant's prompts begin with it."""

    def __init__(
        self, engine: Engine, worker: JobQueue, slots: Slots, disk: DiskCache, clock: Callable[[], float]
    ) -> None:
        """``worker``: the thread for the disk."""
        self._engine = engine
        self._worker = worker
        self._slots = slots
        self._disk = disk
        self._now = clock
        self._wanted: list[_Wanted] = []

    def save(self, number: int, filename: str, answered: Answered) -> None:
        """Save what the slot of that number held last, by ``Slots.latest``. Raises ``RequestError``."""
        if number >= len(self._slots.latest):
            raise RequestError(Fault.BAD_REQUEST, "id", "this slot has held nothing yet: send it a prompt first")
        scope, tokens = self._slots.latest[number]
        if scope.startswith(PRIVATE) or min(tokens) < 0:
            problem = "only text can be saved, of requests that may leave it in the cache (cache_prompt)"
            raise RequestError(Fault.BAD_REQUEST, "id", problem)
        if self._disk.named(scope, tokens) is None and not self._slots.save(scope, tokens):
            raise _gone()
        self._wanted.append(_Wanted(scope, tokens, filename, self._now(), answered))
        self.next()

    def restore(self, filename: str, answered: Answered) -> None:
        """Let prompts begin with what is in that file."""
        began = self._now()

        def restored(result: NamedFile | BaseException) -> None:
            if isinstance(result, BaseException):
                answered(_seen(result))
                return
            self._disk.know(result.kept)
            answered(SlotFile(filename, len(result.kept.tokens), result.n_bytes, self._now() - began))

        self._worker.submit(lambda: self._engine.take_back(filename), restored)

    def next(self) -> None:
        """Go on with the first that is to be saved, once it is in host memory and the disk's thread is free."""
        if not self._wanted:
            return
        wanted = self._wanted[0]
        if (name := self._disk.named(wanted.scope, wanted.tokens)) is not None:
            self._wanted.pop(0)
            self._give_name(name, wanted)
        elif self._disk.writes or self._disk.write(wanted.scope, wanted.tokens, self._written):
            return
        elif not self._slots.save(wanted.scope, wanted.tokens):
            # Neither on its way to host memory.
            self._end(_gone())

    def _written(self, error: BaseException | None) -> None:
        if error is not None:
            self._end(_seen(error))
        elif self._wanted and self._disk.named(self._wanted[0].scope, self._wanted[0].tokens) is None:
            problem = "it could not be written: there may be too little room for it; see the server's log"
            self._end(RequestError(Fault.BAD_REQUEST, "id", problem))

    def fail(self, error: RequestError) -> None:
        """Fail all that wait: the engine is gone."""
        while self._wanted:
            self._end(error)

    def _end(self, error: RequestError) -> None:
        if self._wanted:
            self._wanted.pop(0).answered(error)

    def _give_name(self, name: str, wanted: _Wanted) -> None:
        def named(result: int | BaseException) -> None:
            if isinstance(result, BaseException):
                wanted.answered(_seen(result))
            else:
                took_s = self._now() - wanted.asked_at
                wanted.answered(SlotFile(wanted.filename, len(wanted.tokens), result, took_s))

        self._worker.submit(lambda: self._engine.give_name(name, wanted.filename), named)


def _gone() -> RequestError:
    problem = (
        "what this slot held had to make room for others, or is larger than host_cache_bytes: send its prompt again"
    )
    return RequestError(Fault.NOT_FOUND, "id", problem)


def _seen(error: BaseException) -> RequestError:
    """What of a failure a client may see."""
    if isinstance(error, RequestError):
        return error
    log.error("a slot can't be saved or restored", exc_info=error)
    return RequestError(Fault.DECODE_FAILED, "request", "internal error; see the server's log")
