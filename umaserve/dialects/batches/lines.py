"""The lines of a batch: requests as they are read from a file, and results as they are written to one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import orjson

from umaserve.core.errors import Fault, RequestError
from umaserve.dialects.batches.stored_batch import MAX_PROBLEMS, Problem
from umaserve.wire.declared import Declared, choice, required, string, value
from umaserve.wire.fields import MAX_VALUES, Fields, bad_request, out_of_range, parse_json
from umaserve.wire.long_texts import as_string

ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")
MAX_LINES = 50_000
MAX_LINE_BYTES = 16 << 20
MAX_ID_CHARS = 512
_ALONE = ("stream", "background")
"""Fields of bodies that only mean something to a client that waits."""


class BatchLine(Declared):
    """One line of a batch's input."""

    custom_id = required(string(1, MAX_ID_CHARS), "It names the result; no other line of the file may have it.")
    method = required(choice("POST"))
    url = required(choice(*ENDPOINTS), "The batch's endpoint.")
    body = required(value(type="object"), "The body of the request, as the endpoint takes it, without stream.")


class Line(NamedTuple):
    """A request of a batch."""

    number: int
    """Counts the lines of the file, from 1."""
    custom_id: str
    body: bytes


class Checked(NamedTuple):
    """What the lines of a file are."""

    total: int
    problems: list[Problem]


def read_line(text: bytes, number: int, endpoint: str) -> Line:
    """The request in a line of a file; raises ``RequestError``."""
    if len(text) > MAX_LINE_BYTES:
        raise out_of_range("line", f"at most {MAX_LINE_BYTES} bytes", f"{len(text)} or more")
    values = parse_json(text, MAX_VALUES)
    if not isinstance(values, dict):
        raise bad_request("line", "an object", values)
    given = BatchLine(values)
    custom_id, _method, url = given.custom_id, given.method, given.url
    if url != endpoint:
        raise out_of_range("url", f"the batch's endpoint, {endpoint}", url)
    body = Fields.of(given.body, "body")
    try:
        return Line(number, custom_id, orjson.dumps(body.values, default=as_string))
    except orjson.JSONEncodeError:
        # orjson reads deeper nesting than it writes.
        raise out_of_range("body", "an object nested less than 200 deep", "a deeper one") from None


def check_lines(lines: Iterable[tuple[int, bytes]], endpoint: str) -> Checked:
    """Look at all lines, given with their numbers. The first ``MAX_PROBLEMS`` problems are told."""
    seen = set[str]()
    problems: list[Problem] = []
    for number, text in lines:
        if len(problems) == MAX_PROBLEMS:
            break
        try:
            line = read_line(text, number, endpoint)
        except RequestError as error:
            code = "invalid_json_line" if error.fault is Fault.INVALID_JSON else "invalid_request"
            problems.append(Problem(code, error.message, error.field or None, number))
            if len(text) > MAX_LINE_BYTES:
                break
            continue
        if line.custom_id in seen:
            message = f"custom_id: expected one that no line before has, got {line.custom_id[:64]}"
            problems.append(Problem("duplicate_custom_id", message, "custom_id", number))
        seen.add(line.custom_id)
        if len(seen) > MAX_LINES:
            message = f"input_file_id: expected a file of at most {MAX_LINES} requests, got more"
            problems.append(Problem("too_many_requests", message, "input_file_id", number))
            break
    if not seen and not problems:
        problems.append(Problem("empty_file", "input_file_id: expected a file with requests, got none"))
    return Checked(len(seen), problems)


def check_alone(body: bytes) -> None:
    """Raise ``RequestError`` for a body whose answer would not be there when it has ended."""
    values = orjson.loads(body)
    for name in _ALONE:
        if values.get(name):
            raise RequestError(Fault.BAD_REQUEST, name, "expected false or to be absent in a batch")


def answered(batch_id: str, line: Line, status: int, body: bytes) -> bytes:
    """The line of a file for a request that was answered with this JSON; refusals are answers too."""
    request_id = f"batch_req_{batch_id.removeprefix('batch_')}{line.number:06x}"
    response = {"status_code": status, "request_id": request_id, "body": orjson.Fragment(body)}
    return _written(request_id, line, response, None)


def not_run(batch_id: str, line: Line, code: str, message: str) -> bytes:
    """The line of a file for a request that never ran."""
    request_id = f"batch_req_{batch_id.removeprefix('batch_')}{line.number:06x}"
    return _written(request_id, line, None, {"code": code, "message": message})


def _written(request_id: str, line: Line, response: dict[str, Any] | None, error: dict[str, str] | None) -> bytes:
    values = {"id": request_id, "custom_id": line.custom_id, "response": response, "error": error}
    return orjson.dumps(values, option=orjson.OPT_APPEND_NEWLINE)


def id_of(written: bytes) -> str | None:
    """The ``custom_id`` of a line that was written; ``None`` where it isn't whole."""
    try:
        values = orjson.loads(written)
    except orjson.JSONDecodeError:
        return None
    custom_id = values.get("custom_id") if isinstance(values, dict) else None
    return custom_id if isinstance(custom_id, str) and written.endswith(b"\n") else None
