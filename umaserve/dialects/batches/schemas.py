"""Schemas of the files and batches of OpenAI's API."""

from __future__ import annotations

from typing import Any

from umaserve.core.errors import Fault, RequestError
from umaserve.dialects.batches.kept import INPUT, PURPOSES
from umaserve.wire import fields
from umaserve.wire.declared import (
    Declared,
    Kind,
    array,
    boolean,
    choice,
    const,
    nullable,
    omittable,
    optional,
    required,
    string,
    whole,
)

DEFAULT_FILES = MAX_LISTED_FILES = 10_000


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
    expires_after_anchor = optional(Kind({}, _no_expiry), _ABSENT, key="expires_after[anchor]")
    expires_after_seconds = optional(Kind({}, _no_expiry), _ABSENT, key="expires_after[seconds]")


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


class ListFilesReply(Declared):
    object_ = required(const("list"))
    data = required(array(FileReply))
    first_id = nullable(string())
    last_id = nullable(string())
    has_more = required(boolean())


class DeleteFileReply(Declared):
    id = required(string())
    object_ = required(const("file"))
    deleted = required(const(True))
