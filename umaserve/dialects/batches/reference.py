"""Operations of the files and batches of OpenAI's API."""

from __future__ import annotations

from umaserve.dialects.batches import batches
from umaserve.dialects.batches.files import PATH
from umaserve.dialects.batches.schemas import (
    BatchesQuery,
    BatchReply,
    BatchRequest,
    DeleteFileReply,
    FileForm,
    FileReply,
    FilesQuery,
    ListBatchesReply,
    ListFilesReply,
)
from umaserve.dialects.openai.reference import ERRORS
from umaserve.dialects.reference import Body, Operation, Parameter, Reference, Reply, query_of

_ONE = f"{PATH}/{{file_id}}"
_FILE_ID = Parameter("file_id", "path")

FILES = {
    ("GET", PATH): Operation(
        "listFiles",
        "List files",
        "One page at a time, the latest first.",
        {"200": Reply("OK", json=ListFilesReply)},
        parameters=query_of(FilesQuery),
    ),
    ("POST", PATH): Operation(
        "createFile",
        "Send a file",
        "Only with --store, and for batches. The form may have up to --max-chat-bytes bytes, and a quarter of"
        " --store-bytes, which is also what all files of a key or an address may have. A file is deleted after"
        " --store-age days.",
        {"200": Reply("OK", json=FileReply)},
        body=Body(FileForm, media="multipart/form-data"),
    ),
    ("GET", _ONE): Operation(
        "getFile", "Get what is known of a file", replies={"200": Reply("OK", json=FileReply)}, parameters=(_FILE_ID,)
    ),
    ("DELETE", _ONE): Operation(
        "deleteFile",
        "Delete a file",
        "A batch that has begun goes on.",
        {"200": Reply("OK", json=DeleteFileReply)},
        parameters=(_FILE_ID,),
    ),
    ("GET", f"{_ONE}/content"): Operation(
        "getFileContent",
        "Get a file's content",
        replies={"200": Reply("The file's bytes.", content={"application/octet-stream": None})},
        parameters=(_FILE_ID,),
    ),
}

_BATCH = f"{batches.PATH}/{{batch_id}}"
_BATCH_ID = Parameter("batch_id", "path")

BATCHES = {
    ("GET", batches.PATH): Operation(
        "listBatches",
        "List batches",
        "One page at a time, the latest first.",
        {"200": Reply("OK", json=ListBatchesReply)},
        parameters=query_of(BatchesQuery),
    ),
    ("POST", batches.PATH): Operation(
        "createBatch",
        "Run the requests in a file",
        "Each line of the file is an object with custom_id, method (POST), url (the endpoint) and body (what the"
        " endpoint takes, without stream). Up to 50,000 lines, and 16 MiB each. They run in the class background, a few"
        " at a time, and go on after a restart. Answers are lines of the output, in any order; requests that failed are"
        " lines of the file with errors. A file with a line that is no request fails as a whole, with the line's"
        " number.",
        {"200": Reply("OK", json=BatchReply)},
        body=Body(
            BatchRequest,
            {
                "plain": {
                    "input_file_id": "file-0123456789abcdef01234567",
                    "endpoint": "/v1/chat/completions",
                    "completion_window": "24h",
                }
            },
        ),
    ),
    ("GET", _BATCH): Operation(
        "getBatch", "Get a batch", replies={"200": Reply("OK", json=BatchReply)}, parameters=(_BATCH_ID,)
    ),
    ("POST", f"{_BATCH}/cancel"): Operation(
        "cancelBatch",
        "Cancel a batch",
        "What is done by then stays.",
        {"200": Reply("OK", json=BatchReply)},
        parameters=(_BATCH_ID,),
    ),
}

REFERENCE = Reference("OpenAI", "", ERRORS, FILES | BATCHES)
