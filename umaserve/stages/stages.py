"""The stages of an answer: what its outputs pass on their way from the session to the connection, in their order."""

from __future__ import annotations

from typing import Protocol

from umaserve.core.errors import RequestError
from umaserve.core.events import Output
from umaserve.core.requests import Generate
from umaserve.sessions.session import Sink
from umaserve.stages.recorded import RecordedAnswer
from umaserve.stages.recordings import Recordings
from umaserve.stages.spoken import Speech


class Stage(Protocol):
    """One stage: it takes outputs and delivers them, changed or with more, to the next one."""

    def take(self, output: Output | RequestError) -> None: ...

    def hold(self) -> None:
        """The reader is behind."""

    def release(self) -> None:
        """The reader has caught up."""

    def abandon(self) -> None:
        """The client is gone: deliver nothing more."""


def stages_of(
    request: Generate, deliver: Sink, speech: Speech, recordings: Recordings
) -> tuple[Sink, tuple[Stage, ...]]:
    """Make the stages that ``request`` asks for, in the order that outputs pass them: spoken, recorded. Returns the
    sink of its session, too; without stages that is ``deliver``."""
    stages: tuple[Stage, ...] = ()
    # From the last one back to the session.
    if request.recorded is not None and (recording := recordings.begin(request.recorded)):
        stages = (RecordedAnswer(recording, deliver),)
    if request.spoken is not None:
        stages = (speech.answer(stages[0].take if stages else deliver, request.spoken), *stages)
    return stages[0].take if stages else deliver, stages
