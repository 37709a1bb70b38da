"""Pages for a kept response of OpenAI's Responses API: fetch it and its items, cancel it, delete it."""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from umaserve.core.errors import Fault, RequestError
from umaserve.dialects.http import JSON
from umaserve.dialects.responses.kept import StoredResponse, TenantsKept
from umaserve.dialects.responses.kept_schemas import DEFAULT_PAGE, ItemsQuery
from umaserve.wire.http_head import Request

PATH = "/v1/responses"

Reply = tuple[int, str, bytes]


def retrieve(all_kept: TenantsKept, request: Request) -> Reply:
    """``GET /v1/responses/{id}``."""
    if request.query.get("stream", "false") not in ("false", "0", ""):
        problem = "expected false: a stored response is returned as a whole, any number of times"
        raise RequestError(Fault.BAD_REQUEST, "stream", problem)
    kept = _found(all_kept, request)
    if kept.refresh is not None:
        kept.refresh()
    return 200, JSON, kept.response


def delete(all_kept: TenantsKept, request: Request) -> Reply:
    """``DELETE /v1/responses/{id}``."""
    kept = _found(all_kept, request)
    all_kept.responses.drop(kept.id)
    return 200, JSON, orjson.dumps({"id": kept.id, "object": "response", "deleted": True})


def cancel(all_kept: TenantsKept, request: Request) -> Reply:
    """``POST /v1/responses/{id}/cancel``; one that has ended stays as it is."""
    kept = _found(all_kept, request)
    if not kept.in_background:
        problem = "expected one with background: the others are cancelled by closing their connection"
        raise RequestError(Fault.BAD_REQUEST, "response_id", problem)
    if kept.cancel is not None:
        kept.cancel()
    return 200, JSON, kept.response


def input_items(all_kept: TenantsKept, request: Request) -> Reply:
    """``GET /v1/responses/{id}/input_items``: a page of the items before the response, the newest first."""
    items = [(orjson.loads(item).get("id"), item) for item in _found(all_kept, request).input]
    return 200, JSON, page_of(items, request)


def page_of(
    items: Sequence[tuple[str | None, bytes]], request: Request, *, kind: str = "item", **beside: object
) -> bytes:
    """The page of items that a request's query asks for. ``items``: with their ids, the oldest first; ``kind``: as
    errors name them. ``beside``: what the list tells besides."""
    query = ItemsQuery(request.query)
    ordered = items if query.order == "asc" else items[::-1]
    if after := query.after:
        ids = [item_id for item_id, _item in ordered]
        if after not in ids:
            raise RequestError(Fault.BAD_REQUEST, "after", f"expected the id of a listed {kind}, got {after[:64]}")
        ordered = ordered[ids.index(after) + 1 :]
    page = ordered[: query.limit or DEFAULT_PAGE]
    return listed(page, more=len(page) < len(ordered), **beside)


def listed(page: Sequence[tuple[str | None, bytes]], *, more: bool, **beside: object) -> bytes:
    """A list of items in this API's form. ``more``: whether others follow. ``beside``: what it tells besides."""
    told = {
        "object": "list",
        "data": [orjson.Fragment(item) for _id, item in page],
        "first_id": page[0][0] if page else None,
        "last_id": page[-1][0] if page else None,
        "has_more": more,
        **beside,
    }
    return orjson.dumps(told)


def _found(all_kept: TenantsKept, request: Request) -> StoredResponse:
    return all_kept.responses.get(request.path.removeprefix(f"{PATH}/").partition("/")[0], "response_id")
