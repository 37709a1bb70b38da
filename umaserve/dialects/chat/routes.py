"""The path of chat mode."""

from __future__ import annotations

from umaserve.dialects.chat.conversation import ChatDialect
from umaserve.dialects.chat.reference import REFERENCE
from umaserve.dialects.facts import Facts
from umaserve.dialects.openai.errors import ERRORS
from umaserve.dialects.routes import Authenticate, Conversation, HttpDialect, Route


def _conversation(facts: Facts, authenticate: Authenticate | None) -> ChatDialect:
    def new_id() -> str:
        return facts.new_id("chat_")

    return ChatDialect(
        facts.limits, facts.voice, new_id, authenticate, recorded=facts.recorded, asked_model=facts.asked_model
    )


DIALECT = HttpDialect(
    "chat",
    {"/ws/chat": Route("GET", Conversation(_conversation, key_in_message=True, media=True))},
    ERRORS,
    REFERENCE,
)
