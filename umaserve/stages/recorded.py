"""Answers that are recorded: a stage between a session, or its speech stage, and the connection."""

from __future__ import annotations

import dataclasses
import logging

from umaserve.core.errors import RequestError
from umaserve.core.events import Finished, Output, Spoken, Token
from umaserve.sessions.session import Sink
from umaserve.stages.recordings import Recording

log = logging.getLogger(__name__)


class RecordedAnswer:
    """A sink that forwards all outputs to ``deliver`` and writes text and sound to ``recording``, whose id it puts into
    ``Finished``. Answers that fail or are abandoned are not kept."""

    def __init__(self, recording: Recording, deliver: Sink) -> None:
        self._recording = recording
        self._deliver = deliver
        self._text: list[str] = []
        self._failed = False

    def take(self, output: Output | RequestError) -> None:
        """The sink."""
        if not self._failed:
            try:
                output = self._keep(output)
            except Exception:
                # The answer is worth more than its recording.
                log.exception("internal error while recording an answer: its recording is dropped")
                self._failed = True
                self._recording.drop()
        self._deliver(output)

    def _keep(self, output: Output | RequestError) -> Output | RequestError:
        match output:
            case Token():
                self._text.append(output.text)
            case Spoken():
                self._recording.heard(output.sound)
            case Finished():
                values = {"reason": output.reason.value, **dataclasses.asdict(output.usage)}
                self._recording.end("".join(self._text), values | dataclasses.asdict(output.timing))
                return dataclasses.replace(output, recording=self._recording.id)
            case RequestError():
                self._recording.drop()
        return output

    def hold(self) -> None:
        """Nothing: what is kept waits for no reader."""

    def release(self) -> None:
        """Nothing, likewise."""

    def abandon(self) -> None:
        """The client is gone: discard the recording."""
        self._recording.drop()
