"""Operations of the files and batches of OpenAI's API."""

from __future__ import annotations

from umaserve.dialects.batches import schemas
from umaserve.dialects.openai.reference import ERRORS
from umaserve.dialects.reference import Operation, Reference, Reply, form, takes

_CHATS = {"endpoint": "/v1/chat/completions", "completion_window": "24h"}

OPERATIONS = {
    ("listFiles", "GET /v1/files"): Operation(
        "List files, a page at a time", schemas.ListFilesReply, parameters=schemas.FilesQuery
    ),
    ("createFile", "POST /v1/files"): Operation(
        "Send a file. Only with --store, and for batches. The form may have a quarter of --store-bytes, which is also"
        " what all files of a key or an address may have. A file is deleted after --store-age days.",
        schemas.FileReply,
        form(schemas.FileForm),
    ),
    ("getFile", "GET /v1/files/{file_id}"): Operation("Get what is known of a file", schemas.FileReply),
    ("deleteFile", "DELETE /v1/files/{file_id}"): Operation(
        "Delete a file. A batch that has begun goes on.", schemas.DeleteFileReply
    ),
    ("getFileContent", "GET /v1/files/{file_id}/content"): Operation(
        "Get a file's content", Reply("The file's bytes.", content={"application/octet-stream": None})
    ),
    ("listBatches", "GET /v1/batches"): Operation(
        "List batches, a page at a time, the latest first", schemas.ListBatchesReply, parameters=schemas.BatchesQuery
    ),
    ("createBatch", "POST /v1/batches"): Operation(
        "Run the requests in a file. They run in the class background, a few at a time, and go on after a restart."
        " Answers are lines of the output, in any order; requests that failed are lines of the file with errors. A file"
        " with a line that is no request fails as a whole, with the line's number.",
        schemas.BatchReply,
        takes(schemas.BatchRequest, plain={"input_file_id": "file-0123456789abcdef01234567", **_CHATS}),
    ),
    ("getBatch", "GET /v1/batches/{batch_id}"): Operation("Get a batch", schemas.BatchReply),
    ("cancelBatch", "POST /v1/batches/{batch_id}/cancel"): Operation(
        "Cancel a batch. What is done by then stays.", schemas.BatchReply
    ),
}

REFERENCE = Reference("OpenAI", "", ERRORS, OPERATIONS)
