"""``docs/api/http.md`` and ``docs/api/relay.md``: what the OpenAPI documents say, for people."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from markdown import MADE, WIDTH, escaped, marked, prose, table
from schema_tables import COMPONENT, Schema, fields_table, kind, link, mark_of, names, references, variants

from umaserve.daemon.http.pages import openapi as daemon_openapi
from umaserve.relay.http.pages import openapi as relay_openapi

INTRODUCTION = """\
`GET /openapi.json` has all of this for programs, and the fields of replies too. A field may be absent unless it is
required.
"""
MESSAGES = {"x-client-message": "The client's messages", "x-server-message": "The server's messages"}
BRIEF = 12
"""Of replies with more fields only so many are named."""


def daemon_page() -> str:
    """The page of the daemon."""
    return Page(json.loads(daemon_openapi())).text("Reference of the HTTP API")


def relay_page() -> str:
    """The page of the relay."""
    return Page(json.loads(relay_openapi())).text("Reference of the relay's HTTP API")


class Page:
    """A page made of an OpenAPI document."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document
        self._schemas: Mapping[str, Schema] = document["components"]["schemas"]
        self._operations = [
            (f"{method.upper()} {path}", operation)
            for path, methods in document["paths"].items()
            for method, operation in methods.items()
        ]
        self._bodies: dict[str, str] = {}
        """The operation that shows a component as its body."""
        self._linked: list[str] = []
        """The components that are shown below all operations."""

    def text(self, title: str) -> str:
        operations = [part for tag in self._document["tags"] for part in self._tag(tag)]
        begin = [f"# {title}\n", prose(self._document["info"]["description"]), INTRODUCTION, MADE + "\n"]
        return "\n".join([*begin, *operations, *self._errors(), *self._objects()])

    def _tag(self, tag: Mapping[str, str]) -> Iterator[str]:
        mine = [(name, operation) for name, operation in self._operations if tag["name"] in operation["tags"]]
        yield f"## {tag['name']}\n"
        if "description" in tag:
            yield prose(tag["description"])
        yield table(["path", ""], [[f"[`{name}`](#{_anchor(name)})", escaped(each["summary"])] for name, each in mine])
        for name, operation in mine:
            yield from self._operation(name, operation)

    def _operation(self, name: str, operation: Mapping[str, Any]) -> Iterator[str]:
        yield f"### `{name}`\n"
        yield prose(f"{operation['summary']}.\n{operation.get('description', '')}{self._key(operation)}")
        if parameters := operation.get("parameters"):
            yield table(["parameter", "in", "kind", "meaning"], map(_parameter, parameters))
        for media, content in operation.get("requestBody", {}).get("content", {}).items():
            yield from self._body(name, media, content)
        yield from self._replies(operation["responses"])

    def _key(self, operation: Mapping[str, Any]) -> str:
        match operation.get("security"):
            case None:
                return ""
            case []:
                return "\nNeeds no key."
            case needed:
                keys = self._document["components"]["securitySchemes"]
                needs = [keys[name]["description"] for one in needed for name in one]
                return "\nNeeds " + " or ".join(need[0].lower() + need[1:] for need in needs)

    def _body(self, operation: str, media: str, content: Mapping[str, Any]) -> Iterator[str]:
        schema = content["schema"]
        name = schema.get("$ref", "").removeprefix(COMPONENT)
        if name in self._bodies:
            shown = self._bodies[name]
            yield f"Body: as for [`{shown}`](#{_anchor(shown)}).\n"
            return
        if name:
            self._bodies[name] = operation
        yield "Body:\n" if media == "application/json" else f"Body (`{media}`):\n"
        yield from self._shown(self._schemas.get(name, schema))
        if examples := [*content.get("examples", {}).values()]:
            yield f"```json\n{_json(examples[0]['value'])}\n```\n"

    def _shown(self, schema: Schema) -> Iterator[str]:
        """An object's description and fields."""
        self._linked += references(schema)
        if "description" in schema:
            yield prose(schema["description"])
        if extended := [link(each) for each in references(schema.get("allOf", []))]:
            yield marked(f"All fields of {', '.join(extended)}{', and:' if names(schema) else '.'}")
        several = variants(schema)
        if len(several) > 1 and all("$ref" in each or mark_of(each) for each in several):
            if named := [f"- {kind(each)}\n" for each in several if "$ref" in each]:
                yield "".join(named)
            for variant in several:
                if mark := mark_of(variant):
                    yield f"With `{mark[0]}` {mark[1]}:\n"
                    yield fields_table(variant)
            return
        if any("properties" not in each for each in several) and not extended:
            default = f", by default `{json.dumps(schema['default'])}`" if "default" in schema else ""
            yield marked(f"Either {kind(schema)}{default}." if len(several) > 1 else f"{kind(schema)}{default}.")
        if fields := fields_table(schema):
            yield fields

    def _replies(self, replies: Mapping[str, Any]) -> Iterator[str]:
        rows, errors = [], []
        for status, reply in replies.items():
            if "$ref" in reply:
                errors.append(link(reply["$ref"].rpartition("/")[2]))
                continue
            rows.append([f"`{status}`", escaped(reply["description"]), "; ".join(self._contents(reply))])
        yield table(["status", "", "content"], [*rows, ["`4XX`, `5XX`", ", ".join(errors), ""]])

    def _contents(self, reply: Mapping[str, Any]) -> Iterator[str]:
        for media, content in reply.get("content", {}).items():
            schema = content.get("x-event") or content.get("x-line") or content.get("schema", {})
            yield f"`{media}`" + self._brief(schema)
        for key, about in MESSAGES.items():
            if key in reply:
                self._linked += references(reply[key])
                yield f"{about}: {kind(reply[key])}"

    def _brief(self, schema: Schema) -> str:
        found = [name for variant in variants(schema) for name in names(self._resolved(variant))]
        several = [f"`{name}`" for name in dict.fromkeys(found)]
        more = ", …" if len(several) > BRIEF else ""
        return f" ({', '.join(several[:BRIEF])}{more})" if several else ""

    def _resolved(self, schema: Schema) -> Schema:
        if "$ref" in schema:
            return self._resolved(self._schemas[schema["$ref"].removeprefix(COMPONENT)])
        if schema.get("type") == "array":
            return self._resolved(schema.get("items", {}))
        return schema

    def _errors(self) -> Iterator[str]:
        yield "## Errors\n"
        shown: dict[str, str] = {}
        for name, reply in self._document["components"]["responses"].items():
            yield f"### {name}\n"
            yield prose(reply["description"])
            for content in reply["content"].values():
                first = shown.setdefault(json.dumps(content["schema"]), name)
                if first == name:
                    yield from self._shown(self._resolved(content["schema"]))
                else:
                    yield f"Fields: those of {link(first)}.\n"

    def _objects(self) -> Iterator[str]:
        yield "## Objects\n"
        shown: set[str] = set()
        while waiting := [name for name in dict.fromkeys(self._linked) if name not in shown]:
            for name in waiting:
                shown.add(name)
                yield f"### {name}\n"
                yield from self._shown(self._schemas[name])


def _parameter(one: Mapping[str, Any]) -> list[str]:
    about = one.get("description") or one["schema"].get("description", "")
    return [f"`{one['name']}`", one["in"], kind(one["schema"]), escaped(about)]


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _json(value: object) -> str:
    line = json.dumps(value, ensure_ascii=False)
    return line if len(line) <= WIDTH else json.dumps(value, ensure_ascii=False, indent=2)
