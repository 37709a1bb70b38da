"""Pages for the files of OpenAI's API: list, show and delete them; and the form by which one is sent."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import orjson

from umaserve.core.errors import Fault, RequestError
from umaserve.dialects.batches.kept import TenantsFiles
from umaserve.dialects.batches.schemas import DEFAULT_FILES, FileForm, FilesQuery
from umaserve.dialects.batches.stored_file import StoredFile
from umaserve.dialects.facts import Facts
from umaserve.dialects.http import JSON
from umaserve.dialects.responses.pages import Reply, listed
from umaserve.wire.http_head import Request
from umaserve.wire.multipart import Part, read_form

PATH = "/v1/files"
MAX_NAME_BYTES = 255
_NO_STORE = "this server keeps no files: start it with --store DIR"


class Sent(NamedTuple):
    """A file that a client has sent; its content is a view into the body."""

    filename: str
    content: memoryview


def read_sent(body: bytes, content_type: str) -> Sent:
    """The file in a form; raises ``RequestError``."""
    parts = read_form(body, content_type)
    given = FileForm({part.name: _text(part) for part in parts if part.name != "file"})
    _ = given.purpose, given.expires_after_anchor, given.expires_after_seconds  # Refused unless they are as expected.
    files = [part for part in parts if part.name == "file"]
    if len(files) != 1 or not files[0].data:
        got = f"{len(files) or 'none'}" if len(files) != 1 else "an empty one"
        raise RequestError(Fault.BAD_REQUEST, "file", f"expected one file with lines of JSON, got {got}")
    name = (files[0].filename or "").encode()[:MAX_NAME_BYTES].decode(errors="ignore")
    return Sent(name or "input.jsonl", files[0].data)


def _text(part: Part) -> str:
    return bytes(part.data[:1024]).decode(errors="replace")


def kept_files(facts: Facts) -> TenantsFiles:
    """The client's files; raises ``RequestError`` where the server keeps none."""
    if facts.files is None:
        raise RequestError(Fault.NOT_SUPPORTED, "request", _NO_STORE)
    return facts.files


def found(kept: TenantsFiles, request: Request) -> StoredFile:
    """The file in the path; raises ``RequestError``."""
    return kept.files.get(request.path.removeprefix(f"{PATH}/").partition("/")[0], "file_id")


def list_files(facts: Facts, request: Request) -> Reply:
    """``GET /v1/files``: a page of them, the newest first."""
    kept, query = kept_files(facts), FilesQuery(request.query)
    order, purpose, limit = query.order, query.purpose, query.limit or DEFAULT_FILES
    files = [file for file in kept.files.all() if purpose in (None, file.purpose)]
    page, more = page_after(files if order == "asc" else files[::-1], query.after, limit, "file")
    return 200, JSON, listed([(file.id, orjson.dumps(told(kept, file))) for file in page], more=more)


def page_after(entries: Sequence[Any], after: str | None, limit: int, kind: str) -> tuple[Sequence[Any], bool]:
    """The entries that follow the one of the id ``after``, at most ``limit`` of them, and whether others follow these;
    raises ``RequestError``."""
    if after:
        ids = [entry.id for entry in entries]
        if after not in ids:
            raise RequestError(Fault.BAD_REQUEST, "after", f"expected the id of a {kind}, got {after[:64]}")
        entries = entries[ids.index(after) + 1 :]
    return entries[:limit], len(entries) > limit


def retrieve(facts: Facts, request: Request) -> Reply:
    """``GET /v1/files/{id}``."""
    kept = kept_files(facts)
    return 200, JSON, orjson.dumps(told(kept, found(kept, request)))


def delete(facts: Facts, request: Request) -> Reply:
    """``DELETE /v1/files/{id}``."""
    kept = kept_files(facts)
    file = found(kept, request)
    kept.files.drop(file.id)
    return 200, JSON, orjson.dumps({"id": file.id, "object": "file", "deleted": True})


def told(kept: TenantsFiles, file: StoredFile) -> dict[str, Any]:
    """A file as clients see it."""
    ages = not math.isinf(kept.max_age_s)
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.length,
        "created_at": file.created_at,
        "expires_at": file.created_at + int(kept.max_age_s) if ages else None,
        "filename": file.filename,
        "purpose": file.purpose,
        "status": "processed",
    }
