"""The paths of the files and batches of OpenAI's API."""

from __future__ import annotations

from umaserve.dialects.batches import batches, files
from umaserve.dialects.batches.reference import REFERENCE
from umaserve.dialects.openai.errors import ERRORS
from umaserve.dialects.routes import FileContent, FileUpload, HttpDialect, Page, Route

_FILE, _BATCH = f"{files.PATH}/{{file_id}}", f"{batches.PATH}/{{batch_id}}"

DIALECT = HttpDialect(
    "batches",
    {
        files.PATH: Route("GET", Page(files.list_files), also=Route("POST", FileUpload())),
        _FILE: Route("GET", Page(files.retrieve), also=Route("DELETE", Page(files.delete))),
        f"{_FILE}/content": Route("GET", FileContent()),
        batches.PATH: Route("GET", Page(batches.list_batches), also=Route("POST", Page(batches.create))),
        _BATCH: Route("GET", Page(batches.retrieve)),
        f"{_BATCH}/cancel": Route("POST", Page(batches.cancel)),
    },
    ERRORS,
    REFERENCE,
)
