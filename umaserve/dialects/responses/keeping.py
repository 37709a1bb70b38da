"""Reads what a request of OpenAI's Responses API follows, and what is to be kept of it: for daemons and relays."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Any

import orjson

from umaserve.core.errors import Fault, RequestError
from umaserve.dialects.responses.kept import MAX_BYTES, StoredResponse, TenantsResponses
from umaserve.dialects.responses.schemas import CompactionRequest, ResponseOptions
from umaserve.wire.fields import Fields, bad_request, out_of_range
from umaserve.wire.long_texts import as_string

log = logging.getLogger(__name__)

RELAY_HEADER = "x-relay-response"
"""Tells a worker what a response says that its relay keeps, as JSON: streams pass through relays unchanged."""
_TOLD: Mapping[str, tuple[type, ...]] = {
    "background": (bool,),
    "previous_response_id": (str, NoneType),
    "store": (bool,),
}

_ANEW = "this relay stores no responses, and each request may go to another worker"


@dataclass(frozen=True, slots=True)
class Keeping:
    """A body's wishes: what it follows, and what is to be kept."""

    previous: str | None
    """The id of the response that it follows."""
    earlier: tuple[bytes, ...]
    """All items up to that response's end, as JSON."""
    items: Sequence[Fields]
    """Items of the body itself."""
    store: bool
    background: bool
    """Whether it goes on without its client."""
    field: str
    """The name of the field with the body's items."""

    @property
    def whole(self) -> list[Fields]:
        """All items."""
        return [*(Fields(orjson.loads(item), "previous_response_id.") for item in self.earlier), *self.items]

    def own(self, new_id: str, n_bytes: int) -> StoredResponse | None:
        """The response to keep of a body of ``n_bytes``; ``None``: nothing. Raises ``RequestError``."""
        if not self.store:
            return None
        if n_bytes + sum(map(len, self.earlier)) > MAX_BYTES:
            if self.background:
                problem = f"expected at most {MAX_BYTES} bytes with all items before where background is true, got more"
                raise RequestError(Fault.PROMPT_TOO_LARGE, self.field, problem)
            log.warning("response %s: not stored, since its input is larger than %d bytes", new_id, MAX_BYTES)
            return None
        unique = new_id.removeprefix("resp_")
        items = (kept_item(item, f"{unique}i{i:02x}") for i, item in enumerate(self.items))
        return StoredResponse(new_id, (*self.earlier, *items))

    def shown(self, own: StoredResponse | None) -> dict[str, Any]:
        """Fields that a response repeats of this."""
        return {
            "background": self.background,
            "previous_response_id": self.previous,
            "store": own is not None,
        }


def relay_fields(headers: Mapping[str, str]) -> Mapping[str, Any]:
    """The fields that a relay sets in a response; none where the header, with its name in lower case, isn't well."""
    try:
        told = orjson.loads(headers.get(RELAY_HEADER, "{}"))
    except orjson.JSONDecodeError:
        return {}
    well = isinstance(told, dict) and all(key in _TOLD and isinstance(told[key], _TOLD[key]) for key in told)
    return told if well else {}


def keeping(fields: Fields, kept: TenantsResponses | None) -> Keeping:
    """Read the wishes from a body's fields; raises ``RequestError``. ``kept``: the caller's responses, if any are
    kept."""
    given = ResponseOptions.view(fields)
    previous, earlier = _followed(given, kept)
    items, field = _items(given.input, given.name("input")), given.name("input")
    store, background = given.store, given.background
    if background and kept is None:
        raise RequestError(Fault.BAD_REQUEST, given.name("background"), f"expected false: {_ANEW}")
    if background and not store:
        raise RequestError(Fault.BAD_REQUEST, given.name("store"), "expected true where background is, got false")
    if background and given.stream:
        problem = "expected false where background is true, got true: fetch the response until it has ended"
        raise RequestError(Fault.BAD_REQUEST, given.name("stream"), problem)
    return Keeping(previous, earlier, items, store and kept is not None, background, field)


def compacting(fields: Fields, kept: TenantsResponses | None) -> Keeping:
    """Read from a body's fields what is to be compacted, of which nothing is kept; raises ``RequestError``. ``kept``:
    as in ``keeping``."""
    given = CompactionRequest.view(fields)
    previous, earlier = _followed(given, kept)
    wanted, field = given.input, given.name("input")
    if wanted is None and previous is None:
        raise bad_request(field, "a string or an array of items where previous_response_id is absent", None)
    items = [] if wanted is None else _items(wanted, field)
    return Keeping(previous, earlier, items, store=False, background=False, field=field)


def _items(wanted: str | Sequence[Fields], field: str) -> Sequence[Fields]:
    """The items in a body's ``field``, where a text is a message of the user's."""
    return [Fields({"role": "user", "content": wanted}, f"{field}.")] if isinstance(wanted, str) else wanted


def _followed(
    given: ResponseOptions | CompactionRequest, kept: TenantsResponses | None
) -> tuple[str | None, tuple[bytes, ...]]:
    """The id of the response that a body follows, if any, and all items up to that response's end."""
    previous, field = given.previous_response_id, given.name("previous_response_id")
    if previous is None:
        return None, ()
    if kept is None:
        raise RequestError(Fault.BAD_REQUEST, field, f"expected to be absent: {_ANEW}; send all items")
    found = kept.get(previous, field)
    if found.cancel is not None:
        problem = "expected a response that has ended, got one that still runs in the background"
        raise RequestError(Fault.BAD_REQUEST, field, problem)
    return previous, (*found.input, *found.output)


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
