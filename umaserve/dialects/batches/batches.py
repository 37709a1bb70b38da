"""Pages for the batches of OpenAI's API: make one, list, show and cancel them."""

from __future__ import annotations

import orjson

from umaserve.core.errors import Fault, RequestError
from umaserve.dialects.batches.files import kept_files, page_after
from umaserve.dialects.batches.kept import TenantsFiles
from umaserve.dialects.batches.schemas import DEFAULT_BATCHES, BatchesQuery, BatchRequest
from umaserve.dialects.batches.stored_batch import StoredBatch
from umaserve.dialects.batches.stored_file import INPUT
from umaserve.dialects.facts import Facts
from umaserve.dialects.http import JSON
from umaserve.dialects.parameters import json_body
from umaserve.dialects.responses.pages import Reply, listed
from umaserve.wire.http_head import Request

PATH = "/v1/batches"
MAX_UNFINISHED = 16
"""The most batches of a tenant that have not ended."""


def create(facts: Facts, request: Request) -> Reply:
    """``POST /v1/batches``."""
    kept, given = kept_files(facts), BatchRequest.view(json_body(request.body))
    endpoint, metadata, file_id = given.endpoint, given.metadata, given.input_file_id
    _ = given.completion_window, given.output_expires_after  # Refused unless they are what there is.
    if kept.files.get(file_id, "input_file_id").purpose != INPUT:
        problem = f'expected a file with the purpose "{INPUT}", got the output of a batch'
        raise RequestError(Fault.BAD_REQUEST, "input_file_id", problem)
    unfinished = sum(not batch.ended for batch in kept.batches.all())
    if unfinished >= MAX_UNFINISHED:
        problem = f"expected at most {MAX_UNFINISHED - 1} others that have not ended, got {unfinished}: wait, or cancel"
        raise RequestError(Fault.BAD_REQUEST, "request", problem)
    batch = StoredBatch(
        id=facts.new_id("batch_"),
        endpoint=endpoint,
        input_id=file_id,
        output_id=facts.new_id("file-"),
        error_id=facts.new_id("file-"),
        created_at=facts.now(),
        metadata=metadata,
    )
    kept.batches.keep(batch)
    kept.begin(batch)
    return _told(batch)


def list_batches(facts: Facts, request: Request) -> Reply:
    """``GET /v1/batches``: a page of them, the newest first."""
    kept, query = kept_files(facts), BatchesQuery(request.query)
    batches = sorted(kept.batches.all(), key=lambda batch: batch.created_at, reverse=True)
    page, more = page_after(batches, query.after, query.limit or DEFAULT_BATCHES, "batch")
    return 200, JSON, listed([(batch.id, orjson.dumps(batch.told())) for batch in page], more=more)


def retrieve(facts: Facts, request: Request) -> Reply:
    """``GET /v1/batches/{id}``."""
    return _told(_found(kept_files(facts), request))


def cancel(facts: Facts, request: Request) -> Reply:
    """``POST /v1/batches/{id}/cancel``."""
    batch = _found(kept_files(facts), request)
    if batch.cancel is None:
        problem = f"expected one that has not ended, got one that is {batch.status}"
        raise RequestError(Fault.BAD_REQUEST, "batch_id", problem)
    batch.cancel()
    return _told(batch)


def _found(kept: TenantsFiles, request: Request) -> StoredBatch:
    return kept.batches.get(request.path.removeprefix(f"{PATH}/").partition("/")[0], "batch_id")


def _told(batch: StoredBatch) -> Reply:
    return 200, JSON, orjson.dumps(batch.told())
