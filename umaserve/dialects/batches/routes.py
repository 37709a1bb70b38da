"""The paths of the files and batches of OpenAI's API."""

from __future__ import annotations

from umaserve.dialects.batches import files
from umaserve.dialects.batches.reference import REFERENCE
from umaserve.dialects.http import FileContent, FileUpload, HttpDialect, Page, Route
from umaserve.dialects.openai.errors import ERRORS

_FILE = f"{files.PATH}/{{file_id}}"

DIALECT = HttpDialect(
    "batches",
    {
        files.PATH: Route("GET", Page(files.list_files), also=Route("POST", FileUpload())),
        _FILE: Route("GET", Page(files.retrieve), also=Route("DELETE", Page(files.delete))),
        f"{_FILE}/content": Route("GET", FileContent()),
    },
    ERRORS,
    REFERENCE,
)
