"""The page's client of MCP servers, in a real browser: what it sends, and what it makes of any reply."""

from __future__ import annotations

import json
from typing import Any

import pytest
from browser import BROWSER, DRIVER, MISSING, Browser
from daemon import Daemon

pytestmark = pytest.mark.skipif(DRIVER is None or BROWSER is None, reason=MISSING)

OPENED = {"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": {"name": "x", "version": "1"}}
RUN = """
const [replies, use] = values;
const { mcpClient } = await import("/page/tools/mcp.js");
const sent = [];
const plain = window.fetch;
/** A reply is {status, type, session, parts}, in which ID stands for the request's id. */
window.fetch = async (address, { method, headers, body }) => {
  if (method === "DELETE") return void sent.push([{ method }, headers]);
  const message = JSON.parse(body);
  const reply = replies[message.method]?.shift() ?? { status: 202 };
  const { status = 200, type = "application/json", session, parts = [""] } = reply;
  sent.push([message, headers]);
  const bytes = parts.map((part) => new TextEncoder().encode(part.replaceAll("ID", message.id)));
  const stream = new ReadableStream({
    pull(control) {
      if (bytes.length > 0) control.enqueue(bytes.shift());
      else control.close();
    },
  });
  const told = { "Content-Type": type, ...(session && { "Mcp-Session-Id": session }) };
  return new Response(status === 202 ? null : stream, { status, headers: told });
};
try {
  const client = mcpClient("https://tools.example/mcp", () => "secret");
  const { signal } = new AbortController();
  const result = use === "tools" ? await client.tools() : await client.call("look", { at: "it" }, signal);
  await client.close();
  return { result, sent };
} catch (error) {
  return { error: error.message, sent };
} finally {
  window.fetch = plain;
}
"""


TWO = """
const { toolServers } = await import("/page/tools/servers.js");
const plain = window.fetch;
window.fetch = async (address, { body }) => {
  const { id, method } = JSON.parse(body ?? "{}");
  const opened = { protocolVersion: "2025-11-25", capabilities: {} };
  const results = { initialize: opened, "tools/list": { tools: [{ name: "look up" }] } };
  const result = results[method] ?? { content: [{ type: "text", text: address }] };
  const headers = { "Content-Type": "application/json" };
  return new Response(JSON.stringify({ jsonrpc: "2.0", id, result }), { headers });
};
try {
  const addresses = ["https://a.example/mcp", "https://b.example/mcp"];
  const servers = toolServers({ json: async () => addresses }, localStorage);
  const on = { "look up": "ask" };
  const both = await servers.offered({ [addresses[0]]: on, [addresses[1]]: on });
  const call = { name: both.functions[1].function.name };
  const { address, tool } = both.find(call);
  Object.assign(call, { address, tool: tool.name });
  // Without the first one, the names are others.
  const one = await servers.offered({ [addresses[1]]: on });
  const { signal } = new AbortController();
  const { text } = await servers.call(one.find(call), {}, signal);
  const gone = await servers.offered({ [addresses[0]]: on });
  return { names: both.functions.map(({ function: f }) => f.name), text, gone: gone.find(call) === undefined };
} finally {
  window.fetch = plain;
}
"""


def reply(result: Any, **about: Any) -> dict[str, Any]:
    return {"parts": [f'{{"jsonrpc": "2.0", "id": ID, "result": {json.dumps(result)}}}'], **about}


def opened(**about: Any) -> dict[str, Any]:
    return reply(OPENED, **about)


def run(browser: Browser, daemon: Daemon, use: str, **replies: list[dict[str, Any]]) -> dict[str, Any]:
    """What comes of it; ``replies`` by methods, with underscores for slashes."""
    browser.open(daemon.http)
    by_method = {name.replace("_", "/"): listed for name, listed in replies.items()}
    return browser.module(RUN, by_method, use)


def test_it_shakes_hands_and_tells_session_and_version(browser: Browser, daemon: Daemon):
    found = run(browser, daemon, "call", initialize=[opened(session="s1")], tools_call=[reply({"content": []})])
    assert found["result"] == {"content": []}
    (first, plain), (second, _), (third, headers), (last, at_end) = found["sent"]
    assert (first["method"], first["params"]["protocolVersion"]) == ("initialize", "2025-11-25")
    assert "Mcp-Session-Id" not in plain
    assert (second["method"], "id" in second) == ("notifications/initialized", False)
    assert third["params"] == {"name": "look", "arguments": {"at": "it"}}
    assert (headers["Mcp-Session-Id"], headers["MCP-Protocol-Version"]) == ("s1", "2025-06-18")
    # It needs the session no more.
    assert (last["method"], at_end["Mcp-Session-Id"]) == ("DELETE", "s1")
    assert headers["Authorization"] == "Bearer secret"
    assert headers["Accept"] == "application/json, text/event-stream"


def test_tools_come_in_pages_and_only_those_with_names(browser: Browser, daemon: Daemon):
    pages = [
        reply({"tools": [{"name": "a"}, {"name": 5}, None, {"name": ""}], "nextCursor": "more"}),
        reply({"tools": [{"name": "b"}]}),
    ]
    found = run(browser, daemon, "tools", initialize=[opened()], tools_list=pages)
    assert [tool["name"] for tool in found["result"]] == ["a", "b"]
    assert [message["params"] for message, _ in found["sent"] if message["method"] == "tools/list"] == [
        {},
        {"cursor": "more"},
    ]


def test_endless_lists_end(browser: Browser, daemon: Daemon):
    pages = [reply({"tools": [{"name": f"{n}-{i}"} for i in range(50)], "nextCursor": "more"}) for n in range(10)]
    found = run(browser, daemon, "tools", initialize=[opened()], tools_list=pages)
    assert len(found["result"]) == 128


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_an_answer_among_events_is_found_wherever_they_are_cut(browser: Browser, daemon: Daemon, end: str):
    asked = '{"jsonrpc": "2.0", "id": 7, "method": "ping"}'
    told = '{"jsonrpc": "2.0", "method": "notifications/message", "params": {}}'
    answer = '{"jsonrpc": "2.0", "id": ID,\ndata: "result": {"content": [{"type": "text", "text": "ü"}]}}'
    whole = f": hello\nid: 1\ndata:\n\nevent: message\ndata: {asked}\n\ndata: {told}\n\ndata: {answer}\n\n"
    parts = [*whole.replace("ID", "2").replace("\n", end)]
    events = {"type": "text/event-stream", "parts": parts}
    found = run(browser, daemon, "call", initialize=[opened()], tools_call=[events])
    assert found["result"]["content"][0]["text"] == "ü"
    assert [message for message, _ in found["sent"] if message.get("id") == 7] == [
        {"jsonrpc": "2.0", "id": 7, "result": {}}
    ]


def test_a_server_that_has_forgotten_the_session_gets_another_handshake(browser: Browser, daemon: Daemon):
    shakes, calls = [opened(session="s1"), opened(session="s2")], [{"status": 404}, reply({"content": []})]
    found = run(browser, daemon, "call", initialize=shakes, tools_call=calls)
    assert found["result"] == {"content": []}
    assert found["sent"][-2][1]["Mcp-Session-Id"] == "s2"


@pytest.mark.parametrize(
    ("shake", "call", "words"),
    [
        ({"status": 401}, {}, "It refuses this page (status 401)."),
        ({"status": 500, "parts": ["<html>"]}, {}, "It answers with status 500."),
        ({"status": 400, "parts": ['{"error": {"message": "of the test"}}']}, {}, "of the test"),
        ({"parts": ["[]"]}, {}, "It ended its reply without an answer."),
        ({"parts": ["no JSON"]}, {}, "Its reply is no message of the protocol."),
        (reply({**OPENED, "protocolVersion": "1"}), {}, "It speaks no version of the protocol that this page knows."),
        (opened(), {"parts": ['{"id": ID, "error": {"message": "of the test"}}']}, "of the test"),
        (opened(), {"type": "text/event-stream", "parts": ["data: {\n"]}, "It ended its reply without an answer."),
        (opened(), {"status": 404}, "It answers with status 404."),
        (opened(), {"parts": ["x" * 2**20] * 5}, "Its reply has more than 4 MiB."),
    ],
)
def test_what_is_no_answer_is_told(browser: Browser, daemon: Daemon, shake: Any, call: Any, words: str):
    found = run(browser, daemon, "call", initialize=[shake], tools_call=[call])
    assert found.get("error") == words


def test_tools_of_one_name_are_told_apart(browser: Browser, daemon: Daemon):
    browser.open(daemon.http)
    found = browser.module(TWO)
    assert found == {"names": ["look_up", "look_up_2"], "text": "https://b.example/mcp", "gone": True}
