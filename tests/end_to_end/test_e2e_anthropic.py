"""Anthropic's API on the real daemon, by Anthropic's own Python client, which is given nothing but the address."""

from __future__ import annotations

import anthropic
import httpx
import pytest
from daemon import ANSWER_S, Daemon

from umaserve.access.keys import KeyFile

COLOURS = [{"role": "user", "content": "Name three colours."}]
GREEDY = {"extra_body": {"temperature": 0}}
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["C", "F"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
TOOLS = [{"name": "get_weather", "description": "The weather in a city.", "input_schema": CITY}]


@pytest.fixture(scope="module")
def client(daemon: Daemon):
    with anthropic.Anthropic(base_url=f"http://{daemon.http}", api_key="none", max_retries=0) as client:
        yield client


def create(client: anthropic.Anthropic, **wanted):
    fields = {"model": "claude-any", "max_tokens": 12, "messages": COLOURS, **GREEDY} | wanted
    return client.messages.create(**fields)


def test_a_message(client: anthropic.Anthropic):
    message = create(client)
    [block] = message.content
    assert block.type == "text"
    assert block.text
    assert (message.role, message.stop_reason, message.usage.output_tokens) == ("assistant", "max_tokens", 12)
    assert message.usage.input_tokens + message.usage.cache_read_input_tokens > 5
    assert message._request_id.startswith("req_")


def test_a_stream_says_what_the_message_says(client: anthropic.Anthropic):
    whole = create(client)
    with client.messages.stream(model="claude-any", max_tokens=12, messages=COLOURS, **GREEDY) as stream:
        text = "".join(stream.text_stream)
        message = stream.get_final_message()
    assert text == message.content[0].text == whole.content[0].text
    assert (message.stop_reason, message.usage.output_tokens) == ("max_tokens", 12)


def test_a_repeated_prompt_is_read_from_the_cache(client: anthropic.Anthropic):
    system = [{"type": "text", "text": "Be brief. " * 40, "cache_control": {"type": "ephemeral"}}]
    first = create(client, system=system, max_tokens=1).usage
    again = create(client, system=system, max_tokens=1).usage
    assert again.cache_read_input_tokens > 80
    total = [usage.input_tokens + usage.cache_read_input_tokens for usage in (first, again)]
    assert total[0] == total[1]


def test_a_billing_header_that_changes_each_turn_leaves_the_prefix_reusable(client: anthropic.Anthropic):
    def system(value: str) -> list[dict]:
        header = f"x-anthropic-billing-header: cc_version=2.1; cch={value};"
        return [{"type": "text", "text": header}, {"type": "text", "text": "Answer in French. " * 40}]

    create(client, system=system("0a1b2"), max_tokens=1)
    assert create(client, system=system("9f8e7"), max_tokens=1).usage.cache_read_input_tokens > 80


def test_a_stop_sequence(client: anthropic.Anthropic):
    text = create(client).content[0].text
    stop = text[4:7]
    message = create(client, stop_sequences=[stop])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", stop)
    assert message.content[0].text == text[: text.find(stop)]


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "get_weather"}])
def test_a_call_and_its_result(client: anthropic.Anthropic, choice: dict):
    question = {"role": "user", "content": "What is the weather in Paris?"}
    message = create(client, messages=[question], tools=TOOLS, tool_choice=choice, max_tokens=100)
    assert message.stop_reason == "tool_use"
    [call] = [block for block in message.content if block.type == "tool_use"]
    assert call.name == "get_weather"
    assert set(call.input) == {"city", "unit"}
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "18 C, rain"}]}
    answered = [question, {"role": "assistant", "content": message.content}, {"role": "user", "content": [result]}]
    assert create(client, messages=answered, tools=TOOLS).content


def test_a_streamed_call(client: anthropic.Anthropic):
    wanted = {"tools": TOOLS, "tool_choice": {"type": "any"}, "max_tokens": 100, **GREEDY}
    with client.messages.stream(model="claude-any", messages=COLOURS, **wanted) as stream:
        pieces = [event.partial_json for event in stream if event.type == "input_json"]
        message = stream.get_final_message()
    assert len(pieces) > 2
    assert set(message.content[-1].input) == {"city", "unit"}


def test_errors_are_of_the_clients_types(client: anthropic.Anthropic):
    with pytest.raises(anthropic.BadRequestError) as raised:
        create(client, messages=[{"role": "user", "content": [{"type": "video"}]}])
    body = raised.value.body
    assert body["error"]["type"] == "invalid_request_error"
    assert body["error"]["message"].startswith("messages[0].content[0].type: expected ")
    assert body["request_id"] == raised.value.request_id
    with pytest.raises(anthropic.BadRequestError, match=r"exceed context limit: \d+ \+ 12 > \d+"):
        create(client, messages=[{"role": "user", "content": "a b c d " * 5000}])
    with pytest.raises(anthropic.RequestTooLargeError):
        create(client, messages=[{"role": "user", "content": "a" * 300_000}])


def test_the_beta_query_and_a_bearer_token(daemon: Daemon):
    body = {"model": "any", "max_tokens": 2, "messages": COLOURS}
    headers = {"Authorization": "Bearer none", "anthropic-version": "2023-06-01", "anthropic-beta": "x-2099"}
    reply = httpx.post(f"http://{daemon.http}/v1/messages?beta=true", json=body, headers=headers, timeout=ANSWER_S)
    assert (reply.status_code, reply.json()["type"]) == (200, "message")


def test_a_key_is_needed_and_the_dialect_is_counted(own_daemon, tmp_path):
    file = str(tmp_path / "keys.json")
    key = KeyFile(file, missing_ok=True).add("ann")
    daemon = own_daemon("--http", "127.0.0.1:0", "--api-keys", file)
    base = f"http://{daemon.http}"
    for wrong in ({"api_key": "wrong"}, {"auth_token": "wrong"}):
        client = anthropic.Anthropic(base_url=base, max_retries=0, **wrong)
        with pytest.raises(anthropic.AuthenticationError):
            create(client)
    for right in ({"api_key": key}, {"auth_token": key}):
        client = anthropic.Anthropic(base_url=base, max_retries=0, **right)
        assert create(client, max_tokens=1).stop_reason == "max_tokens"
    metrics = httpx.get(f"{base}/metrics", headers={"x-api-key": key}).text
    assert 'dialect="anthropic"' in metrics


def test_tokens_are_counted_as_a_message_counts_them(client: anthropic.Anthropic):
    wanted = {"model": "claude-any", "system": "Be brief.", "messages": COLOURS, "tools": TOOLS}
    counted = client.messages.count_tokens(**wanted).input_tokens
    usage = create(client, **wanted, max_tokens=1).usage
    assert counted == usage.input_tokens + usage.cache_read_input_tokens


def test_models(client: anthropic.Anthropic, daemon: Daemon):
    listed = client.models.list(limit=1000)
    [model] = listed
    assert not listed.has_more
    assert client.models.retrieve("claude-any").id == client.models.retrieve(model.id).id == model.id
    with pytest.raises(anthropic.NotFoundError):
        client.models.retrieve("gpt-9")
    others = httpx.get(f"http://{daemon.http}/v1/models", headers={"x-api-key": "none"}).json()
    assert others["object"] == "list"


def test_a_probe(daemon: Daemon):
    assert httpx.head(f"http://{daemon.http}/").status_code == 200
