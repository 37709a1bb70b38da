"""The operation of chat mode."""

from __future__ import annotations

from umaserve.dialects.chat.schemas import SpokenChatMessage, SpokenChatRequest
from umaserve.dialects.openai.reference import ERRORS
from umaserve.dialects.reference import Reference, websocket

OPERATIONS = {
    ("chatMode", "GET /ws/chat"): websocket(
        "WebSocket: one turn of a chat, with text and speech. The client sends one message. The server sends its"
        " messages in this order: queued, queue_update and queue_done where the request has to wait; prefill_done;"
        " chunks, if streaming; done; and then the connection closes. An error ends the connection at any time: as a"
        " message, or only as a close code, such as 1009 for a message of more than --max-chat-bytes bytes. Audio is 24"
        " kHz mono, 32-bit floats, little-endian, in base64.",
        (SpokenChatRequest, SpokenChatMessage),
        ERRORS.error,
    )
}

REFERENCE = Reference("umaserve", "", ERRORS, OPERATIONS)
