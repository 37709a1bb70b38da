"""The dialect of ``/generate`` (contract: websocket-generate): a generation that can be steered while it runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from umaserve.core.commands import Cancel, Command, Feedback, Modify, Pause, Reattach, Replace, Resume
from umaserve.core.errors import Fault, RequestError
from umaserve.core.events import FeedbackKept, ListedModel, Metrics, ModelInfo, Output, PromptScores, Spoken, Steered
from umaserve.core.requests import Generate
from umaserve.dialects.dialect import Reply
from umaserve.dialects.generate.generation import Generation, Kept, error_message, status
from umaserve.dialects.generate.request import modified, read_config
from umaserve.dialects.generate.schemas import Control, FeedbackMessage, ResumeMessage
from umaserve.dialects.parameters import RequestLimits, check_key, with_model
from umaserve.wire.fields import MAX_VALUES, Fields, bad_request, parse_json
from umaserve.wire.websocket import CloseCode

STEERED = {
    Pause: ("pause", "paused: no tokens until resume"),
    Resume: ("resume", "the generation continues"),
    Modify: ("modify", "the new parameters apply from the next token on"),
}
"""The operation that a status message acknowledges, and its text for people."""


class GenerateDialect:
    """A WebSocket's conversation: one generation at a time, which can be steered. An error ends at most the generation.

    With ``resumable``, what was sent of the current (or last) generation is kept for ``replay``. With ``authenticate``,
    which says whether a key is valid, the first message must have a valid key in ``auth``.
    """

    ready = True

    def __init__(
        self,
        limits: RequestLimits,
        model: Callable[[str], ModelInfo | None],
        models: Callable[[], Sequence[ListedModel]],
        new_id: Callable[[], str],
        *,
        resumable: bool,
        authenticate: Callable[[str], bool] | None = None,
        asked_model: str = "",
    ) -> None:
        self._limits = limits
        self._model = model
        self._models = models
        self._new_id = new_id
        self._resumable = resumable
        self._authenticate = authenticate
        self._asked_model = asked_model
        first = ("config", "resume") if resumable else ("config",)
        self._types = {kind: kind for kind in (*first, "control", "feedback")}
        self._generation: Generation | None = None
        self._asked: Generate | None = None
        """The last requested modification, until it is acknowledged."""
        self._replaced: Generation | None = None
        """The generation that goes on if its replacement is refused."""

    @property
    def request_id(self) -> str | None:
        """The id of the current generation, or else of the last one."""
        return None if self._generation is None else self._generation.request.id

    @property
    def finished(self) -> bool:
        """Whether no generation runs."""
        return self._generation is None or self._generation.ended

    @property
    def held_bytes(self) -> int:
        """An estimate of the memory that the current or last generation takes, in bytes."""
        return 0 if self._generation is None else self._generation.held_bytes

    @property
    def kept(self) -> Kept | None:
        """State of the current or last generation, as ``Generation.kept``."""
        return None if self._generation is None else self._generation.kept

    def take_over(self, kept: Kept) -> None:
        """Have what another process kept as the last generation."""
        self._generation = Generation.again(kept, self._model)

    def receive(self, payload: bytes) -> Command | None:
        """The command in ``payload``, ``None`` if there is nothing to do; raises ``RequestError``."""
        values = parse_json(payload, MAX_VALUES)
        if not isinstance(values, dict):
            raise bad_request("payload", "an object", values)
        self._check_key(values.get("auth"))
        fields = Fields(values)
        match fields.required_choice("type", self._types):
            case "config":
                return self._configure(fields)
            case "resume":
                return self._reattach(fields)
            case kind if self._generation is None:
                raise RequestError(Fault.BAD_REQUEST, "type", f'expected "config" as the first message, got "{kind}"')
            case "control":
                return self._control(fields, self._generation)
            case _:
                return _feedback(fields, self._generation)

    def send(self, output: Output) -> Reply | None:
        """The messages for ``output``; all but the last are in ``Reply.before``."""
        generation = self._generation
        match output:
            case FeedbackKept():
                kept = "kept" if output.kept else "not stored: this server stores no feedback"
                return Reply(status("feedback", 100, kept))
            case Metrics() | Spoken() | PromptScores():
                raise RuntimeError("output that this dialect never asks for")
            case _ if generation is None:
                raise RuntimeError("output without a request")
            case Steered():
                return Reply(self._steered(output, generation))
            case _:
                self._replaced = None
                messages = generation.send(output)
        if not messages:
            return None
        return Reply(messages[-1], before=messages[:-1])

    def refuse(self, error: RequestError) -> Reply:
        """The error message for a received payload. It ends nothing, except the connection of a client without a
        key."""
        if self._replaced is not None and error.request_id == self.request_id:
            self._generation, self._replaced = self._replaced, None
        request_id = error.request_id if self.finished else self.request_id
        ends = self._authenticate is not None
        partial = None if self._generation is None or self.finished else self._generation.text
        return Reply(error_message(error, request_id, partial), close=ends, code=CloseCode.POLICY_VIOLATION)

    def fail(self, error: RequestError) -> Reply:
        """The error message that ends the running generation, with the text generated so far."""
        if self._generation is None or self._generation.ended:
            return Reply(error_message(error, error.request_id))
        return Reply(self._generation.fail(error))

    def replay(self, position: int) -> Iterator[bytes]:
        """The messages for a new connection that takes over: a status, the token messages from number ``position``
        (from 0) on, and the end, if any. Raises ``RequestError`` if fewer were sent.

        Tokens generated during the iteration are included: after the last message nothing is missing.
        """
        if self._generation is None or not self._resumable:
            raise RuntimeError("replay of what was not kept")
        return self._generation.replay(position)

    def _check_key(self, key: object) -> None:
        if self._authenticate is None:
            return
        check_key(key, self._authenticate, '{"type":"config","auth":"KEY","prompt":"…"}')
        self._authenticate = None

    def _check_idle(self) -> None:
        if not self.finished:
            problem = "another request is running on this connection; wait for its completion, or stop it"
            raise RequestError(Fault.BUSY, "request", problem)

    def _configure(self, fields: Fields) -> Generate:
        self._check_idle()
        request, options = read_config(
            with_model(fields, self._asked_model), self._limits, self._models(), self._new_id()
        )
        self._generation = Generation(request, options, self._model, keep_tokens=self._resumable)
        self._asked = None
        return request

    def _reattach(self, fields: Fields) -> Reattach:
        self._check_idle()
        given = ResumeMessage.view(fields)
        return Reattach(given.request_id, given.position or 0)

    def _control(self, fields: Fields, generation: Generation) -> Command | None:
        action = Control.view(fields).action
        if action == "regenerate":
            return self._regenerate(generation)
        if generation.ended and action == "stop":
            return None  # The end was already sent when the stop arrived.
        if generation.ended:
            raise RequestError(Fault.BAD_REQUEST, "action", f"expected a running generation to {action}, got none")
        match action:
            case "stop":
                return Cancel(generation.request.id)
            case "pause":
                return Pause()
            case "resume":
                return Resume()
            case _:
                return self._modify(fields, generation)

    def _regenerate(self, generation: Generation) -> Generate | Replace:
        if generation.lacks_media:
            problem = "expected a config with all messages again, since the media were too large to be kept"
            raise RequestError(Fault.BAD_REQUEST, "action", problem)
        request = dataclasses.replace(self._asked or generation.request, id=self._new_id())
        self._generation = Generation(request, generation.options, self._model, keep_tokens=self._resumable)
        self._asked = None
        if generation.ended:
            return request
        self._replaced = generation
        return Replace(request)

    def _modify(self, fields: Fields, generation: Generation) -> Modify:
        # Based on a modification that isn't acknowledged yet, so as not to undo it.
        request = modified(self._asked or generation.request, Control.view(fields).parameters, self._limits)
        self._asked = request
        return Modify(request)

    def _steered(self, steered: Steered, generation: Generation) -> bytes:
        command = steered.command
        if isinstance(command, Modify):
            if command.request is self._asked:
                self._asked = None
            # It may be for a generation that was replaced meanwhile.
            if steered.refusal is None and command.request.id == generation.request.id:
                generation.request = command.request
        if steered.refusal is not None:
            return error_message(steered.refusal, generation.request.id, generation.text)
        operation, message = STEERED[type(command)]
        return status(operation, 100, message)


def _feedback(fields: Fields, generation: Generation) -> Feedback:
    given = FeedbackMessage.view(fields)
    values: dict[str, Any] = {
        "request_id": generation.request.id,
        "rating": given.rating,
        "text": given.text,
        "position": given.position,
    }
    return Feedback({key: value for key, value in values.items() if value is not None})
