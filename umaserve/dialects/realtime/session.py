"""A session of OpenAI's Realtime API: clients' events in, and what has to be done out. Sans-IO."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from umaserve.chat_format.tool_calls import parser_for, short_ids
from umaserve.core.errors import Fault, RequestError
from umaserve.core.events import Usage
from umaserve.core.requests import Generate
from umaserve.dialects.facts import Facts
from umaserve.dialects.openai.errors import error_fields
from umaserve.dialects.realtime.ahead import Ahead, Drop, WarmUp
from umaserve.dialects.realtime.answer import Answer, Event
from umaserve.dialects.realtime.conversation import Conversation
from umaserve.dialects.realtime.input_sound import Began, Detect, Ended, Heard, InputSound, Paused, WentOn
from umaserve.dialects.realtime.items import Item, SoundPart, TextPart, conversation_turns, read_item
from umaserve.dialects.realtime.listening import Transcript, hears, listed, nobody_hears, writer
from umaserve.dialects.realtime.schemas import (
    RealtimeAudioAppend,
    RealtimeAudioClear,
    RealtimeAudioCommit,
    RealtimeItemCreate,
    RealtimeItemDelete,
    RealtimeItemReference,
    RealtimeItemRetrieve,
    RealtimeItemTruncate,
    RealtimeOutputClear,
    RealtimeResponseCancel,
    RealtimeResponseCreate,
    RealtimeResponseOptions,
    RealtimeSessionUpdate,
    read_event,
)
from umaserve.dialects.realtime.settings import (
    Transcribing,
    answer_settings,
    merged,
    of_response,
    session_settings,
    shown_output,
    shown_session,
)
from umaserve.dialects.realtime.sound_formats import sound_of
from umaserve.wire.declared import Declared
from umaserve.wire.fields import MAX_VALUES, bad_request, out_of_range, parse_json

MAX_ANSWERS = 4
"""Responses of one session that are given at a time; only one of them is added to the conversation."""
MAX_EVENT_ID_BYTES = 512


@dataclass(frozen=True, slots=True)
class Start:
    """The answer has to be begun: its ``request`` has to be run."""

    answer: Answer
    request: Generate


@dataclass(frozen=True, slots=True)
class Stop:
    """The answer has to be ended, and ``RealtimeSession.cancelled`` called."""

    answer: Answer
    reason: str


@dataclass(frozen=True, slots=True)
class Write:
    """A transcript has to be made: its ``request`` has to be run, and then ``RealtimeSession.written`` called."""

    transcript: Transcript
    request: Generate


@dataclass(frozen=True, slots=True)
class _Waiting:
    """An answer that waits for transcripts of the items that it answers."""

    answer: Answer
    items: list[Item]
    request: Generate
    """The request without the conversation."""


Step = Event | Start | Stop | Write | WarmUp | Drop | Detect
"""An event to send, or what else has to be done, in this order."""


class RealtimeSession:
    """One session. ``model``: the name that the client calls its model by; ``values``: settings to begin with.

    Raises ``RequestError`` where these can't be used. Each event to send gets its ``event_id`` by ``named``.
    """

    def __init__(self, facts: Facts, model: str, values: Mapping[str, Any]) -> None:
        self._facts = facts
        self._model = model or str(values.get("model") or "")
        self._unique = facts.new_id("")
        self._n_events = 0
        self._conversation = Conversation()
        self._settings = session_settings(values, facts.limits, facts.voice)
        self._answers: dict[str, Answer] = {}
        """Answers that are being given, by their ids."""
        self._waiting: list[_Waiting] = []
        self._transcripts: dict[str, Transcript] = {}
        """Transcripts that are being made, by their ids."""
        self._input = InputSound(self._settings, facts.speech_model)
        self._ahead = Ahead(facts, self._model)
        self._speech_id = ""
        """The id of the item that the speech which is going on becomes."""
        self._spoke = ""
        """The id of the last response that was spoken."""

    @property
    def held_bytes(self) -> int:
        """Bytes of the conversation, and of the sound that comes."""
        return self._conversation.n_bytes + self._input.n_bytes

    @property
    def busy(self) -> bool:
        """Whether a response is being given."""
        return bool(self._answers)

    def named(self, event: Event) -> Event:
        """The event with an id of its own."""
        self._n_events += 1
        return {"type": event["type"], "event_id": f"event_{self._unique}{self._n_events:x}", **event}

    def opened(self) -> Event:
        """The first event of a session."""
        return self._told("session.created")

    def receive(self, payload: bytes) -> Iterator[Step]:
        """What the client's event asks for; an error that it has is an event too."""
        event_id = None
        try:
            values = parse_json(payload, MAX_VALUES)
            if not isinstance(values, dict):
                raise bad_request("payload", "an object", values)
            given = values.get("event_id")
            event_id = given if isinstance(given, str) and len(given) <= MAX_EVENT_ID_BYTES else None
            yield from self._take(read_event(values), event_id)
        except RequestError as error:
            yield self.error(error, event_id)

    def detected(self, detect: Detect, levels: Iterable[float]) -> Iterator[Step]:
        """What the client's sound says."""
        try:
            yield from self._hear(levels)
        except RequestError as error:
            yield self.error(error, detect.event_id)

    def error(self, error: RequestError, event_id: str | None = None) -> Event:
        """The event for an error; ``event_id``: of the client's event that has it."""
        return {"type": "error", "error": {**error_fields(error), "event_id": event_id}}

    def _take(self, given: Declared, event_id: str | None) -> Iterator[Step]:
        match given:
            case RealtimeSessionUpdate():
                changes = {key: value for key, value in given.session.values.items() if key != "model"}
                values = merged(self._settings.values, changes)
                self._settings = session_settings(values, self._facts.limits, self._facts.voice)
                self._input.use(self._settings)
                yield self._told("session.updated")
            case RealtimeItemCreate():
                item = read_item(given.item, self._facts.new_id, self._settings.input)
                self._check_heard(item)
                before = self._conversation.insert(item, given.previous_item_id)
                yield from self._added(item, before)
            case RealtimeItemRetrieve():
                item = self._conversation.item(given.item_id, "item_id")
                yield {"type": "conversation.item.retrieved", "item": item.shown(whole=True)}
            case RealtimeItemDelete():
                item = self._conversation.delete(given.item_id)
                yield {"type": "conversation.item.deleted", "item_id": item.id}
            case RealtimeItemTruncate():
                yield from self._truncate(given.item_id, given.content_index, given.audio_end_ms)
            case RealtimeAudioAppend():
                sound = sound_of(given.audio, "audio", self._settings.input)
                levels = self._input.append(sound)
                if levels is not None and self._facts.speech_model is not None:
                    yield Detect(levels, event_id)
                elif levels is not None:
                    yield from self._hear(levels())
            case RealtimeAudioCommit():
                sound = self._input.commit()
                yield from self._ahead.end(answering=False)
                yield from self._commit(sound, self._speech_id or self._facts.new_id("item_"))
            case RealtimeAudioClear():
                self._input.clear()
                self._speech_id = ""
                yield from self._ahead.end(answering=False)
                yield {"type": "input_audio_buffer.cleared"}
            case RealtimeOutputClear():
                if not self._spoke:
                    raise RequestError(Fault.NOT_FOUND, "response_id", "expected a response that is spoken, got none")
                if self._active is not None and self._active.settings.spoken:
                    yield Stop(self._active, "client_cancelled")
                yield {"type": "output_audio_buffer.cleared", "response_id": self._spoke}
            case RealtimeResponseCreate():
                yield from self._answer(given.response or RealtimeResponseOptions({}, "response."))
            case RealtimeResponseCancel():
                yield from self._cancel(given.response_id)

    def _told(self, kind: str) -> Event:
        info = self._facts.model(self._model)
        model = self._model if info is None else info.name
        shown = shown_session(self._settings, model, self._facts.voice)
        return {"type": kind, "session": {"id": f"sess_{self._unique}", **shown}}

    def _added(self, item: Item, before: str | None) -> Iterator[Step]:
        """An item that is whole stands behind the item ``before``."""
        yield {"type": "conversation.item.added", "previous_item_id": before, "item": item.shown()}
        yield {"type": "conversation.item.done", "previous_item_id": before, "item": item.shown()}
        for index, part in enumerate(item.parts):
            if isinstance(part, SoundPart):
                yield from self._listen(item, index, part)

    def _truncate(self, id_: str, index: int, end_ms: int) -> Iterator[Step]:
        item = self._conversation.item(id_, "item_id")
        part = item.parts[0] if item.parts else None
        if not isinstance(part, TextPart) or part.kind != "output_audio":
            problem = "expected a message of the assistant's that was spoken, got another item"
            raise RequestError(Fault.BAD_REQUEST, "item_id", problem)
        if end_ms > part.spoken_ms:
            raise out_of_range("audio_end_ms", f"at most the {part.spoken_ms} ms of the sound", end_ms)
        if item.status == "in_progress" and self._active is not None:
            # Whoever heard no more of it hears nothing of what would follow.
            yield Stop(self._active, "client_cancelled")
        part.cut(end_ms)
        yield {
            "type": "conversation.item.truncated",
            "item_id": id_,
            "content_index": index,
            "audio_end_ms": end_ms,
        }

    # -- what the user says --------------------------------------------------------------------------------------

    def _hear(self, levels: Iterable[float]) -> Iterator[Step]:
        for change in self._input.hear(levels):
            yield from self._heard(change)

    def _heard(self, change: Heard) -> Iterator[Step]:
        turns = self._settings.turns
        assert turns is not None
        match change:
            case Began():
                self._speech_id = self._facts.new_id("item_")
                at = {"audio_start_ms": change.at_ms, "item_id": self._speech_id}
                yield {"type": "input_audio_buffer.speech_started", **at}
                if turns.interrupts and self._active is not None:
                    yield Stop(self._active, "turn_detected")
                if turns.creates and self._active is None:
                    yield from self._ahead.begin(self._settings.answers, self._conversation)
            case Paused():
                if turns.creates and self._active is None:
                    part = SoundPart(change.sound, self._settings.input, "audio")
                    yield from self._ahead.pause(self._settings.answers, self._conversation, part)
            case WentOn():
                yield from self._ahead.go_on()
            case Ended():
                at = {"audio_end_ms": change.at_ms, "item_id": self._speech_id}
                yield {"type": "input_audio_buffer.speech_stopped", **at}
                yield from self._ahead.end(answering=True)
                yield from self._commit(change.sound, self._speech_id, change.paused_at)
                if turns.creates and self._active is None:
                    yield from self._answer(RealtimeResponseOptions({}, "response."))

    def _commit(self, sound: bytes, id_: str, until: int | None = None) -> Iterator[Step]:
        self._speech_id = ""
        item = Item(id_, "message", "user", [SoundPart(sound, self._settings.input, "audio", until=until)])
        self._check_heard(item)
        before = self._conversation.insert(item)
        yield {"type": "input_audio_buffer.committed", "previous_item_id": before, "item_id": id_}
        yield from self._added(item, before)

    @property
    def _hears(self) -> bool:
        """Whether the session's model takes sound."""
        own = listed(self._facts, self._model)
        return own is not None and hears(own)

    def _check_heard(self, item: Item) -> None:
        """Refuse an item with sound that no model hears; say of each sound whether the session's does."""
        for part in item.parts:
            if isinstance(part, SoundPart):
                part.heard = self._hears
                if not part.heard and part.transcript is None and writer(self._facts, self._model, "") is None:
                    raise nobody_hears()

    def _listen(self, item: Item, index: int, part: SoundPart) -> Iterator[Step]:
        """Have a sound written down, where the model doesn't hear it or the client wants to read it."""
        how = self._settings.transcribing
        if part.transcript is not None or (part.heard and how is None):
            return
        how = how or Transcribing()
        model = writer(self._facts, self._model, how.model)
        if model is None:
            raise nobody_hears()
        transcript = Transcript(self._facts, item, index, model, how)
        self._transcripts[transcript.id] = transcript
        yield Write(transcript, transcript.request())

    def written(self, transcript: Transcript, events: Iterator[Event]) -> Iterator[Step]:
        """The ``events`` that end a transcript, and the answers that have waited for it."""
        yield from events
        self._transcripts.pop(transcript.id, None)
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            if one.answer.id in self._answers:
                yield from self._begin(one)

    # -- responses -----------------------------------------------------------------------------------------------

    def _answer(self, given: RealtimeResponseOptions) -> Iterator[Step]:
        facts, beside = self._facts, given.conversation == "none"
        if not beside and self._active is not None:
            problem = f"{self._active.id} is being given: cancel it, or wait for its response.done"
            raise RequestError(Fault.BUSY, "response", problem)
        if len(self._answers) >= MAX_ANSWERS:
            raise RequestError(Fault.BUSY, "response", f"{MAX_ANSWERS} are being given, which is the limit")
        settings = answer_settings(of_response(self._settings, given), facts.limits, facts.voice)
        unique = facts.new_id("")
        items = [*self._items_of(given)]
        turns = conversation_turns(settings.instructions, items, facts.limits)
        if not turns:
            raise RequestError(Fault.BAD_REQUEST, "response", "expected instructions or an item, got neither")
        request = settings.request(f"resp_{unique}", (), self._model, facts.limits)
        shown = {
            "conversation_id": None if beside else f"conv_{self._unique}",
            "metadata": given.metadata,
            "audio": {"output": shown_output(settings, facts.voice)},
        }
        new_call_id = short_ids(unique)
        parser = (lambda: parser_for(request, facts.model(request.model), new_call_id)) if request.tools else None
        answer = Answer(unique, settings, parser, shown, None if beside else self._conversation.add)
        self._answers[answer.id] = answer
        yield answer.begin()
        yield {"type": "rate_limits.updated", "rate_limits": []}
        if settings.spoken:
            self._spoke = answer.id
        yield from self._begin(_Waiting(answer, items, request))

    def _begin(self, one: _Waiting) -> Iterator[Step]:
        """Begin an answer, unless it has to wait for a transcript."""
        unread = [item for item in one.items if item.unread]
        if any(transcript.item in unread for transcript in self._transcripts.values()):
            self._waiting.append(one)
            return
        try:
            if unread:
                raise unread[0].problem or nobody_hears()
            turns = conversation_turns(one.answer.settings.instructions, one.items, self._facts.limits)
        except RequestError as error:
            yield from self.ended(one.answer, one.answer.fail(error))
        else:
            yield Start(one.answer, replace(one.request, prompt=turns))

    def _items_of(self, given: RealtimeResponseOptions) -> Iterator[Item]:
        """The items that a response answers."""
        if given.input is None:
            yield from self._conversation
            return
        for one in given.input:
            if isinstance(one, RealtimeItemReference):
                yield self._conversation.item(one.id, one.name("id"))
            else:
                item = read_item(one, self._facts.new_id, self._settings.input)
                self._check_heard(item)
                yield item

    @property
    def _active(self) -> Answer | None:
        """The answer that is added to the conversation."""
        return next((answer for answer in self._answers.values() if answer.in_conversation), None)

    def _cancel(self, id_: str | None) -> Iterator[Step]:
        answer = self._active if id_ is None else self._answers.get(id_)
        if answer is None:
            raise RequestError(Fault.NOT_FOUND, "response_id", "expected a response that is being given, got none")
        yield Stop(answer, "client_cancelled")

    def ended(self, answer: Answer, events: Iterator[Event]) -> Iterator[Event]:
        """The ``events`` that end an answer."""
        yield from events
        self._answers.pop(answer.id, None)

    def cancelled(self, stop: Stop, usage: Usage) -> Iterator[Event]:
        """The events for an answer that was ended."""
        return self.ended(stop.answer, stop.answer.cancel(stop.reason, usage))
