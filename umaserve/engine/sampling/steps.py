"""Samples the next tokens; those that a grammar holds on a thread of their own, so that none delays a tick."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence

from umaserve.core.errors import Fault, RequestError
from umaserve.core.events import Logprobs
from umaserve.engine.sampling.candidates import Candidates, Logits
from umaserve.system.threads import be_called, set_thread_niceness

Sampled = tuple[int, Logprobs | None]

MAX_STEP_S = 10.0
"""Most seconds for a request's next token; a request that needs longer is given up."""
NICE = 19
"""Niceness of a thread that a slow step keeps: other streams are computed beside it."""


class Step:
    """Samples the tokens after one run: the accepted draft tokens and the one after them. If its time is over before
    (``take``), it ends with the token that it is at."""

    def __init__(
        self,
        rows: Sequence[Logits],
        sample: Callable[[Logits, Candidates], Sampled],
        is_last: Callable[[int, int], bool],
        field: str = "",
    ) -> None:
        """``sample`` chooses a token from one of ``rows``; ``is_last``: whether no other follows the token of this row.
        Both may be called on another thread. ``field``: of the request, with the grammar."""
        self._rows = rows
        self._sample = sample
        self._is_last = is_last
        self._field = field
        self._lock = threading.Lock()
        self._sampled: list[Sampled] = []
        self._hurried = False
        self._error: BaseException | None = None
        self._began = time.monotonic()
        self.ended = threading.Event()

    def run(self, candidates: Candidates) -> None:
        try:
            for row, logits in enumerate(self._rows):
                sampled = self._sample(logits, candidates)
                with self._lock:
                    self._sampled.append(sampled)
                    if self._hurried or self._is_last(row, sampled[0]):
                        self.ended.set()
                        return
        except BaseException as error:
            self._error = error
            self.ended.set()

    def take(self) -> tuple[list[Sampled], bool]:
        """Take what was sampled since the last call; returns it, and whether that is all: else one more token comes.
        Raises what sampling has raised, and ``RequestError`` where it takes too long."""
        with self._lock:
            if self._error is not None:
                raise self._error
            ended = self.ended.is_set()
            if not ended and time.monotonic() - self._began > MAX_STEP_S:
                problem = f"expected a grammar that llguidance can follow, but a token took more than {MAX_STEP_S:g} s"
                raise RequestError(Fault.BAD_REQUEST, self._field, problem)
            self._hurried = True
            taken, self._sampled = self._sampled, []
            return taken, ended


class EndedStep:
    """A step that has ended: what no grammar holds is sampled at once."""

    __slots__ = ("_error", "_sampled")

    def __init__(self, sampled: list[Sampled], error: Exception | None) -> None:
        self._sampled = sampled
        self._error = error

    def take(self) -> tuple[list[Sampled], bool]:
        """Take what was sampled, as ``Step.take``."""
        if self._error is not None:
            raise self._error
        return self._sampled, True


class StepThread:
    """Runs steps in order. A thread that is still busy with one when the tick goes on is left to it, and another takes
    its place."""

    def __init__(self, n_vocab: int) -> None:
        self._n_vocab = n_vocab
        self._steps: queue.SimpleQueue[Step | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._current: Step | None = None

    def begin(self, steps: Sequence[Step]) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="grammars", daemon=True)
            self._thread.start()
        for step in steps:
            self._steps.put(step)

    def wait(self, steps: Sequence[Step], seconds: float) -> None:
        """Return when all of ``steps`` have ended, or after so many seconds."""
        deadline = time.monotonic() + seconds
        # The last one first: one wake-up is enough then.
        late = [step for step in reversed(steps) if not step.ended.wait(max(0.0, deadline - time.monotonic()))]
        if self._current in late:
            self._replace()

    def close(self) -> None:
        self._thread = None
        self._steps.put(None)

    def _replace(self) -> None:
        assert self._thread is not None
        assert self._thread.native_id is not None
        set_thread_niceness(self._thread.native_id, NICE)
        self._thread = None
        self.begin(())

    def _run(self) -> None:
        be_called("grammars")
        candidates = Candidates(self._n_vocab)
        while threading.current_thread() is self._thread and (step := self._steps.get()) is not None:
            self._current = step
            step.run(candidates)
