"""OpenAI's ``POST /v1/responses/compact``: a conversation in, its user's latest messages and a summary out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from umaserve.core.errors import Fault, RequestError
from umaserve.core.events import Finished, FinishReason, Output, Token
from umaserve.core.requests import ChatTurn, Generate
from umaserve.dialects import sse
from umaserve.dialects.facts import Facts
from umaserve.dialects.http import JSON, ErrorReply, cap_headers
from umaserve.dialects.openai.errors import error_body
from umaserve.dialects.parameters import json_body, within_cap
from umaserve.dialects.responses.body import usage_fields
from umaserve.dialects.responses.items import sealed, turns, with_joined_users
from umaserve.dialects.responses.keeping import Keeping, compacting, kept_item
from umaserve.dialects.responses.schemas import CompactionRequest
from umaserve.dialects.sampling_schemas import DEFAULTS

MAX_TOKENS = 2048
"""The longest summary, with thoughts before it."""
MAX_KEPT_BYTES = 16 << 10
"""The user's messages that are kept, as JSON."""

_SUMMARIZE = (
    "Summarize our conversation so far, for somebody who goes on with it and knows nothing but your summary. Say what "
    "I want and which rules I have set, what has been done and decided and why, what was found, with all names, paths "
    "and values that are still needed, and what is to be done next. Write only the summary, in the language of the "
    "conversation, in at most 600 words. Do not continue the conversation, and call no tools."
)


class CompactionBody:
    """One ``POST /v1/responses/compact``."""

    stream_type = sse.CONTENT_TYPE
    whole_type = JSON
    end = None
    streaming = False
    frame = staticmethod(sse.event)
    ping = staticmethod(sse.ping)

    def __init__(self, facts: Facts) -> None:
        self._unique = facts.new_id("")
        self.headers = cap_headers(facts.limits)
        self._facts = facts
        self._created = facts.now()
        self._model = ""
        self._kept: list[bytes] = []
        self._texts: list[str] = []
        self._usage: dict[str, Any] | None = None

    @property
    def done(self) -> bool:
        return self._usage is not None

    def receive(self, body: bytes) -> Sequence[Generate]:
        """The request for the summary; raises ``RequestError``."""
        fields = json_body(body)
        given = CompactionRequest.view(fields)
        self._model = given.model or ""
        asked, limits = compacting(fields, self._facts.kept), self._facts.limits
        conversation = turns(given.instructions or "", asked.whole, limits)
        self._kept = _users_latest(asked, self._unique)
        return [
            Generate(
                f"resp_{self._unique}",
                with_joined_users((*conversation, ChatTurn("user", _SUMMARIZE))),
                max_tokens=within_cap(MAX_TOKENS, limits),
                sampling=DEFAULTS,
                enable_thinking=False,
                splits_thoughts=True,
                model=self._model,
            )
        ]

    def send(self, _index: int, output: Output) -> list[bytes]:
        """Take an output. Raises ``RequestError`` where there is no summary at the end, or one that was stopped: a
        compaction could not say so. A summary that reaches its longest length is one."""
        if isinstance(output, Token):
            self._texts.append(output.said)
        elif isinstance(output, Finished):
            self._check_end(output)
            self._usage = usage_fields(output.usage)
        return []

    def fail(self, _index: int, _error: RequestError) -> list[bytes]:
        return []

    def error(self, error: RequestError) -> ErrorReply:
        return error_body(error)

    def result(self) -> bytes:
        """The compaction, once ``done``."""
        info = self._facts.model(self._model)
        summary = {"id": f"cmp_{self._unique}", "type": "compaction", "encrypted_content": sealed(self._summary)}
        return orjson.dumps(
            {
                "id": f"resp_{self._unique}",
                "object": "response.compaction",
                "created_at": self._created,
                "model": self._model if info is None else info.name,
                "output": [*map(orjson.Fragment, self._kept), summary],
                "usage": self._usage,
            }
        )

    @property
    def _summary(self) -> str:
        return "".join(self._texts).strip()

    def _check_end(self, end: Finished) -> None:
        match end.reason:
            case FinishReason.CONTENT_FILTER:
                raise RequestError(Fault.CONTENT_FILTERED, "input", "the server's content filter stopped its summary")
            case FinishReason.CANCELLED:
                raise RequestError(Fault.ENDED, "request", "expected to go on until the summary's end, was cancelled")
        if not self._summary:
            tokens = f"expected the model to write a summary, got none in {end.usage.completion_tokens} tokens"
            if end.reason is FinishReason.LENGTH:
                advice = "send less, or raise the server's --n-ctx or --max-tokens"
                raise RequestError(Fault.CONTEXT_EXCEEDED, "input", f"{tokens}, which is the limit: {advice}")
            raise RequestError(Fault.DECODE_FAILED, "input", f"{tokens}: try again, or another model")


def _users_latest(asked: Keeping, unique: str) -> list[bytes]:
    """The user's messages as JSON, in their order, without those for which later ones leave no room."""
    kept: list[bytes] = []
    room = MAX_KEPT_BYTES
    for i, item in reversed([*enumerate(asked.whole)]):
        if item.values.get("type") in (None, "message") and item.values.get("role") == "user":
            message = kept_item(item, f"{unique}i{i:02x}")
            if len(message) <= room:
                room -= len(message)
                kept.insert(0, message)
    return kept
