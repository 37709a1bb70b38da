"""Tools of MCP servers in a chat: what is offered to the model, and the calls in its answer, which the client isn't
told of."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from umaserve.chat_format.tool_calls import CallPiece, ToolCallParser
from umaserve.core.errors import Fault, RequestError
from umaserve.core.events import FinishReason, Token
from umaserve.core.requests import ChatTurn, Tool, ToolCall
from umaserve.core.server_tools import CallResult, ServerCall
from umaserve.dialects.openai.choices import ChatChoice, Part
from umaserve.dialects.openai.tool_schemas import ServerTools
from umaserve.dialects.server_tools import ServerToolsOf, check_wanted, server_tool_name

Known = Mapping[str, tuple[str, str]]
"""The server and the name of each tool of a server, by its name for the model."""


def offered(given: Sequence[ServerTools], server_tools: ServerToolsOf | None) -> tuple[tuple[Tool, ...], Known]:
    """The tools of all servers that a chat names. ``server_tools`` as in ``Facts``. Raises ``RequestError``."""
    tools, known = list[Tool](), dict[str, tuple[str, str]]()
    for one in given:
        label, field_ = one.server_label, one.name("server_label")
        if server_tools is None:
            problem = "expected no tool of an MCP server: the operator of this daemon has named none"
            raise RequestError(Fault.BAD_REQUEST, field_, problem)
        there, wanted = server_tools(label, field_), one.allowed_tools
        check_wanted(wanted or (), there, label, one.name("allowed_tools"))
        for tool in there:
            if wanted is None or tool.name in wanted:
                name = server_tool_name(tool.name, label)
                tools.append(Tool(name, tool.description, tool.parameters))
                known[name] = (label, tool.name)
    return tuple(tools), known


@dataclass(slots=True)
class _Call:
    id: str
    name: str
    arguments: list[str] = field(default_factory=list)
    whole: bool = False
    result: str | None = None


class CallingChoice(ChatChoice):
    """A message whose calls of servers' tools stay here, and which goes on after their results."""

    def __init__(self, tool_calls: Callable[[], ToolCallParser] | None, custom: Collection[str], known: Known) -> None:
        super().__init__(0, tool_calls, custom)
        self._known = known
        self._mine: dict[int, _Call] = {}
        """Calls of servers' tools since the last result, by their indexes in the parser's words."""
        self._theirs: dict[int, int] = {}
        """The indexes of the client's calls, likewise."""
        self._texts, self._thoughts = list[str](), list[str]()
        self._last: Part | None = None

    def token(self, token: Token) -> Part:
        return self._heard(super().token(token))

    def finish(self, reason: FinishReason) -> Part:
        part, self._last = self._last or self._heard(super().finish(reason)), None
        return part

    def goes_on(self, reason: FinishReason) -> Part | None:
        """The part at the end of what the model has written, where the daemon is to call tools then: those that it has
        called whole, unless it has called the client's as well."""
        part = self.finish(reason)
        if reason is FinishReason.STOP and self.awaited and not self._theirs:
            return part._replace(finish_reason=None)
        self._last = part
        return None

    @property
    def awaited(self) -> Mapping[int, ServerCall]:
        """The calls to make."""
        calls = {index: call for index, call in self._mine.items() if call.whole and call.result is None}
        return {
            index: ServerCall(*self._known[call.name], "".join(call.arguments) or "{}") for index, call in calls.items()
        }

    def called(self, number: int, result: CallResult) -> None:
        """Keep a result for the model."""
        self._mine[number].result = result.text

    def next_round(self) -> Sequence[ChatTurn]:
        """The turns since the last result; what follows is read anew."""
        calls = [call for call in self._mine.values() if call.whole]
        mine = tuple(ToolCall(call.id, call.name, "".join(call.arguments) or "{}") for call in calls)
        said = ChatTurn("assistant", "".join(self._texts), mine, thoughts="".join(self._thoughts))
        results = [ChatTurn("tool", call.result or "", tool_call_id=call.id) for call in calls]
        self._texts, self._thoughts, self._mine = [], [], {}
        self._theirs, self._parser, self._called = {}, None, False
        return [said, *results]

    def _heard(self, part: Part) -> Part:
        self._texts.append(part.text)
        self._thoughts.append(part.thoughts)
        return part._replace(calls=[piece for piece in map(self._of_client, part.calls) if piece is not None])

    def _of_client(self, piece: CallPiece) -> CallPiece | None:
        if piece.name in self._known:
            self._mine[piece.index] = _Call(piece.id, piece.name)
        if (call := self._mine.get(piece.index)) is not None:
            call.arguments.append(piece.arguments)
            call.whole |= piece.whole
            return None
        return replace(piece, index=self._theirs.setdefault(piece.index, len(self._theirs)))
