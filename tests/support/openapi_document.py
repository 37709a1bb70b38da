"""The published OpenAPI document: its operations, and whether requests and answers are as it describes them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema

from umaserve.daemon.http.pages import openapi

Schema = dict[str, Any]
"""A schema, or what else of the document has some."""

DOCUMENT: Schema = json.loads(openapi())
OPERATIONS = [(path, method, op) for path, item in DOCUMENT["paths"].items() for method, op in item.items()]
BODIES = {path: op for path, method, op in OPERATIONS if method == "post" and "requestBody" in op}
"""Those that read their body; the others refuse whatever comes."""
POSTS = {path: op for path, op in BODIES.items() if "application/json" in op["requestBody"]["content"]}
FORMS = {path: op for path, op in BODIES.items() if path not in POSTS}
ENDLESS = ("/api/box", "/models/sse", "/v1/stream")
"""Streams, which last as long as what they tell of."""
GETS = {
    path: op
    for path, method, op in OPERATIONS
    if method == "get" and "101" not in op["responses"] and path not in ENDLESS
}
EXAMPLES = [
    (path, name, example["value"])
    for path, op in POSTS.items()
    for name, example in op["requestBody"]["content"]["application/json"]["examples"].items()
]


def resolved(value: Schema) -> Schema:
    """``value``, or what its reference names, which null may stand for."""
    if "$ref" not in value:
        ways = [way for way in value.get("oneOf", ()) if way != {"type": "null"}]
        return resolved(ways[0]) if len(ways) == 1 else value
    found: Schema = DOCUMENT
    for part in value["$ref"].removeprefix("#/").split("/"):
        found = found[part]
    return found


def closed(value: Any) -> Any:
    """A copy in which objects have no more properties than are listed."""
    if isinstance(value, list):
        return [closed(item) for item in value]
    if not isinstance(value, dict):
        return value
    copied = {key: closed(item) for key, item in value.items()}
    if copied.get("type") == "object" and "properties" in copied:
        copied.setdefault("additionalProperties", False)
    return copied


CLOSED = closed(DOCUMENT["components"])


def check_answer(instance: Any, schema: Schema) -> None:
    jsonschema.Draft202012Validator({**closed(schema), "components": CLOSED}).validate(instance)


def check_request(instance: Any, schema: Schema) -> None:
    root = {**schema, "unevaluatedProperties": False, "components": DOCUMENT["components"]}
    jsonschema.Draft202012Validator(root).validate(instance)


def check_response(response: httpx.Response, operation: Schema) -> None:
    """The status, the type of content and the content are among those that ``operation`` lists."""
    answers, status = operation["responses"], str(response.status_code)
    described = resolved(answers.get(status) or answers[f"{status[0]}XX"])
    if "content" not in described:
        assert not response.content
        return
    content = described["content"][response.headers["content-type"].partition(";")[0]]
    if "schema" not in content:
        assert response.content
        return
    if "x-line" in content:
        for line in response.text.splitlines():
            check_answer(json.loads(line), content["x-line"])
        return
    if "x-event" not in content:
        is_text = content["schema"].get("type") == "string"
        check_answer(response.text if is_text else response.json(), content["schema"])
        return
    events = [event.rpartition("data: ")[2] for event in response.text.split("\n\n")[:-1]]
    if "[DONE]" in content["schema"]["description"]:
        assert events.pop() == "[DONE]"
    assert events
    for event in events:
        check_answer(json.loads(event), content["x-event"])


def request_schema(operation: Schema) -> Schema:
    schema: Schema = operation["requestBody"]["content"]["application/json"]["schema"]
    return schema


def fields(schema: Schema, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Schema]]:
    """Every field of a request, with those of the objects in it."""
    schema = resolved(schema)
    for part in schema.get("allOf", ()):
        yield from fields(part, path)
    for name, described in schema.get("properties", {}).items():
        yield (*path, name), described
        yield from fields(described, (*path, name))
