"""Operations of the files and batches of OpenAI's API."""

from __future__ import annotations

from umaserve.dialects.batches.files import PATH
from umaserve.dialects.batches.schemas import DeleteFileReply, FileForm, FileReply, FilesQuery, ListFilesReply
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

REFERENCE = Reference("OpenAI", "", ERRORS, FILES)
