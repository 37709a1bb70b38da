"""Divides prompts whose log-probabilities are wanted among ticks, by what these take."""

from __future__ import annotations

from umaserve.sessions.cost_model import MIN_TICK_S
from umaserve.sessions.engine_api import MAX_SCORED_ROWS
from umaserve.sessions.session import Session

MAX_ENTRIES = 512
"""Log-probabilities in one tick, alternatives included: each takes 6 us on its way from the engine's process."""

_FACTOR, _MAX_FACTOR = 2.0, 32.0
_LEARNED = 0.1
"""Weight of the latest tick in the factor."""


class PromptScoring:
    """Knows how many times as long a row takes that gives log-probabilities: the last layer's product with the whole
    vocabulary, then the softmax over it."""

    def __init__(self) -> None:
        self._factor = _FACTOR
        self._ticks = 0

    def end(self, session: Session, end: int, taken: int) -> int:
        """The end of what a tick computes of the prompt of ``session``, where it has time for ordinary rows up to
        ``end``. ``taken``: rows with log-probabilities that it has already, of other prompts."""
        assert session.request.prompt_logprobs is not None
        known = session.scored - 1
        assert session.computed <= known, "reused without log-probabilities"
        if session.computed < known:
            # It lost its slot, or its engine.
            return min(end, known)
        most = min(MAX_SCORED_ROWS, MAX_ENTRIES // (1 + session.request.prompt_logprobs)) - taken
        rows = min(max(1, int((end - session.computed) / self._factor)), session.to_score, max(0, most))
        return session.computed + rows

    def as_rows(self, rows: int) -> int:
        """So many ordinary rows take as long."""
        return round(self._factor * rows)

    def observe(self, predicted_s: float, seconds: float) -> None:
        """Learn from such rows of a tick, which would have taken ``predicted_s`` if they were ordinary ones."""
        factor = min(max(seconds / max(predicted_s, MIN_TICK_S), 1.0), _MAX_FACTOR)
        self._factor += (_LEARNED if self._ticks else 1.0) * (factor - self._factor)
        self._ticks += 1
