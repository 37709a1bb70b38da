"""Schemas of the files and batches of OpenAI's API."""

from __future__ import annotations

from typing import Any

from umaserve.core.errors import Fault, RequestError
from umaserve.dialects.batches.lines import ENDPOINTS
from umaserve.dialects.batches.states import Status
from umaserve.dialects.batches.stored_batch import WINDOW
from umaserve.dialects.batches.stored_file import INPUT, PURPOSES
from umaserve.dialects.responses.schemas import METADATA
from umaserve.dialects.schemas import list_of
from umaserve.wire import fields
from umaserve.wire.declared import (
    Declared,
    Kind,
    array,
    choice,
    const,
    mapping,
    named,
    nullable,
    omittable,
    optional,
    required,
    string,
    whole,
)

DEFAULT_FILES = MAX_LISTED_FILES = 10_000
DEFAULT_BATCHES = 20


def page_size(most: int) -> Kind[int]:
    """How many of a list are wanted, at most ``most``, as a query has it."""
    wanted = whole(1, most)
    return Kind(
        wanted.schema,
        lambda given, path: wanted.read(int(given) if given.isdecimal() and len(given) < 10 else given, path),
    )


def _purpose(given: Any, path: str) -> str:
    purpose = fields.string(given, path)
    if purpose != INPUT:
        problem = f'expected "{INPUT}": this server keeps files for batches only, got {purpose[:64]}'
        raise RequestError(Fault.NOT_SUPPORTED, path, problem)
    return purpose


def _no_expiry(_given: Any, path: str) -> None:
    raise RequestError(Fault.NOT_SUPPORTED, path, "expected to be absent: --store-age says when files are deleted")


_ABSENT = "Expected to be absent: --store-age says when files are deleted."


class FileForm(Declared):
    file = required(string(contentMediaType="application/octet-stream"), "Lines of JSON: the requests of a batch.")
    purpose = required(Kind(const(INPUT).schema, _purpose))
    expires_after_anchor = optional(Kind({"type": "string"}, _no_expiry), _ABSENT, key="expires_after[anchor]")
    expires_after_seconds = optional(Kind({"type": "integer"}, _no_expiry), _ABSENT, key="expires_after[seconds]")


class FilesQuery(Declared):
    limit = omittable(page_size(MAX_LISTED_FILES), "Files of a page.", default=DEFAULT_FILES)
    order = omittable(choice("asc", "desc"), "By time.", default="desc")
    after = omittable(string(), "The id of the file that the page follows.")
    purpose = omittable(string(), "Only files with this purpose.")


class FileReply(Declared):
    id = required(string())
    object_ = required(const("file"))
    bytes = required(whole(0))
    created_at = required(whole(), "In seconds since 1970.")
    expires_at = nullable(whole(), "When it is deleted; null: when its client wants it.")
    filename = required(string())
    purpose = required(choice(*PURPOSES))
    status = required(const("processed"))


ListFilesReply = named("ListFilesReply", list_of(FileReply))


class DeleteFileReply(Declared):
    id = required(string())
    object_ = required(const("file"))
    deleted = required(const(True))


# -- batches -----------------------------------------------------------------------------------------------------


class BatchRequest(Declared):
    input_file_id = required(
        string(1, 64),
        "A file of the purpose batch. Each line is an object with custom_id, method (POST), url (the endpoint) and body"
        " (what the endpoint takes, without stream). Up to 50,000 lines, and 16 MiB each.",
    )
    endpoint = required(choice(*ENDPOINTS))
    completion_window = required(choice(WINDOW), "Lines that have not run by then never do.")
    metadata = optional(METADATA)
    output_expires_after = optional(Kind({"type": "object"}, _no_expiry), _ABSENT)


class BatchesQuery(Declared):
    limit = omittable(page_size(100), "Batches of a page.", default=DEFAULT_BATCHES)
    after = omittable(string(), "The id of the batch that the page follows.")


class _BatchProblem(Declared):
    code = required(string())
    message = required(string())
    param = nullable(string())
    line = nullable(whole(1), "The number of the line, where it is one's.")


class _BatchProblems(Declared):
    object_ = required(const("list"))
    data = required(array(_BatchProblem))


class _BatchCounts(Declared):
    total = required(whole(0))
    completed = required(whole(0))
    failed = required(whole(0))


class BatchReply(Declared):
    id = required(string())
    object_ = required(const("batch"))
    endpoint = required(choice(*ENDPOINTS))
    errors = nullable(_BatchProblems, "Why it has failed.")
    input_file_id = required(string())
    completion_window = required(const(WINDOW))
    status = required(choice(*(str(one) for one in Status)))
    output_file_id = nullable(string(), "The answers, once it has ended and has some.")
    error_file_id = nullable(string(), "The errors, likewise.")
    created_at = required(whole(), "In seconds since 1970, as all times.")
    expires_at = required(whole())
    in_progress_at = nullable(whole())
    finalizing_at = nullable(whole())
    completed_at = nullable(whole())
    failed_at = nullable(whole())
    expired_at = nullable(whole())
    cancelling_at = nullable(whole())
    cancelled_at = nullable(whole())
    request_counts = required(_BatchCounts)
    metadata = nullable(mapping(string()))


ListBatchesReply = named("ListBatchesReply", list_of(BatchReply))
