"""Results of tools, and their failures, which are results too, so that a model reads them and does better."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from typing import Any

import orjson

from umaserve.core.errors import RequestError
from umaserve.core.events import Usage
from umaserve.dialects.http import ErrorReply, ErrorShape
from umaserve.dialects.mcp.errors import ERRORS
from umaserve.dialects.mcp.messages import Message

Content = dict[str, Any]


def text(said: str) -> Content:
    return {"type": "text", "text": said}


def sound(file: bytes, media_type: str) -> Content:
    return {"type": "audio", "data": base64.b64encode(file).decode(), "mimeType": media_type}


def said(message: Message, content: Sequence[Content], usage: Usage | None = None) -> bytes:
    """The response with what a tool says, and the tokens that a model took for it."""
    about = {}
    if usage is not None:
        about["usage"] = {"prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens}
    return message.response({"content": content, "isError": False}, about)


def found(message: Message, whole: bytes) -> bytes:
    """The response with what a tool has found, an object as JSON, which clients without structured content read as
    text."""
    result = {"content": [text(whole.decode())], "structuredContent": orjson.Fragment(whole), "isError": False}
    return message.response(result)


def failed(message: Message, error: RequestError) -> bytes:
    """The response to a call that is refused or fails."""
    after = error.retry_after_s
    advice = "" if after is None else f" (try again in {max(1, math.ceil(after))} s)"
    return message.response({"content": [text(error.message + advice)], "isError": True})


def failures(message: Message) -> ErrorShape:
    """The form of a call's errors: responses with the status 200."""
    return ErrorShape(lambda error: ErrorReply(200, failed(message, error)), ERRORS.of_http)
