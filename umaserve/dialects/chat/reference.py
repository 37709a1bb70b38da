"""The operation of chat mode."""

from __future__ import annotations

from umaserve.dialects.chat.schemas import SpokenChatMessage, SpokenChatRequest
from umaserve.dialects.openai.reference import ERRORS
from umaserve.dialects.reference import Operation, Parameter, Reference, Reply
from umaserve.dialects.schemas import Error
from umaserve.wire.declared import string

REFERENCE = Reference(
    "umaserve",
    "",
    ERRORS,
    {
        ("GET", "/ws/chat"): Operation(
            "chatMode",
            "A WebSocket: one turn of a chat, written and spoken",
            (
                "The client sends one message (x-client-message). The server's messages (x-server-message) "
                "come in this order: queued, queue_update and queue_done where the request has to wait; "
                "prefill_done; chunks, if streaming; done; and then the connection closes. An error ends it "
                "at any time, also one that a close code stands for, such as 1009 for a message of more "
                "bytes than --max-chat-bytes says. Audio is 24 kHz mono, 32-bit floats, little-endian, in "
                "base64."
            ),
            tag="umaserve",
            parameters=(
                Parameter(
                    "model",
                    "query",
                    string(),
                    ('The model of messages that name none, or "default"; without it, the default model.'),
                ),
                Parameter(
                    "Sec-WebSocket-Protocol",
                    "header",
                    string(description="`umaserve`, and `bearer.KEY` where a key is needed."),
                ),
            ),
            replies={
                "101": Reply(
                    "The connection is a WebSocket from here on.",
                    also={"x-client-message": SpokenChatRequest, "x-server-message": SpokenChatMessage},
                ),
                "426": Reply(
                    "The request is no WebSocket handshake of version 13.",
                    json=Error,
                    headers={"Upgrade": {"schema": {"const": "websocket"}}},
                ),
            },
        ),
    },
)
