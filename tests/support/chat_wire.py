"""A client of the contract chat-mode."""

from __future__ import annotations

import base64
import contextlib
import importlib.util
import json
from typing import Any

import numpy as np
import pytest
import websockets
from daemon import ANSWER_S, CHAT_FAR_FROM_A_TIE, Daemon
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect
from websockets.sync.connection import Connection

GREEDY = {"max_new_tokens": 12, "temperature": 0}

Message = dict[str, Any]

with_voice = pytest.mark.skipif(importlib.util.find_spec("hibari") is None, reason="hibari-tts is not installed")


def open_chat(daemon: Daemon, **options: Any) -> Connection:
    # An unread message must not keep the goodbye's answer from being read.
    client: Connection = connect(
        f"ws://{daemon.http}/ws/chat", max_size=None, max_queue=None, ping_interval=None, **options
    )
    return client


def rest(client: Connection) -> tuple[list[Message], int]:
    """All messages until the server closes, and the code that it closes with."""
    messages = []
    with contextlib.suppress(ConnectionClosed):
        while True:
            messages.append(json.loads(client.recv(ANSWER_S)))
    assert client.protocol.close_code is not None
    return messages, client.protocol.close_code


def ask(daemon: Daemon, **body: Any) -> tuple[list[Message], int]:
    with open_chat(daemon) as client:
        client.send(json.dumps({"messages": CHAT_FAR_FROM_A_TIE, "generation": GREEDY, **body}))
        return rest(client)


def failure(daemon: Daemon, **body: Any) -> str:
    """The words of the error that is all that comes."""
    messages, code = ask(daemon, **body)
    assert code == 1008
    assert [list(message) for message in messages] == [["type", "error"]]
    assert messages[0]["type"] == "error"
    words: str = messages[0]["error"]
    return words


def samples_of(audio_data: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(audio_data), dtype=np.float32)


async def chat_streaming(server_url: str, ref_b64: str | None = None) -> tuple[list[str], list[bytes]]:
    """The contract's example, step by step, with what it prints kept."""
    printed, audio_chunks, full_text = [], [], ""
    system_content: str | list[Message] = "You are a helpful assistant."
    tts_config = {"enabled": True, "mode": "audio_assistant"}
    if ref_b64:
        system_content = [
            {"type": "text", "text": "Mimic the voice from the audio sample."},
            {"type": "audio", "data": ref_b64},
            {"type": "text", "text": "You are a helpful assistant. Reply naturally."},
        ]
        tts_config["ref_audio_data"] = ref_b64
    async with websockets.connect(server_url) as ws:
        await ws.send(
            json.dumps(
                {
                    "messages": [
                        {"role": "system", "content": system_content},
                        {"role": "user", "content": "Hello!"},
                    ],
                    "streaming": True,
                    "generation": {"max_new_tokens": 256, "temperature": 0.7},
                    "tts": tts_config,
                }
            )
        )
        async for raw in ws:
            msg = json.loads(raw)
            if msg["type"] == "prefill_done":
                printed.append(f"Prefill done, {msg['input_tokens']} input tokens")
            elif msg["type"] == "chunk":
                if msg.get("text_delta"):
                    full_text += msg["text_delta"]
                    printed.append(f"Streaming: {full_text}")
                if msg.get("audio_data"):
                    audio_chunks.append(base64.b64decode(msg["audio_data"]))
            elif msg["type"] == "done":
                printed.append(f"Final: {msg['text']}")
                printed.append(f"Tokens: {msg['input_tokens']} in, {msg['generated_tokens']} out")
                break
            elif msg["type"] == "error":
                printed.append(f"Error: {msg['error']}")
                break
    return printed, audio_chunks
