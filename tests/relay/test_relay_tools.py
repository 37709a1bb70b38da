"""The relay as a server of the Model Context Protocol, whose tools workers serve."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from http_wire import encode
from relay_peers import MODEL, Client, Relay, Worker

from umaserve import __version__
from umaserve.dialects.mcp.tools import TOOLS

BOTH = {"Accept": "application/json, text/event-stream"}
ASKED = {"prompt": "Why is the sky blue?", "system": "Be brief."}
RESULT = {"content": [{"type": "text", "text": "So."}], "isError": False}
USAGE = {"usage": {"prompt_tokens": 7, "completion_tokens": 5}}


def worker_of(relay: Relay, *models: str, **fields: Any) -> Worker:
    return relay.worker(*models, features=["mcp"], **fields)


def message(method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": "c", "method": method, "params": params}


def call(tool: str, **arguments: Any) -> dict[str, Any]:
    return message("tools/call", name=tool, arguments=arguments)


def send(relay: Relay, body: dict[str, Any], headers: dict[str, str] | None = None) -> Client:
    client = relay.client()
    client.send(encode("POST", "/mcp", body, BOTH | (headers or {})))
    return client


def result(client: Client) -> Any:
    response = client.receive()
    assert response.status == 200, response.body
    assert response.json["id"] == "c"
    return response.json["result"]


def refusal(client: Client) -> str:
    """The words in which a call is refused."""
    told = result(client)
    assert told["isError"] is True
    (content,) = told["content"]
    return str(content["text"])


def respond(worker: Worker, request: dict[str, Any], **meta: Any) -> None:
    said = {"jsonrpc": "2.0", "id": "c", "result": RESULT | ({"_meta": meta} if meta else {})}
    worker.complete(request, headers={"content-type": "application/json"}, body=json.dumps(said))


# -- what the relay answers itself -------------------------------------------------------------------------------------


def test_a_handshake_and_the_tools(relay: Relay) -> None:
    about = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "a", "version": "1"}}
    begun = result(send(relay, message("initialize", **about)))
    assert (begun["protocolVersion"], begun["serverInfo"]["name"]) == ("2025-11-25", "umaserve")
    noted = send(relay, {"jsonrpc": "2.0", "method": "notifications/initialized"}).receive()
    assert (noted.status, noted.body) == (202, b"")
    assert result(send(relay, message("ping"))) == {}
    assert [tool["name"] for tool in result(send(relay, message("tools/list")))["tools"]] == list(TOOLS)


@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_it_has_neither_streams_nor_sessions(relay: Relay, method: str) -> None:
    response = relay.client().ask(method, "/mcp")
    assert (response.status, response.headers["allow"], response.json["error"]["code"]) == (405, "POST", -32600)


def test_what_is_no_message_or_no_tool_is_an_error_of_json_rpc(relay: Relay) -> None:
    for body, status, code in (([], 400, -32600), (message("nothing"), 200, -32601), (call("nothing"), 200, -32602)):
        response = relay.client().ask("POST", "/mcp", body)
        assert (response.status, response.json["error"]["code"]) == (status, code)


def test_status_tells_of_the_relay(relay: Relay) -> None:
    worker = worker_of(relay, MODEL, "other", contexts={MODEL: 4096})
    waiting = send(relay, call("ask", model=MODEL, **ASKED))
    worker.request()
    told = result(send(relay, call("status")))
    assert told["structuredContent"] == json.loads(told["content"][0]["text"])
    assert told["structuredContent"] == {
        "version": __version__,
        "models": [
            {"name": MODEL, "default": False, "context_tokens": 4096},
            {"name": "other", "default": False},
        ],
        "workers": 1,
        "answers_in_progress": 1,
    }
    waiting.close()


# -- what workers answer -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("named", [{}, {"model": None}, {"model": "default"}, {"model": MODEL}])
def test_a_call_goes_to_a_worker_with_the_model_that_was_chosen(relay: Relay, named: dict[str, Any]) -> None:
    worker = worker_of(relay)
    client = send(relay, call("ask", **ASKED, **named))
    request = worker.request()
    assert (request["endpoint_path"], request["model"], request["is_streaming"]) == ("/mcp", MODEL, False)
    assert json.loads(request["body"]) == call("ask", **ASKED, model=MODEL)
    respond(worker, request)
    assert result(client) == RESULT


@pytest.mark.parametrize("mark", ["2026-07-28", "2025-11-25"])
def test_a_worker_gets_what_a_revision_says_beside_the_message(relay: Relay, mark: str) -> None:
    worker = worker_of(relay)
    headers = {"MCP-Protocol-Version": mark, "Mcp-Method": "tools/call", "Mcp-Name": "embed"}
    meta = {"io.modelcontextprotocol/protocolVersion": mark, "io.modelcontextprotocol/clientCapabilities": {}}
    body = call("embed", input="a")
    body["params"] |= {"_meta": meta}
    client = send(relay, body, headers)
    request = worker.request()
    assert {name.lower(): value for name, value in headers.items()}.items() <= request["headers"].items()
    assert request["headers"]["accept"] == BOTH["Accept"]
    assert json.loads(request["body"])["params"]["_meta"] == meta
    client.close()


def test_progress_comes_as_events(relay: Relay) -> None:
    worker = worker_of(relay)
    body = call("ask", **ASKED)
    body["params"] |= {"_meta": {"progressToken": 1}}
    client = send(relay, body)
    request = worker.request()
    assert request["is_streaming"]
    worker.chunk(request, "data: 1\n\n", status_code=200, headers={"content-type": "text/event-stream"})
    assert client.head()[0] == 200
    assert client.chunk() == b"data: 1\n\n"
    worker.crash()
    told = json.loads(client.chunk().removeprefix(b"data: "))
    assert (told["id"], told["result"]["isError"]) == ("c", True)
    assert told["result"]["content"][0]["text"] == "the worker disconnected after it had begun to answer"
    assert client.chunk() == b""


def test_speech_is_of_no_model(relay: Relay) -> None:
    worker = worker_of(relay, MODEL, "other")
    client = send(relay, call("speak", input="Hello"))
    request = worker.request()
    assert (request["model"], json.loads(request["body"])) == ("", call("speak", input="Hello"))
    client.close()


def test_a_client_that_leaves_ends_its_call(relay: Relay) -> None:
    worker = worker_of(relay)
    client = send(relay, call("ask", **ASKED))
    request = worker.request()
    client.close()
    cancel = worker.receive()
    assert (cancel["type"], cancel["request_id"]) == ("cancel", request["request_id"])


# -- refusals ----------------------------------------------------------------------------------------------------------


def test_what_cannot_be_served_is_a_result_that_says_why(relay: Relay) -> None:
    relay.worker()
    assert refusal(send(relay, call("ask", **ASKED))).endswith("have an umaserve daemon work for the relay")
    worker_of(relay, MODEL, "other")
    for body, words in (
        (call("ask", **ASKED), "model: expected a name that the tool status lists, since there is not exactly one"),
        (call("ask", **ASKED, model="nobodys"), "no provider for model nobodys"),
        (call("ask", **ASKED, model=5), "model: expected a non-empty string"),
        (call("ask", promt="a"), "promt: expected to be absent: this tool has"),
        (call("status", model=MODEL), "model: expected to be absent: this tool has none"),
    ):
        assert refusal(send(relay, body)).startswith(words)


def test_a_key_is_needed_where_there_are_keys(start: Callable[..., Relay], tmp_path: Path) -> None:
    relay = start(client_keys=str(tmp_path / "keys.json"))
    response = send(relay, message("ping")).receive()
    assert (response.status, response.json["error"]["code"]) == (401, -32600)


def test_a_keys_models_and_rates_hold(start: Callable[..., Relay], tmp_path: Path) -> None:
    relay = start(client_keys=str(tmp_path / "keys.json"))
    worker = worker_of(relay, MODEL, "other")
    key = relay.key("alice", models=[MODEL], requests_per_minute=2, **{"class": "background"})
    (shown,) = result(send(relay, call("status"), key))["structuredContent"]["models"]
    assert shown["name"] == MODEL
    assert "lists for this key, got other" in refusal(send(relay, call("ask", **ASKED, model="other"), key))
    client = send(relay, call("ask", **ASKED, model=MODEL), key)
    request = worker.request()
    headers = request["headers"]
    assert (headers["x-relay-client"], headers["x-umaserve-priority"]) == ("alice", "background")
    assert not {"authorization", "x-api-key"} & headers.keys()
    respond(worker, request, **USAGE)
    result(client)
    used = relay.admin("GET", "/keys").json["keys"][0]["used"]
    assert (used["prompt_tokens_total"], used["generated_tokens_total"]) == (7, 5)
    assert "(try again in " in refusal(send(relay, call("ask", **ASKED, model=MODEL), key))
    assert result(send(relay, message("ping"), key)) == {}
