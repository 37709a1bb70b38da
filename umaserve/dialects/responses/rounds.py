"""An answer in which the daemon calls tools: how many calls it makes, and the request with which it goes on."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from umaserve.core.events import Usage
from umaserve.core.requests import Generate
from umaserve.core.server_tools import CallResult
from umaserve.dialects.parameters import RequestLimits
from umaserve.dialects.responses.items import turns
from umaserve.dialects.responses.tools import OfferedTool
from umaserve.wire.fields import Fields

MAX_CALLS = 64
"""The most calls in an answer, unless its client wants fewer: a model may never have enough."""
NO_MORE_CALLS = CallResult("The call was not made: no more calls are allowed.", failed=True)


class Rounds:
    """What the model has said, and been told, since the client's request."""

    def __init__(
        self, request: Generate, tools: Mapping[str, OfferedTool], limits: RequestLimits, max_calls: int | None
    ) -> None:
        calls = any(one.server is not None for one in tools.values())
        # Or the prompt's media would stay in memory for nothing.
        self._request = request if calls else replace(request, prompt=())
        self._tools = tools
        self._limits = limits
        self._left = min(MAX_CALLS, max_calls or MAX_CALLS)
        self._usage = Usage(0, 0)

    def refused(self, calls: Collection[int]) -> Sequence[int]:
        """Count new calls, given by their numbers; returns those that are too many."""
        allowed = min(self._left, len(calls))
        self._left -= allowed
        return [*calls][allowed:]

    def count(self, usage: Usage) -> Usage:
        """Add the tokens of a round; returns those of all."""
        so_far = self._usage
        self._usage = Usage(
            so_far.prompt_tokens + usage.prompt_tokens,
            so_far.completion_tokens + usage.completion_tokens,
            so_far.prefix_reused_tokens + usage.prefix_reused_tokens,
            so_far.reasoning_tokens + usage.reasoning_tokens,
            so_far.sound_s + usage.sound_s,
        )
        return self._usage

    def next_request(self, items: Sequence[dict[str, Any]]) -> Generate:
        """The request that follows the answer's items so far. Raises ``RequestError`` where they are too long."""
        request, more = self._request, turns("", [Fields(item, "output.") for item in items], self._limits)
        asked = request.prompt
        assert isinstance(asked, tuple)
        tools = request.tools if self._left else tuple(one for one in request.tools if not self._calls(one.name))
        most = request.max_tokens
        return replace(
            request,
            prompt=(*asked, *more),
            tools=tools,
            must_call=False,
            max_tokens=None if most is None else max(1, most - self._usage.completion_tokens),
        )

    def _calls(self, name: str) -> bool:
        """Whether the daemon calls the tool that the model knows by this name."""
        return self._tools[name].server is not None
