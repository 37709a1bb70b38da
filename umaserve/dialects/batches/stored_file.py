"""A file that a client has sent, or that a batch has made: what is known of it, and its row in the store."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

import orjson

from umaserve.dialects.responses.kept import Entry

INPUT, OUTPUT = "batch", "batch_output"
PURPOSES = (INPUT, OUTPUT)
_FILE_ID = re.compile(r"file-[0-9a-f]{24}")


@dataclass(slots=True, eq=False, kw_only=True)
class StoredFile(Entry):
    """One file. Its content is on disk, where it has the name of its id."""

    filename: str
    """Name that its client gave it."""
    purpose: str
    length: int
    """Bytes of its content."""
    created_at: int
    """Seconds since 1970."""
    gone: Callable[[], object] = field(default=lambda: None)
    """Is called once it is forgotten."""

    def size(self) -> int:
        return self.length

    def end(self) -> None:
        self.gone()


def packed_file(file: StoredFile) -> bytes:
    """A file as JSON, without its id and its content."""
    values = {"filename": file.filename, "purpose": file.purpose, "length": file.length, "created_at": file.created_at}
    return orjson.dumps(values)


def file_of(file_id: str, content: bytes) -> StoredFile:
    """The file that ``packed_file`` was given; raises ``ValueError``."""
    match orjson.loads(content):
        case {"filename": str(name), "purpose": str(purpose), "length": int(length), "created_at": int(created_at)}:
            if purpose in PURPOSES and length >= 0 and is_file_id(file_id):
                return StoredFile(id=file_id, filename=name, purpose=purpose, length=length, created_at=created_at)
    raise ValueError("it is not a file")


def is_file_id(text: str) -> bool:
    return bool(_FILE_ID.fullmatch(text))
