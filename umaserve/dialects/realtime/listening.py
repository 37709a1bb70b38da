"""Who hears what a user says: the session's model, or another one, which writes it down."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from umaserve.core.errors import Fault, RequestError
from umaserve.core.events import Finished, ListedModel, Token
from umaserve.core.requests import Generate
from umaserve.dialects.facts import Facts
from umaserve.dialects.openai.errors import error_fields
from umaserve.dialects.realtime.answer import Event
from umaserve.dialects.realtime.items import Item, SoundPart
from umaserve.dialects.realtime.settings import Transcribing
from umaserve.dialects.transcription import transcription

_TRANSCRIPTION = "conversation.item.input_audio_transcription"
FIELD = "audio"
"""The field that errors of a transcript name."""


def hears(model: ListedModel) -> bool:
    """Whether a model takes sound. Of one that has never been loaded, it is known only that its projector takes
    something."""
    return model.takes is None or "audio" in model.takes


def listed(facts: Facts, name: str) -> ListedModel | None:
    """The model that is meant by a name: an unknown one means the default one."""
    models = facts.models()
    named = (model for model in models if name in (model.name, *model.aliases))
    return next(named, next((model for model in models if model.default), None))


def writer(facts: Facts, session_model: str, wanted: str) -> str | None:
    """The name of the model that writes down speech: the ``wanted`` one, the session's, or any that hears; ``None``
    where there is none."""
    models = facts.models()
    own = listed(facts, session_model)
    named = [model for model in models if wanted and wanted in (model.name, *model.aliases)]
    all_ = [*named, *([] if own is None else [own]), *models]
    return next((model.name for model in all_ if hears(model)), None)


def nobody_hears() -> RequestError:
    """The error where no model takes sound."""
    problem = "this model takes no sound, and no other model of this server writes it down"
    advice = "its operator can load one that hears, with its projector (--mmproj)"
    return RequestError(Fault.NOT_SUPPORTED, "input_audio", f"{problem}: {advice}")


class Transcript:
    """The transcript of one part of an item, while it is made."""

    def __init__(self, facts: Facts, item: Item, index: int, model: str, how: Transcribing) -> None:
        """``index``: the part's place in the item. ``model``: the one that writes."""
        self.id = facts.new_id("transcript_")
        self.item = item
        self._index = index
        self._facts = facts
        self._model = model
        self._how = how
        self._texts: list[str] = []

    @property
    def part(self) -> SoundPart:
        part = self.item.parts[self._index]
        assert isinstance(part, SoundPart)
        return part

    def request(self) -> Generate:
        """The request for the text; raises ``RequestError``."""
        how, facts = self._how, self._facts
        sound = replace(self.part.media, field=FIELD)
        info = facts.model(self._model)
        asked = transcription(sound, self.id, facts.limits, info, language=how.language, prompt=how.prompt)
        return replace(asked, model=self._model)

    def push(self, token: Token) -> Iterator[Event]:
        """The event for the next text."""
        said = token.said if self._texts else token.said.lstrip()
        if said:
            self._texts.append(said)
            yield self._event("delta", delta=said)

    def finish(self, end: Finished) -> Iterator[Event]:
        """The event for the whole transcript."""
        self.part.transcript = "".join(self._texts).strip()
        usage = {
            "type": "tokens",
            "input_tokens": end.usage.prompt_tokens,
            "output_tokens": end.usage.completion_tokens,
            "total_tokens": end.usage.prompt_tokens + end.usage.completion_tokens,
        }
        yield self._event("completed", transcript=self.part.transcript, usage=usage)

    def fail(self, error: RequestError) -> Iterator[Event]:
        """The event for a transcript that can't be made."""
        self.item.problem = error.copy()
        yield self._event("failed", error=error_fields(error))

    def _event(self, kind: str, **fields: Any) -> Event:
        return {"type": f"{_TRANSCRIPTION}.{kind}", "item_id": self.item.id, "content_index": self._index, **fields}
