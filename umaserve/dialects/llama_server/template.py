"""llama-server's ``/apply-template``."""

from __future__ import annotations

import orjson

from umaserve.core.errors import Fault, RequestError
from umaserve.core.queries import ApplyTemplate, Prompted
from umaserve.dialects.openai.requests import chat_request
from umaserve.dialects.parameters import RequestLimits


def parse_apply_template(body: bytes, limits: RequestLimits) -> ApplyTemplate:
    """Parse a body of ``POST /apply-template``, which is one of ``/v1/chat/completions``; raises ``RequestError``."""
    request = chat_request(body, limits, None, "").choices[0]
    assert isinstance(request.prompt, tuple)
    if any(turn.attachments for turn in request.prompt):
        raise RequestError(Fault.BAD_REQUEST, "messages", "expected text only, got images or sounds")
    return ApplyTemplate(request)


def apply_template_result(answer: Prompted) -> bytes:
    return orjson.dumps({"prompt": answer.prompt})
