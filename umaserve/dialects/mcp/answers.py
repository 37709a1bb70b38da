"""The answer of a model as the result of a tool, with notifications about its progress before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import orjson

from umaserve.core.errors import RequestError
from umaserve.core.events import Finished, Output, Prefilled, Prefilling, Token
from umaserve.core.requests import Generate
from umaserve.dialects import sse
from umaserve.dialects.http import JSON, ErrorReply, cap_headers
from umaserve.dialects.mcp.messages import Message
from umaserve.dialects.mcp.results import Content, failed, failures, said
from umaserve.dialects.parameters import RequestLimits

EVERY_S = 0.2
"""Seconds between two notifications, in which the text of all tokens since the last one is told at once."""


class AnswerBody:
    """One call of a tool that has a model write. The number of its progress counts tokens, the prompt's first."""

    stream_type = sse.CONTENT_TYPE
    whole_type = JSON
    end = None
    """A stream ends with the response; nothing follows."""
    frame = staticmethod(sse.event)
    ping = staticmethod(sse.ping)

    def __init__(
        self,
        message: Message,
        limits: RequestLimits,
        make: Callable[[], Generate],
        content: Callable[[str, Finished], list[Content]],
    ) -> None:
        """``make`` makes the request of the arguments, ``content`` the result of the answer's text; both may raise
        ``RequestError``."""
        self.headers = cap_headers(limits)
        self.streaming = message.streams
        self.done = False
        # Without the arguments, so as not to keep a recording in memory.
        self._message = replace(message, params={})
        self._make: Callable[[], Generate] | None = make
        self._content = content
        self._texts: list[str] = []
        self._untold: list[str] = []
        self._prompt_tokens = 0
        self._tokens = 0
        self._progress = 0
        self._told_s = 0.0
        self._response = b""

    def receive(self, _body: bytes) -> Sequence[Generate]:
        """The one request of the call, whose arguments are read already; raises ``RequestError``."""
        assert self._make is not None
        request = replace(self._make(), wants_progress=self.streaming)
        self._make = None
        return [request]

    def send(self, _index: int, output: Output) -> list[bytes]:
        """The messages for ``output``; none unless streaming. Raises ``RequestError`` where the answer is none."""
        match output:
            case Prefilling():
                about = f"{output.done_tokens} of {output.input_tokens} tokens of the prompt are read"
                return self._tell(output.done_tokens, about, output.elapsed_s)
            case Prefilled():
                self._prompt_tokens = output.input_tokens
            case Token():
                self._tokens += output.sampled
                self._texts.append(output.said)
                self._untold.append(output.said)
                if output.elapsed_s - self._told_s >= EVERY_S:
                    return self._tell(self._prompt_tokens + self._tokens, "".join(self._untold), output.elapsed_s)
            case Finished():
                self._response = said(self._message, self._content("".join(self._texts), output), output.usage)
                self.done = True
                return [self._response] if self.streaming else []
        return []

    def fail(self, _index: int, error: RequestError) -> list[bytes]:
        self.done = True
        return [failed(self._message, error)] if self.streaming else []

    def error(self, error: RequestError) -> ErrorReply:
        return failures(self._message).of_request(error)

    def result(self) -> bytes:
        assert self.done
        return self._response

    def _tell(self, progress: int, about: str, elapsed_s: float) -> list[bytes]:
        """A notification, whose number must be greater than that of the one before."""
        if not self.streaming or progress <= self._progress:
            return []
        self._progress, self._told_s = progress, elapsed_s
        self._untold.clear()
        told = {"progressToken": self._message.progress, "progress": progress} | ({"message": about} if about else {})
        return [orjson.dumps({"jsonrpc": "2.0", "method": "notifications/progress", "params": told})]
