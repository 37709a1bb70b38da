"""The relay's OpenAPI document: it has the routes that there are, and the relay's answers are as it says."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import openapi_spec_validator
import pytest
from relay_peers import MODEL, TOKEN, Relay

import umaserve
from umaserve.relay.http.pages import openapi
from umaserve.relay.http.relayed import ALIASES, CONVERSATIONS, RELAYED
from umaserve.relay.http.site import CONNECT

DOCUMENT = json.loads(openapi())
OPERATIONS = [
    (path, method, operation) for path, item in DOCUMENT["paths"].items() for method, operation in item.items()
]
ANSWERED = [
    ("GET", "/v1/models"),
    ("GET", "/v1/models/{model}"),
    ("GET", "/api/tags"),
    ("GET", "/api/ps"),
    ("GET", "/api/version"),
    ("GET", "/health"),
    ("GET", "/health/live"),
    ("GET", "/health/ready"),
    ("GET", "/openapi.json"),
    ("GET", "/admin/workers"),
    ("GET", "/admin/stats"),
    ("GET", "/admin/keys"),
    ("POST", "/admin/keys"),
    ("DELETE", "/admin/keys/{id}"),
    ("POST", "/admin/refresh"),
    ("POST", "/admin/workers/{id}/refresh"),
    ("POST", "/admin/workers/{id}/drain"),
]


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[Relay]:
    relay = Relay(client_keys=str(tmp_path / "keys.json"))
    yield relay
    relay.end()


def test_it_is_valid_and_of_this_version() -> None:
    openapi_spec_validator.validate(DOCUMENT)
    assert DOCUMENT["info"]["version"] == umaserve.__version__


def test_all_that_is_relayed_is_in_it() -> None:
    relayed = {(path, method) for path, method, operation in OPERATIONS if "relayed" in operation["tags"]}
    paths = RELAYED - ALIASES.keys()
    assert relayed == {(path, "post") for path in paths} | {(path, "get") for path in CONVERSATIONS}
    for alias, path in ALIASES.items():
        assert alias in DOCUMENT["paths"][path]["post"]["description"]
    assert CONNECT in DOCUMENT["paths"]


def test_each_path_has_the_methods_that_it_says(relay: Relay) -> None:
    client = relay.client()
    for path, item in DOCUMENT["paths"].items():
        allowed = client.ask("OPTIONS", re.sub(r"\{\w+\}", "x", path)).headers["allow"]
        assert set(allowed.split(", ")) - {"HEAD", "OPTIONS"} == {method.upper() for method in item}, path


def resolved(value: Any) -> Any:
    """``value`` with what its references name in their place."""
    if isinstance(value, list):
        return [resolved(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "$ref" in value:
        found = DOCUMENT
        for part in value["$ref"].removeprefix("#/").split("/"):
            found = found[part]
        return resolved(found)
    return {key: resolved(item) for key, item in value.items()}


@pytest.mark.parametrize(("method", "path"), ANSWERED)
def test_what_the_relay_answers_is_as_described(relay: Relay, method: str, path: str) -> None:
    worker = relay.worker()
    key = relay.admin("POST", "/keys", {"name": "alice"}).json["key"]
    token = TOKEN if path.startswith("/admin") else key
    url = path.replace("{model}", MODEL).replace("{id}", "1" if "keys" in path else worker.id)
    body = {"name": "bob"} if (method, path) == ("POST", "/admin/keys") else {} if method == "POST" else None
    response = relay.client().ask(method, url, body, {"Authorization": f"Bearer {token}"})
    operation = DOCUMENT["paths"][path][method.lower()]
    described = resolved(operation["responses"][str(response.status)])
    jsonschema.validate(response.json, described["content"]["application/json"]["schema"])
    assert response.status < 300


def test_what_the_relay_says_of_kept_responses_is_as_described(relay: Relay) -> None:
    worker = relay.worker()
    key = {"Authorization": f"Bearer {relay.admin('POST', '/keys', {'name': 'alice'}).json['key']}"}
    client, path = relay.client(), "/v1/responses/{response_id}"
    begun = client.ask("POST", "/v1/responses", {"input": "Hello", "background": True}, key).json
    jsonschema.validate(begun, resolved(DOCUMENT["components"]["schemas"]["Response"]))
    worker.request()
    for method, tail in (("GET", ""), ("GET", "/input_items"), ("POST", "/cancel"), ("GET", ""), ("DELETE", "")):
        url = f"/v1/responses/{begun['id']}{tail}"
        response = client.ask(method, url, {} if method == "POST" else None, key)
        described = resolved(DOCUMENT["paths"][path + tail][method.lower()]["responses"]["200"])
        jsonschema.validate(response.json, described["content"]["application/json"]["schema"])
        assert response.status == 200


def test_models_in_anthropics_form_are_as_described(relay: Relay) -> None:
    relay.worker()
    key = {"x-api-key": relay.admin("POST", "/keys", {"name": "alice"}).json["key"], "anthropic-version": "2023-06-01"}
    client, schemas = relay.client(), DOCUMENT["components"]["schemas"]
    jsonschema.validate(client.ask("GET", "/v1/models", None, key).json, resolved(schemas["AnthropicModels"]))
    jsonschema.validate(client.ask("GET", f"/v1/models/{MODEL}", None, key).json, resolved(schemas["AnthropicModel"]))


def test_the_document_is_served(relay: Relay) -> None:
    key = relay.admin("POST", "/keys", {"name": "alice"}).json["key"]
    response = relay.client().ask("GET", "/openapi.json", None, {"Authorization": f"Bearer {key}"})
    assert (response.status, response.headers["content-type"]) == (200, "application/json")
    assert response.body == openapi()
