"""The operation of chat mode."""

from __future__ import annotations

from umaserve.dialects.chat.schemas import SpokenChatMessage, SpokenChatRequest
from umaserve.dialects.openai.reference import ERRORS
from umaserve.dialects.reference import HANDSHAKE, Operation, Reference, upgraded
from umaserve.dialects.schemas import Error

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
            parameters=HANDSHAKE,
            replies=upgraded(
                Error, also={"x-client-message": SpokenChatRequest, "x-server-message": SpokenChatMessage}
            ),
        ),
    },
)
