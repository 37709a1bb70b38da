"""Waiters for a model besides its sessions: questions, and requests that can't be read before it is loaded."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from umaserve.core.errors import Fault, RequestError
from umaserve.scheduler.questions import Question

Then = Callable[[RequestError | None], None]

_OPERATOR = object()
"""Key of the operator as one who waits: once, however often it is asked for, and however long it takes."""


class Waiting:
    """Holds what waits for a model. Questions wait since they were asked, however often they come here; times are those
    of ``clock``."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._now = clock
        self._questions: dict[Question, None] = {}
        self._unread: dict[object, tuple[Then, float]] = {}

    def __len__(self) -> int:
        return len(self.questions) + len(self._unread)

    @property
    def nobody(self) -> bool:
        """Whether nobody waits, nor has."""
        return not self._questions and not self._unread

    @property
    def questions(self) -> list[Question]:
        """Questions that somebody still wants answered."""
        return [question for question in self._questions if not question.forgotten]

    @property
    def since(self) -> float:
        """Time since which the first of them waits; ``inf`` where none does."""
        asked = [question.asked_at for question in self.questions]
        return min([*asked, *(since for _, since in self._unread.values())], default=math.inf)

    def add(self, questions: Iterable[Question]) -> None:
        self._questions |= dict.fromkeys(questions)

    def when_loaded(self, then: Then) -> Callable[[], None]:
        """Call ``then`` once the model is loaded, or with the error. Returns what forgets it again."""
        me = object()
        self._unread[me] = then, self._now()

        def forget() -> None:
            self._unread.pop(me, None)

        return forget

    def wish(self, then: Then) -> None:
        """Call ``then`` as ``when_loaded`` does, for the operator."""
        self._unread[_OPERATOR] = then, self._now()

    def take_questions(self) -> list[Question]:
        """Take out the questions, which no longer wait."""
        questions, self._questions = self.questions, {}
        return questions

    def tell_loaded(self) -> None:
        """Tell those who can say only now what they ask that the model is loaded."""
        unread, self._unread = self._unread, {}
        for then, _ in unread.values():
            then(None)

    def expire(self, seconds: float) -> None:
        """Fail the questions and requests that have waited longer."""
        before = self._now() - seconds
        late = [question for question in self._questions if question.asked_at < before]
        unread = [me for me, (_, since) in self._unread.items() if since < before and me is not _OPERATOR]
        self._fail(
            late,
            unread,
            RequestError(Fault.TIMED_OUT, "request", f"it took more than {seconds:g} s (--request-timeout)"),
        )

    def fail_all(self, error: RequestError) -> None:
        self._fail(list(self._questions), list(self._unread), error)

    def _fail(self, questions: Iterable[Question], unread: Iterable[object], error: RequestError) -> None:
        for question in questions:
            del self._questions[question]
            if not question.forgotten:
                question.answered(error.copy())
        for me in unread:
            # One may have another forgotten.
            if me in self._unread:
                then, _ = self._unread.pop(me)
                then(error.copy())
