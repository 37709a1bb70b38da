"""An answer in which the daemon calls tools: how many calls it makes, and the request with which it goes on."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from umaserve.core.events import Usage
from umaserve.core.requests import ChatTurn, Generate
from umaserve.core.server_tools import CallResult

MAX_CALLS = 64
"""The most calls in an answer, unless its client wants fewer: a model may never have enough."""
NO_MORE_CALLS = CallResult("The call was not made: no more calls are allowed.", failed=True)


class ToolRounds:
    """What the model has written, and been told, since the client's request."""

    def __init__(self, request: Generate, mine: Collection[str], max_calls: int | None = None) -> None:
        """``mine``: the tools that the daemon calls, by their names for the model."""
        # Without such tools, the prompt's media would stay in memory for nothing.
        self._request = request if mine else replace(request, prompt=())
        self._mine = frozenset(mine)
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

    def next_request(self, turns: Sequence[ChatTurn]) -> Generate:
        """The request that follows ``turns``: all of the answer so far, with the results of its calls."""
        request = self._request
        asked, most = request.prompt, request.max_tokens
        assert isinstance(asked, tuple)
        tools = tuple(one for one in request.tools if self._left or one.name not in self._mine)
        left = None if most is None else max(1, most - self._usage.completion_tokens)
        return replace(request, prompt=(*asked, *turns), tools=tools, must_call=False, max_tokens=left)
