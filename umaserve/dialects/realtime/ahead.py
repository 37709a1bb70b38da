"""What of a turn's prompt is computed while the user still speaks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from umaserve.core.errors import RequestError
from umaserve.core.events import ModelState
from umaserve.core.requests import Generate, Priority
from umaserve.dialects.facts import Facts
from umaserve.dialects.realtime.items import Item, SoundPart, TextPart, conversation_turns
from umaserve.dialects.realtime.listening import hears, listed
from umaserve.dialects.realtime.settings import AnswerSettings


@dataclass(frozen=True, slots=True)
class WarmUp:
    """The prompt of ``request`` has to be computed, if it is admitted. Nobody waits for what comes of it."""

    id: str
    request: Generate


@dataclass(frozen=True, slots=True)
class Drop:
    """The warm-up of this id is needed no more. ``answering``: since the answer goes on from it."""

    id: str
    answering: bool


class Ahead:
    """Warms up for the answer of a session's next turn: from when speech begins, with the conversation before it; and
    in each pause with the sound so far, which is what the model gets if the pause is the end."""

    def __init__(self, facts: Facts, model: str) -> None:
        self._facts = facts
        self._model = model
        self._conversation = self._sound = ""
        """The ids of both warm-ups."""

    def begin(self, settings: AnswerSettings, items: Iterable[Item]) -> Iterator[WarmUp | Drop]:
        """Speech begins."""
        yield from self.end(answering=False)
        own = listed(self._facts, self._model)
        # A noise loads no model.
        if own is None or own.state is not ModelState.LOADED:
            return
        # Some templates put the instructions into the user's turn.
        coming = Item("", "message", "user", [TextPart("input_text", "")])
        for request in self._requests(settings, [*items, coming]):
            self._conversation = request.id
            yield WarmUp(request.id, replace(request, add_generation_prompt=False))

    def pause(self, settings: AnswerSettings, items: Iterable[Item], part: SoundPart) -> Iterator[WarmUp]:
        """The user pauses, and may have ended."""
        own = listed(self._facts, self._model)
        if own is None or own.state is not ModelState.LOADED or not hears(own):
            return
        for request in self._requests(settings, [*items, Item("", "message", "user", [part])]):
            self._sound = request.id
            yield WarmUp(request.id, request)

    def go_on(self) -> Iterator[Drop]:
        """The pause was not the end."""
        if self._sound:
            yield Drop(self._sound, answering=False)
        self._sound = ""

    def end(self, *, answering: bool) -> Iterator[Drop]:
        """The turn has ended. ``answering``: as the last pause has said."""
        ids, self._conversation, self._sound = (self._conversation, self._sound), "", ""
        for id_ in filter(None, ids):
            yield Drop(id_, answering)

    def _requests(self, settings: AnswerSettings, items: list[Item]) -> Iterator[Generate]:
        """The request for the prompt of ``items``, unless it can't be made, which the answer's own will say."""
        if any(item.unread for item in items):
            return
        try:
            turns = conversation_turns(settings.instructions, items, self._facts.limits)
        except RequestError:
            return
        request = settings.request(self._facts.new_id("warmup_"), turns, self._model, self._facts.limits)
        # One token, which nobody sees: without any, the prompt would not be computed.
        yield replace(request, max_tokens=1, priority=Priority.BACKGROUND)
