"""Files that clients have sent, and those that batches have made: what is told of them, and their rows in the store."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

import orjson

from umaserve.core.errors import Fault, RequestError
from umaserve.dialects.responses.kept import Entry, KeptEntries, TenantsEntries
from umaserve.dialects.responses.kept_rows import Rows

MAX_FILES = 1000
"""The most files of a tenant."""
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
            if purpose in PURPOSES and length >= 0 and _FILE_ID.fullmatch(file_id):
                return StoredFile(id=file_id, filename=name, purpose=purpose, length=length, created_at=created_at)
    raise ValueError("it is no file")


@dataclass(frozen=True, slots=True)
class TenantsFiles:
    """Files of one tenant."""

    files: TenantsEntries[StoredFile]
    max_age_s: float
    """Age at which they are forgotten, in seconds; may be infinite."""

    def check_room(self, length: int) -> None:
        """Raise ``RequestError`` where there is no room for one more file of so many bytes: what a client has sent is
        never deleted for it."""
        kept = self.files.all()
        if len(kept) >= MAX_FILES:
            problem = f"expected at most {MAX_FILES - 1} others, got {len(kept)}: delete some of them"
            raise RequestError(Fault.BAD_REQUEST, "file", problem)
        held, most = sum(file.length for file in kept), self.files.max_bytes
        if held + length > most:
            problem = f"expected at most {most - held} bytes beside your other files, got {length}: delete some of them"
            raise RequestError(Fault.FRAME_TOO_LARGE, "file", problem)


class AllFiles:
    """Files of all tenants."""

    def __init__(self, now: Callable[[], float], max_bytes: int, max_age_s: float) -> None:
        """Arguments are those of ``KeptEntries``."""
        self.files = KeptEntries[StoredFile]("file", now, max_bytes, max_age_s)
        self._max_age_s = max_age_s

    def rows(self) -> tuple[Rows[StoredFile]]:
        """How they are written to the store's file."""
        return (Rows(self.files, packed_file, file_of),)

    def of(self, tenant: str) -> TenantsFiles:
        return TenantsFiles(self.files.of(tenant), self._max_age_s)
