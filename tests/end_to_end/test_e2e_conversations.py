"""Conversations on the real daemon, by OpenAI's own Python client."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from daemon import Daemon

from umaserve.access.keys import KeyFile
from umaserve.daemon.store.kept_file import NAME

FIRST, SECOND = "Name three colours.", "And a fourth?"
Client = Callable[[Daemon, str], openai.OpenAI]


def create(client: openai.OpenAI, text: str, conversation: Any, **wanted: Any):
    fields: dict[str, Any] = {"model": "any", "input": text, "max_output_tokens": 12, "temperature": 0}
    return client.responses.create(**fields, conversation=conversation, **wanted)


def texts(client: openai.OpenAI, conversation_id: str) -> list[str]:
    items: Any = client.conversations.items.list(conversation_id, order="asc", limit=1)
    return [item.content[0].text for item in items]


def test_responses_go_on_with_a_conversation_and_reuse_what_was_computed(daemon: Daemon, connect: Client):
    client = connect(daemon, "none")
    conversation = client.conversations.create(metadata={"topic": "colours"})
    first = create(client, FIRST, conversation.id)
    second = create(client, SECOND, {"id": conversation.id})
    assert first.conversation is not None
    assert first.conversation.id == conversation.id
    assert second.usage is not None
    assert first.usage is not None
    assert second.usage.input_tokens_details.cached_tokens >= first.usage.input_tokens
    assert texts(client, conversation.id) == [FIRST, first.output_text, SECOND, second.output_text]


def test_a_stream_goes_on_with_a_conversation(daemon: Daemon, connect: Client):
    client = connect(daemon, "none")
    conversation = client.conversations.create(items=[{"type": "message", "role": "user", "content": "Hello!"}])
    with create(client, FIRST, conversation.id, stream=True) as stream:
        [*_, last] = stream
    assert texts(client, conversation.id) == ["Hello!", FIRST, last.response.output_text]


def test_items_are_added_listed_and_deleted(daemon: Daemon, connect: Client):
    client = connect(daemon, "none")
    one = client.conversations.create().id
    said: Any = [{"type": "message", "role": "user", "content": text} for text in ("a", "b", "c")]
    added = client.conversations.items.create(one, items=said)
    assert texts(client, one) == ["a", "b", "c"]
    assert added.last_id is not None
    assert client.conversations.items.retrieve(added.last_id, conversation_id=one).id == added.last_id
    assert client.conversations.items.delete(added.last_id, conversation_id=one).id == one
    assert texts(client, one) == ["a", "b"]
    assert client.conversations.update(one, metadata={"a": "b"}).metadata == {"a": "b"}
    assert client.conversations.delete(one).deleted
    with pytest.raises(openai.NotFoundError):
        client.conversations.retrieve(one)
    with pytest.raises(openai.NotFoundError):
        create(client, FIRST, one)


def test_with_a_store_both_are_there_after_a_restart_for_who_has_the_key(tmp_path: Path, connect: Client):
    keys = KeyFile(str(tmp_path / "keys"), missing_ok=True)
    ann, bob = keys.add("ann"), keys.add("bob")
    flags = ("--http", "127.0.0.1:0", "--api-keys", str(tmp_path / "keys"), "--store", str(tmp_path / "store"))
    daemon = Daemon(tmp_path, *flags)
    client = connect(daemon, ann)
    conversation = client.conversations.create()
    first = create(client, FIRST, conversation.id)
    assert daemon.stop() == 0
    assert stat.S_IMODE((tmp_path / "store" / NAME).stat().st_mode) == 0o600

    daemon = Daemon(tmp_path, *flags)
    client, others = connect(daemon, ann), connect(daemon, bob)
    try:
        assert client.responses.retrieve(first.id).output_text == first.output_text
        follows = client.responses.create(model="any", input=SECOND, previous_response_id=first.id, max_output_tokens=4)
        assert follows.previous_response_id == first.id
        second = create(client, SECOND, conversation.id)
        assert texts(client, conversation.id) == [FIRST, first.output_text, SECOND, second.output_text]
        with pytest.raises(openai.NotFoundError):
            others.conversations.retrieve(conversation.id)
        with pytest.raises(openai.NotFoundError):
            others.responses.retrieve(first.id)
    finally:
        assert daemon.stop() == 0
