"""Reads what a request of OpenAI's Responses API follows, and what is to be kept of it: for daemons and relays."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Any

import orjson

from umaserve.core.errors import Fault, PreviousNotFound, RequestError
from umaserve.dialects.responses.kept import StoredConversation, StoredResponse, TenantsEntries, TenantsKept
from umaserve.dialects.responses.schemas import MAX_ITEMS, CompactionRequest, ResponseOptions
from umaserve.wire.fields import Fields, bad_request, out_of_range
from umaserve.wire.long_texts import as_string

log = logging.getLogger(__name__)

RELAY_HEADER = "x-relay-response"
"""Tells a worker what a response says that its relay keeps, as JSON: streams pass through relays unchanged."""
_TOLD: Mapping[str, tuple[type, ...]] = {
    "background": (bool,),
    "conversation": (dict,),
    "previous_response_id": (str, NoneType),
    "store": (bool,),
}

_ANEW = "this relay stores no responses, and each request may go to another worker"


@dataclass(frozen=True, slots=True)
class Continued:
    """A conversation to which a response adds the items of its body, and its own."""

    conversation: StoredConversation
    all_kept: TenantsEntries[StoredConversation]
    items: tuple[bytes, ...]

    def end(self, output: Iterable[bytes]) -> None:
        """Add them, now that the response has ended well. A conversation that was deleted meanwhile stays deleted."""
        if not self.conversation.deleted:
            self.conversation.add((*self.items, *output))
            self.all_kept.keep(self.conversation)


@dataclass(frozen=True, slots=True)
class Keeping:
    """A body's wishes: what it follows, and what is to be kept."""

    previous: str | None
    """The id of the response that it follows."""
    conversation: StoredConversation | None
    """The conversation that it goes on with."""
    earlier: tuple[bytes, ...]
    """All items up to that response's end, or of that conversation, as JSON."""
    items: Sequence[Fields]
    """Items of the body itself."""
    store: bool
    background: bool
    """Whether it goes on without its client."""
    field: str
    """The name of the field with the body's items."""
    kept: TenantsKept | None
    """What is kept for the caller, if anything is."""
    place: TenantsEntries[StoredResponse] | None
    """Where the response is kept, if it is."""

    @property
    def whole(self) -> list[Fields]:
        """All items."""
        field = "previous_response_id." if self.conversation is None else "conversation."
        return [*(Fields(orjson.loads(item), field) for item in self.earlier), *self.items]

    def own(self, new_id: str, n_bytes: int) -> StoredResponse | None:
        """The response to keep of a body of ``n_bytes``; ``None``: nothing. Raises ``RequestError``."""
        if self.place is None:
            return None
        most = self.place.max_bytes
        if n_bytes + sum(map(len, self.earlier)) > most:
            if self.background:
                problem = f"expected at most {most} bytes with all items before where background is true, got more"
                raise RequestError(Fault.PROMPT_TOO_LARGE, self.field, problem)
            if self.store:
                log.warning("response %s: not stored, since its input is larger than %d bytes", new_id, most)
            return None
        return StoredResponse(id=new_id, input=(*self.earlier, *self._kept_items(new_id)))

    def continued(self, new_id: str) -> Continued | None:
        """What the response of this id adds to its conversation; ``None`` where it has none. Raises
        ``RequestError``."""
        if self.conversation is None or self.kept is None:
            return None
        items = (*self._kept_items(new_id),)
        check_room(self.conversation, items, self.kept.conversations, self.field)
        return Continued(self.conversation, self.kept.conversations, items)

    def _kept_items(self, new_id: str) -> Iterator[bytes]:
        unique = new_id.removeprefix("resp_")
        return (kept_item(item, f"{unique}i{i:02x}") for i, item in enumerate(self.items))

    def shown(self, own: StoredResponse | None) -> dict[str, Any]:
        """Fields that a response repeats of this."""
        return {
            "background": self.background,
            "previous_response_id": self.previous,
            "store": self.store and own is not None,
            **({} if self.conversation is None else {"conversation": {"id": self.conversation.id}}),
        }


def check_room(
    conversation: StoredConversation,
    items: Iterable[bytes],
    all_kept: TenantsEntries[StoredConversation],
    field: str,
) -> None:
    """Raise ``RequestError`` with this field where a conversation has no room for more items. It has half of its
    tenant's, so that it needn't give way to itself when an answer is added."""
    whole, most = [*conversation.texts(), *items], all_kept.max_bytes // 2
    n_bytes = sum(map(len, whole))
    if n_bytes > most or len(whole) > MAX_ITEMS:
        expected = f"at most {MAX_ITEMS} items and {most} bytes with all before in the conversation"
        raise RequestError(Fault.PROMPT_TOO_LARGE, field, f"expected {expected}, got {len(whole)} and {n_bytes}")


def relay_fields(headers: Mapping[str, str]) -> Mapping[str, Any]:
    """The fields that a relay sets in a response; none where the header, with its name in lower case, isn't well."""
    try:
        told = orjson.loads(headers.get(RELAY_HEADER, "{}"))
    except orjson.JSONDecodeError:
        return {}
    well = isinstance(told, dict) and all(key in _TOLD and isinstance(told[key], _TOLD[key]) for key in told)
    return told if well else {}


def keeping(
    fields: Fields, kept: TenantsKept | None, unstored: TenantsEntries[StoredResponse] | None = None
) -> Keeping:
    """Read the wishes from a body's fields; raises ``RequestError``. ``kept``: what is kept for the caller, if anything
    is. ``unstored``: the responses that its connection keeps, if it does."""
    given = ResponseOptions.view(fields)
    conversation = _gone_on_with(given, kept)
    previous, earlier = _followed(given, kept, unstored)
    if conversation is not None:
        earlier = tuple(conversation.items.values())
    items, field = _items(given.input, given.name("input")), given.name("input")
    store, background = given.store, given.background
    if background and kept is None:
        raise RequestError(Fault.BAD_REQUEST, given.name("background"), f"expected false: {_ANEW}")
    if background and not store:
        raise RequestError(Fault.BAD_REQUEST, given.name("store"), "expected true where background is, got false")
    if background and given.stream:
        problem = "expected false where background is true, got true: fetch the response until it has ended"
        raise RequestError(Fault.BAD_REQUEST, given.name("stream"), problem)
    stores = store and kept is not None
    place = kept.responses if store and kept is not None else unstored
    return Keeping(previous, conversation, earlier, items, stores, background, field, kept, place)


def compacting(fields: Fields, kept: TenantsKept | None) -> Keeping:
    """Read from a body's fields what is to be compacted, of which nothing is kept; raises ``RequestError``. ``kept``:
    as in ``keeping``."""
    given = CompactionRequest.view(fields)
    previous, earlier = _followed(given, kept)
    wanted, field = given.input, given.name("input")
    if wanted is None and previous is None:
        raise bad_request(field, "a string or an array of items where previous_response_id is absent", None)
    items = [] if wanted is None else _items(wanted, field)
    return Keeping(previous, None, earlier, items, store=False, background=False, field=field, kept=kept, place=None)


def _items(wanted: str | Sequence[Fields], field: str) -> Sequence[Fields]:
    """The items in a body's ``field``, where a text is a message of the user's."""
    return [Fields({"role": "user", "content": wanted}, f"{field}.")] if isinstance(wanted, str) else wanted


def _followed(
    given: ResponseOptions | CompactionRequest,
    kept: TenantsKept | None,
    unstored: TenantsEntries[StoredResponse] | None = None,
) -> tuple[str | None, tuple[bytes, ...]]:
    """The id of the response that a body follows, if any, and all items up to that response's end."""
    previous, field = given.previous_response_id, given.name("previous_response_id")
    if previous is None:
        return None, ()
    if kept is None:
        raise RequestError(Fault.BAD_REQUEST, field, f"expected to be absent: {_ANEW}; send all items")
    found = None if unstored is None else unstored.find(previous)
    if found is None:
        found = _stored(previous, kept, field)
    if found.cancel is not None:
        problem = "expected a response that has ended, got one that still runs in the background"
        raise RequestError(Fault.BAD_REQUEST, field, problem)
    return previous, (*found.input, *found.output)


def _stored(previous: str, kept: TenantsKept, field: str) -> StoredResponse:
    try:
        return kept.responses.get(previous, field)
    except RequestError as error:
        raise PreviousNotFound(error.problem) from None


def _gone_on_with(given: ResponseOptions, kept: TenantsKept | None) -> StoredConversation | None:
    """The conversation that a body goes on with, if any."""
    wanted, field = given.conversation, given.name("conversation")
    if wanted is None:
        return None
    if kept is None:
        raise RequestError(Fault.BAD_REQUEST, field, f"expected to be absent: {_ANEW}; send all items")
    if given.previous_response_id is not None:
        problem = "expected to be absent where previous_response_id is given, got both"
        raise RequestError(Fault.BAD_REQUEST, field, problem)
    return kept.conversations.get(wanted, field)


def kept_item(item: Fields, unique: str) -> bytes:
    """An item as JSON, with what clients need that list items: its type, its id, and parts for its text."""
    kind = item.values.get("type") or "message"
    values = {"id": f"item_{unique}", **item.values, "type": kind}
    if kind == "message":
        values = {"status": "completed", **values}
        if isinstance(text := values.get("content"), str | memoryview):
            part: dict[str, Any] = {"type": "input_text", "text": text}
            if values.get("role") == "assistant":
                part = {"type": "output_text", "text": text, "annotations": []}
            values["content"] = [part]
    try:
        return orjson.dumps(values, default=as_string)
    except orjson.JSONEncodeError:
        # orjson reads deeper nesting than it writes.
        raise out_of_range(item.name("type"), "an item nested less than 200 deep", "a deeper one") from None
