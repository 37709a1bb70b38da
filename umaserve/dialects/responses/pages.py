"""Pages for a kept response of OpenAI's Responses API: fetch it and its items, cancel it, delete it."""

from __future__ import annotations

import orjson

from umaserve.core.errors import Fault, RequestError
from umaserve.dialects.http import JSON
from umaserve.dialects.responses.kept import StoredResponse, TenantsResponses
from umaserve.dialects.responses.schemas import DEFAULT_PAGE, InputItemsQuery
from umaserve.wire.http_head import Request

PATH = "/v1/responses"

Reply = tuple[int, str, bytes]


def retrieve(all_kept: TenantsResponses, request: Request) -> Reply:
    """``GET /v1/responses/{id}``."""
    if request.query.get("stream", "false") not in ("false", "0", ""):
        problem = "expected false: a stored response is returned as a whole, any number of times"
        raise RequestError(Fault.BAD_REQUEST, "stream", problem)
    kept = _found(all_kept, request)
    if kept.refresh is not None:
        kept.refresh()
    return 200, JSON, kept.response


def delete(all_kept: TenantsResponses, request: Request) -> Reply:
    """``DELETE /v1/responses/{id}``."""
    kept = _found(all_kept, request)
    all_kept.drop(kept.id)
    return 200, JSON, orjson.dumps({"id": kept.id, "object": "response", "deleted": True})


def cancel(all_kept: TenantsResponses, request: Request) -> Reply:
    """``POST /v1/responses/{id}/cancel``; one that has ended stays as it is."""
    kept = _found(all_kept, request)
    if not kept.in_background:
        problem = "expected one with background: the others are cancelled by closing their connection"
        raise RequestError(Fault.BAD_REQUEST, "response_id", problem)
    if kept.cancel is not None:
        kept.cancel()
    return 200, JSON, kept.response


def input_items(all_kept: TenantsResponses, request: Request) -> Reply:
    """``GET /v1/responses/{id}/input_items``: a page of the items before the response, the newest first."""
    kept, query = _found(all_kept, request), InputItemsQuery(request.query)
    items = [orjson.loads(item) for item in kept.input]
    if query.order != "asc":
        items.reverse()
    if after := query.after:
        ids = [item.get("id") for item in items]
        if after not in ids:
            raise RequestError(Fault.BAD_REQUEST, "after", f"expected the id of an item, got {after[:64]}")
        items = items[ids.index(after) + 1 :]
    page = items[: query.limit or DEFAULT_PAGE]
    told = {
        "object": "list",
        "data": page,
        "first_id": page[0].get("id") if page else None,
        "last_id": page[-1].get("id") if page else None,
        "has_more": len(page) < len(items),
    }
    return 200, JSON, orjson.dumps(told)


def _found(all_kept: TenantsResponses, request: Request) -> StoredResponse:
    return all_kept.get(request.path.removeprefix(f"{PATH}/").partition("/")[0])
