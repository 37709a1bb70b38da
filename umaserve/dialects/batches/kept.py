"""The files and batches of clients, with bounds on their number, size and age."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from umaserve.core.errors import Fault, RequestError
from umaserve.dialects.batches.stored_batch import StoredBatch, batch_of, packed_batch
from umaserve.dialects.batches.stored_file import StoredFile, file_of, packed_file
from umaserve.dialects.responses.kept import KeptEntries, TenantsEntries
from umaserve.dialects.responses.kept_rows import Rows

MAX_FILES = 1000
"""The most files of a tenant."""
_BATCHES_SHARE = 16
"""The share of memory for batches, of the bytes that files may have on disk, is one in so many."""


@dataclass(frozen=True, slots=True)
class TenantsFiles:
    """Files and batches of one tenant."""

    files: TenantsEntries[StoredFile]
    batches: TenantsEntries[StoredBatch]
    begin: Callable[[StoredBatch], object]
    """Begins a batch that is kept."""
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
    """Files and batches of all tenants."""

    def __init__(self, now: Callable[[], float], max_bytes: int, max_age_s: float) -> None:
        """Arguments are those of ``KeptEntries``."""
        self.files = KeptEntries[StoredFile]("file", now, max_bytes, max_age_s)
        self.batches = KeptEntries[StoredBatch]("batch", now, max_bytes // _BATCHES_SHARE, max_age_s)
        self.begin: Callable[[str, StoredBatch], object] = lambda _tenant, _batch: None
        """Begins a batch of a tenant's."""
        self._max_age_s = max_age_s

    def rows(self) -> tuple[Rows[StoredFile], Rows[StoredBatch]]:
        """How they are written to the store's file."""
        return Rows(self.files, packed_file, file_of), Rows(self.batches, packed_batch, batch_of)

    def of(self, tenant: str) -> TenantsFiles:
        begin = partial(self.begin, tenant)
        return TenantsFiles(self.files.of(tenant), self.batches.of(tenant), begin, self._max_age_s)
