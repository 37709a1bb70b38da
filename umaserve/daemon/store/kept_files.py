"""The files that clients have sent, and those that batches have made: what is known of them, and their contents."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial

from umaserve.core.errors import Fault, RequestError
from umaserve.daemon.store.file_folder import FileFolder
from umaserve.dialects.batches.kept import AllFiles
from umaserve.dialects.batches.stored_file import INPUT, StoredFile

log = logging.getLogger(__name__)


class KeptFiles:
    """Files of all tenants. A file is on disk before it is known, and until it is no longer."""

    def __init__(self, folder: FileFolder, kept: AllFiles) -> None:
        """``kept``: as the store's file has it."""
        self.folder = folder
        self.kept = kept
        for _tenant, file in kept.files.everyones():
            file.gone = partial(folder.delete, file.id)
        unfinished = [name for _tenant, batch in kept.batches.everyones() for name in batch.names]
        folder.tidy([*unfinished, *(file.id for _tenant, file in kept.files.everyones())])

    def take(
        self,
        tenant: str,
        file_id: str,
        body: bytes,
        content_type: str,
        done: Callable[[StoredFile | RequestError], None],
    ) -> None:
        """Keep the file of a form, and call ``done`` with it, or with what is wrong."""

        def written(result: object) -> None:
            match result:
                case (str(filename), int(length)):
                    done(self._kept(tenant, file_id, filename, length))
                case RequestError():
                    done(result)
                case _:
                    log.error("store: a client's file can't be written: %s", result)
                    done(RequestError(Fault.DECODE_FAILED, "file", "it can't be written; see the server's log"))

        self.folder.keep(file_id, body, content_type, written)

    def _kept(self, tenant: str, file_id: str, filename: str, length: int) -> StoredFile | RequestError:
        try:
            # Only now, since several may come at once.
            self.kept.of(tenant).check_room(length)
        except RequestError as error:
            self.folder.delete(file_id)
            return error
        file = self.new_file(file_id, filename, INPUT, length)
        self.kept.files.keep(tenant, file)
        return file

    def new_file(self, file_id: str, filename: str, purpose: str, length: int) -> StoredFile:
        """What is known of a file that is on disk."""
        gone = partial(self.folder.delete, file_id)
        return StoredFile(
            id=file_id, filename=filename, purpose=purpose, length=length, created_at=int(time.time()), gone=gone
        )
