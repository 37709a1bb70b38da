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
            "WebSocket: one turn of a chat, with text and speech",
            (
                "The client sends one message (x-client-message). The server sends its messages (x-server-message) in"
                " this order: queued, queue_update and queue_done where the request has to wait; "
                "prefill_done; chunks, if streaming; done; and then the connection closes. An error ends the"
                " connection at any time: as a message, or only as a close code, such as 1009 for a message of more"
                " than --max-chat-bytes bytes. Audio is 24 kHz mono, 32-bit floats, little-endian, in "
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
