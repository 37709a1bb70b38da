"""The reference says at least what the one of version 0.1.0 said, which was written by hand: field by field."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from umaserve.daemon.http.pages import openapi as of_daemon
from umaserve.relay.http.pages import openapi as of_relay

BEFORE = json.loads(gzip.decompress(Path(__file__).with_name("openapi-0.1.0.json.gz").read_bytes()))
BODY = "post/requestBody/content/application/json/schema"
DIFFERENCES: dict[str, str] = {
    "/info/version": "the version",
    "^/tags$": "the Model Context Protocol is new",
    **{
        f"/paths//api/{path}/{BODY}/properties/options": (
            "Ollama's options have all sampling parameters, as they are read, and those for loading a model"
        )
        for path in ("chat", "generate", "embed", "embeddings")
    },
    "/paths//completion/post/description": "said by the schema of each field",
    **{
        f"/paths//{path}/{BODY}/{field}": "llama-server's own forms, and the defaults, which were those of another API"
        for path in ("completion", "infill")
        for field in (
            *("description", "properties/temperature/default", "properties/top_p/default"),
            *(f"properties/{name}" for name in ("seed", "top_k", "stop", "logit_bias", "lora")),
        )
    },
    "/tool_choice/oneOf$": "tools are only named there, functions in either of two ways, custom tools too",
    "/(apply-template|chat/completions).*/(tools|tool_calls)/items/(oneOf|properties|required|type)$": (
        "a function or a custom tool, and calls of them"
    ),
    "/messages/items/properties/reasoning$": "another name of reasoning_content, which was always read",
    "/delta/properties/tool_calls/": "a call comes in pieces, of which only the first has an id and a name",
    "/properties/thinking_budget_tokens$": "another name of reasoning_budget, which was always read",
    "/options/properties/(enable_thinking|chat_template_kwargs)/": "said in the words of OpenAI's API, and of more",
    "/properties/seed/(minimum|maximum)$": "seeds may have 64 bits, as OpenAI's have",
    "/n_predict/anyOf": "null was said twice",
    "/v1/messages.*/properties/messages/items/": "the role says which blocks there may be",
    "/v1/messages.*/properties/stop_sequences/": "a string may stand for an array of one",
    "/v1/messages.*/properties/system/": "oneOf instead of anyOf",
    "/v1/responses.*/properties/include/": "a string may stand for an array of one",
    "/v1/responses.*/properties/input/": "the type or role of an item says which parts there may be",
    "/v1/responses.*/generate_summary$": "another name of summary, which was always read",
    "/v1/responses.*/(reasoning_budget|stop_in_reasoning)$": "always read, as in the other APIs",
    "/v1/responses.*/format/(anyOf|oneOf|properties|required|type)": "a grammar comes with its syntax",
    "/v1/responses.*/properties/tools/items/anyOf/2/properties/tools/items/": "the same, in a namespace",
    "/v1/models.*/(context_length|max_model_len|max_tokens|max_input_tokens|n_ctx|n_ctx_train)(/|$)": (
        "each model tells its context"
    ),
    "/v1/models.*/properties/models/(items|maxItems)": "entries for Codex, where there was an empty array",
    "/api/box/get/.*/x-event/required$": "batches are part of the status",
    f"/api/box/end/{BODY}/": "a batch may be named in place of a session",
    f"/api/(pull|show)/{BODY}/": "Ollama's client in Go sends an empty model beside a name",
    "/v1/responses.*/properties/conversation/": "conversations are kept",
    "/v1/responses.*/responses/200/.*/required$": "a response repeats both penalties",
    "/v1/responses.*/(200/content|tool_choice|tools|input)/(.*/)?(one|any)Of$": "the daemon calls tools, too",
    "/v1/models.*/required": "the context is told of models that were never loaded, too",
    "/v1/models/get/.*/anyOf/0/properties/has_more/": "in Anthropic's form there may be another page",
    "/lora-adapters/get/.*/properties/scale/": "operators may set it",
    "/v1/messages.*/properties/tool_choice/": "the type tool comes with a name",
    "/error/properties/type/enum$": "a prompt that is too long has a type of its own",
    "/v1/audio/speech/.*/instructions/maxLength$": "read, and not used, since some clients always send them",
    "/requestBody/.*/examples/": "examples share their parts, and leave out what others show",
    "/paths//v1/completions/post/description$": "said of all operations, in the introduction",
    "/properties/(response_format|tools)/description$": "said of the fields, where it was said of the operation",
    "/v1/(files|batches|responses/{response_id}/input_items)/get/description$": "said by summary and parameters",
    "/paths//v1/realtime/get/parameters/1/": "said of the parameter, where it was said of its schema",
    "^/paths//(responses|audio/transcriptions|chat/completions(/input_tokens)?|completions|embeddings)$": (
        "a relay's other names of paths are told where these paths are, as the daemon's"
    ),
    "^/paths//(completion|infill|(v1/)?embedding.?|(de)?tokenize|v1/audio/.*)/post/responses/200/content/": (
        "what comes through a relay is of the types that a daemon has there"
    ),
    "/paths//v1/responses/post/operationId$": "a relay's is called as the daemon's",
    "/paths//(generate|ws/chat)/get/description$": "how frames are forwarded is told of the operation, not its reply",
    "^/paths//(completion|embedding|v1/(audio/transcriptions|chat/completions(/input_tokens)?))/post/description$": (
        "a relay's other names of these paths"
    ),
}
"""What differs, by a pattern of its place in the document, and why."""
WORDS = ("description", "summary")
"""Compared by their presence: their words may change."""
NEW_BOUNDS = ("maxLength", "minLength", "maximum", "minimum", "maxItems", "minItems", "pattern", "default")
"""Bounds and defaults that the parsers have always had, and that the document did not tell."""
NEW = r"^/paths/(?!.*/(get|post|delete)/)|/properties/[^/]+$"
"""A path, a method or a field that 0.1.0 did not have."""
NULL = {"type": "null"}


def whole(value: Any, document: dict[str, Any], within: tuple[str, ...] = ()) -> Any:
    """``value`` with its references written out, and one form for what can be said in several."""
    if isinstance(value, list):
        return [whole(item, document, within) for item in value]
    if not isinstance(value, dict):
        return value
    if isinstance(target := value.get("$ref"), str):
        if target in within:
            return {"recursive": target}
        found = document
        for part in target.removeprefix("#/").split("/"):
            found = found[part]
        beside = {key: item for key, item in value.items() if key != "$ref"}
        return whole({**found, **beside}, document, (*within, target))
    made = {
        key: bool(item) if key in WORDS and isinstance(item, str) else whole(item, document, within)
        for key, item in value.items()
    }
    for part in made.pop("allOf", ()):
        made = joined(part, made)
    if made.get("required") in (False, []):
        del made["required"]  # The default.
    if made.get("additionalProperties") is True:
        del made["additionalProperties"]  # The default.
    if "enum" in made:
        made.pop("type", None)  # The values have types.
    for way in ("oneOf", "anyOf"):
        ways = made.get(way)
        if isinstance(ways, list) and len(ways) == 2 and NULL in ways:
            other = next((each for each in ways if each != NULL), NULL)
            if isinstance(other.get("type"), str):
                made |= {**other, "type": [other["type"], "null"]}
                del made[way]
    for unordered in ("required", "type", "enum", "oneOf", "anyOf", "allOf"):
        if isinstance(made.get(unordered), list):
            made[unordered] = sorted(made[unordered], key=_signature)
    return made


def _signature(each: Any) -> str:
    """Tells the ways of a union apart without their bounds and descriptions."""
    if not isinstance(each, dict):
        return str(each)
    properties = each.get("properties", {})
    consts = [described.get("const") for described in properties.values()]
    return json.dumps([each.get("type"), each.get("const"), sorted(properties), sorted(map(str, consts))])


def joined(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """The schema of what is as both schemas say."""
    made = {**one, **other}
    if "required" in one and "required" in other:
        made["required"] = sorted({*one["required"], *other["required"]})
    properties = dict(one.get("properties", {}))
    for name, described in other.get("properties", {}).items():
        properties[name] = joined(properties[name], described) if name in properties else described
    return {**made, "properties": properties} if properties else made


def differences(before: Any, after: Any, place: str = "") -> Iterator[tuple[str, Any, Any]]:
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted({*before, *after}):
            yield from differences(before.get(key), after.get(key), f"{place}/{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for i, pair in enumerate(zip(before, after, strict=True)):
            yield from differences(*pair, f"{place}/{i}")
    elif before != after:
        yield place, before, after


@pytest.mark.parametrize(("name", "openapi"), [("daemon", of_daemon), ("relay", of_relay)])
def test_it_differs_only_where_a_reason_is_given(name: str, openapi) -> None:
    before, after = BEFORE[name], json.loads(openapi())
    for document in (before, after):
        document["tags"].sort(key=lambda tag: tag["name"])
    before, after = whole(before, before), whole(after, after)
    # Components are compared where they are used: their names may change.
    for document in (before, after):
        del document["components"]["schemas"], document["components"]["responses"]
    found = {place: pair for place, *pair in differences(before, after)}
    unexplained = {
        place: (before, after)
        for place, (before, after) in found.items()
        if not (before is None and (place.endswith(NEW_BOUNDS) or re.search(NEW, place)))
        and not any(re.search(pattern, place) for pattern in DIFFERENCES)
    }
    assert not unexplained
