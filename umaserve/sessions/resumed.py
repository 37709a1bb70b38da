"""A request that another process has begun: what this one needs to go on with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from umaserve.core.errors import Fault, RequestError
from umaserve.sessions.answer_text import AnswerText


@dataclass(frozen=True, slots=True)
class Resumed:
    """Progress of a request that another process has begun. Times are in seconds since the request, without the time in
    holds."""

    model: str
    """The name of the model that answers it."""
    generated: Sequence[int]
    text: str
    """Text that its client was sent, without thoughts where they are told apart."""
    thoughts: str
    reused: int
    """Prompt tokens found in the cache, as ``Session.reused``."""
    paused: bool
    """Whether its client has paused it."""
    took_s: float
    started_s: float | None
    """When its prompt was started."""
    first_token_s: float | None


def catch_up(text: AnswerText, begun: Resumed) -> None:
    """Bring a new ``text`` to where the other process was. Raises ``RequestError`` where it is not the text that the
    client has: model, content filter or stop strings may be others since."""
    pieces = [text.push(token) for token in begun.generated]
    said = "".join(new.text if new.answer is None else new.answer for new, _ended in pieces)
    thoughts = "".join(new.thoughts for new, _ended in pieces)
    if (said, thoughts) != (begun.text, begun.thoughts) or any(ended for _new, ended in pieces):
        problem = "its text would change, since the server was restarted with another model or other settings"
        raise RequestError(Fault.NOT_FOUND, "request_id", problem)
