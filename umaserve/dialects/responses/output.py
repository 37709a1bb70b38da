"""The output items of an answer of OpenAI's Responses API: the events of a stream, and the whole list."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from umaserve.chat_format.tool_calls import CallPiece, ToolCallParser
from umaserve.core.server_tools import CallResult, ServerCall
from umaserve.dialects.custom_tools import CustomInput
from umaserve.dialects.responses.items import sealed
from umaserve.dialects.responses.mcp_schemas import ResponseMcpApprovalRequest
from umaserve.dialects.responses.tools import OfferedTool, shown_name

Event = dict[str, Any]
"""An event without its ``sequence_number``."""

_MESSAGE, _THOUGHTS = "message", "reasoning"
_MCP_CALL, _APPROVAL, _MCP_LIST = "mcp_call", "mcp_approval_request", "mcp_list_tools"
_ARGUMENTS, _INPUT = "response.function_call_arguments", "response.custom_tool_call_input"
_MCP_ARGUMENTS = "response.mcp_call_arguments"
_ID_PREFIXES = {
    _MESSAGE: "msg",
    _THOUGHTS: "rs",
    "function_call": "fc",
    "custom_tool_call": "ctc",
    _MCP_CALL: "mcp",
    _APPROVAL: "mcpr",
    _MCP_LIST: "mcpl",
}


@dataclass(slots=True)
class _Item:
    """An item in the making. ``key`` is a call's index, or the kind of the item."""

    key: str | int
    index: int
    begun: dict[str, Any]
    texts: list[str] = field(default_factory=list)
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    input: CustomInput = field(default_factory=CustomInput)
    """The input of a custom tool's call."""

    @property
    def kind(self) -> str:
        return str(self.begun["type"])

    @property
    def place(self) -> dict[str, Any]:
        place = {"item_id": self.begun["id"], "output_index": self.index}
        return place if isinstance(self.key, int) else {**place, "content_index": 0}

    def part(self) -> dict[str, Any]:
        """The one part of a message or of thoughts, as far as it goes."""
        text = "".join(self.texts)
        if self.kind == _THOUGHTS:
            return {"type": "reasoning_text", "text": text}
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": [*self.logprobs]}


class OutputItems:
    """One answer. An item ends before the next one begins, and a call as soon as it is complete.

    ``tool_calls`` makes the parser that finds calls of ``tools`` in the text; ``None`` without tools. ``unique`` makes
    the items' ids. ``seals``: thoughts come in ``encrypted_content`` too.
    """

    def __init__(
        self,
        tool_calls: Callable[[], ToolCallParser] | None,
        tools: Mapping[str, OfferedTool],
        unique: str,
        *,
        seals: bool = False,
    ) -> None:
        self._new_parser = tool_calls
        self._parser: ToolCallParser | None = None
        self._tools = tools
        self._unique = unique
        self._seals = seals
        self._done: list[dict[str, Any]] = []
        self._open: _Item | None = None
        self._logprobs: list[dict[str, Any]] = []
        """Log-probabilities of tokens whose text is still to come."""
        self._answered = False
        self.awaited: dict[int, ServerCall] = {}
        """Calls that the daemon is to make before the answer goes on, by the numbers of their items."""
        self.asks_client = False
        """Whether a call was made that its client has to answer or to approve."""

    def list_tools(self, server: str, tools: Sequence[dict[str, Any]]) -> Iterator[Event]:
        """The events for the tools of an MCP server."""
        begun: dict[str, Any] = {"type": _MCP_LIST, "server_label": server, "tools": [], "error": None}
        item = yield from self._begin(-1, begun)
        for state in ("in_progress", "completed"):
            yield {"type": f"response.mcp_list_tools.{state}", **item.place}
        self._open = None
        yield self._done_item({**item.begun, "tools": [*tools]})

    def approve(self, request: ResponseMcpApprovalRequest) -> Iterator[Event]:
        """The events for a call that its client has approved."""
        item = yield from self._begin(-1, _mcp_call(request.server_label, request.name_, request.id))
        item.texts.append(request.arguments)
        yield {"type": "response.mcp_call.in_progress", **item.place}
        yield from self._close(whole=True)

    def called(self, number: int, result: CallResult) -> Iterator[Event]:
        """The events for what the call of the item of this number has returned."""
        del self.awaited[number]
        told = {"output": None, "error": result.text} if result.failed else {"output": result.text}
        state = "failed" if result.failed else "completed"
        item = self._done[number] = {**self._done[number], **told, "status": state}
        yield {"type": f"response.mcp_call.{state}", "item_id": item["id"], "output_index": number}
        yield {"type": "response.output_item.done", "output_index": number, "item": item}

    def give_up(self) -> None:
        """Make no more calls: the answer has ended without them."""
        for number in self.awaited:
            self._done[number]["status"] = "incomplete"

    def next_round(self) -> None:
        """Go on with an answer whose calls have results."""
        self._parser, self._answered = None, False

    def push(self, thoughts: str, text: str, logprobs: Sequence[dict[str, Any]] = ()) -> Iterator[Event]:
        """The events for the next thoughts, and the text of the answer after them."""
        if thoughts:
            item = yield from self._begin(_THOUGHTS, {"type": _THOUGHTS, "summary": [], "content": []})
            item.texts.append(thoughts)
            yield {"type": "response.reasoning_text.delta", **item.place, "delta": thoughts}
        else:
            self._logprobs += logprobs
        # How the model writes calls is known once it is loaded, and so at the first token.
        if self._parser is None and self._new_parser is not None:
            self._parser = self._new_parser()
        yield from self._add(*((text, []) if self._parser is None else self._parser.push(text)))

    def finish(self, *, whole: bool) -> Iterator[Event]:
        """The events for the rest, at the end of the answer; ``whole``: it wasn't cut short."""
        if self._parser is not None:
            yield from self._add(*self._parser.finish())
        if not self._answered:
            # Programs expect a message, even where the model has nothing to say.
            yield from self._begin_message()
        yield from self._close(whole=whole)

    def whole(self) -> list[dict[str, Any]]:
        """The items that are done."""
        return list(self._done)

    def _add(self, text: str, pieces: list[CallPiece]) -> Iterator[Event]:
        # What of the call that has begun is still to come was written before the text.
        current = [piece for piece in pieces if self._open is not None and piece.index == self._open.key]
        for piece in current:
            yield from self._call(piece)
        if text:
            item = yield from self._begin_message()
            logprobs, self._logprobs = self._logprobs, []
            item.texts.append(text)
            item.logprobs += logprobs
            yield {"type": "response.output_text.delta", **item.place, "delta": text, "logprobs": logprobs}
        for piece in pieces[len(current) :]:
            yield from self._call(piece)

    def _begin_message(self) -> Generator[Event, None, _Item]:
        self._answered = True
        return (yield from self._begin(_MESSAGE, {"type": _MESSAGE, "role": "assistant", "content": []}))

    def _call(self, piece: CallPiece) -> Iterator[Event]:
        if piece.name:
            self._answered, self._logprobs = True, []
            tool = self._tools[piece.name]
            call = {"call_id": piece.id, **shown_name(tool)}
            self.asks_client |= tool.server is None or tool.asks
            if tool.server is not None:
                yield from self._begin_server_call(piece.index, tool)
            elif tool.tool.custom:
                yield from self._begin(piece.index, {"type": "custom_tool_call", **call, "input": ""})
            else:
                yield from self._begin(piece.index, {"type": "function_call", **call, "arguments": ""})
        item = self._open
        assert item is not None
        if piece.arguments and item.kind == "function_call":
            yield from self._say(item, _ARGUMENTS, piece.arguments)
        elif piece.arguments and item.kind == _MCP_CALL:
            yield from self._say(item, _MCP_ARGUMENTS, piece.arguments)
        elif piece.arguments and item.kind == _APPROVAL:
            item.texts.append(piece.arguments)
        elif piece.arguments:
            yield from self._say(item, _INPUT, item.input.push(piece.arguments))
        if piece.ends:
            yield from self._close(whole=piece.whole)

    def _begin_server_call(self, index: int, tool: OfferedTool) -> Iterator[Event]:
        assert tool.server is not None
        if tool.asks:
            asked = {"type": _APPROVAL, "server_label": tool.server, "name": tool.name, "arguments": ""}
            yield from self._begin(index, asked)
        else:
            item = yield from self._begin(index, _mcp_call(tool.server, tool.name))
            yield {"type": "response.mcp_call.in_progress", **item.place}

    def _say(self, item: _Item, kind: str, text: str) -> Iterator[Event]:
        if text:
            item.texts.append(text)
            yield {"type": kind + ".delta", **item.place, "delta": text}

    def _begin(self, key: str | int, begun: dict[str, Any]) -> Generator[Event, None, _Item]:
        """Go on with the item that is open, if it has this key, or start one."""
        if self._open is not None and self._open.key == key:
            return self._open
        # A call is closed as soon as it is complete.
        yield from self._close(whole=self._open is not None and not isinstance(self._open.key, int))
        index = len(self._done)
        named = {"id": f"{_ID_PREFIXES[begun['type']]}_{self._unique}{index:02x}", **begun}
        item = self._open = _Item(key, index, named)
        state = {} if named["type"] in (_APPROVAL, _MCP_LIST) else {"status": "in_progress"}
        yield {"type": "response.output_item.added", "output_index": index, "item": {**named, **state}}
        if not isinstance(key, int):
            yield {"type": "response.content_part.added", **item.place, "part": item.part()}
        return item

    def _close(self, *, whole: bool) -> Iterator[Event]:
        item, self._open = self._open, None
        if item is None:
            return
        status = {"status": "completed" if whole else "incomplete"}
        if item.kind == "custom_tool_call":
            yield from self._say(item, _INPUT, item.input.finish(whole=whole))
        text = "".join(item.texts)
        match item.kind:
            case "function_call":
                yield {"type": _ARGUMENTS + ".done", **item.place, "name": item.begun["name"], "arguments": text}
                done = {**item.begun, "arguments": text, **status}
            case "custom_tool_call":
                yield {"type": _INPUT + ".done", **item.place, "input": text}
                done = {**item.begun, "input": text, **status}
            case "mcp_call":
                yield {"type": _MCP_ARGUMENTS + ".done", **item.place, "arguments": text}
                done = {**item.begun, "arguments": text, "status": "calling" if whole else "incomplete"}
                if whole:
                    # It is done with the call's result.
                    server, name = str(done["server_label"]), str(done["name"])
                    self.awaited[item.index] = ServerCall(server, name, text or "{}")
                    self._done.append(done)
                    return
            case "mcp_approval_request":
                done = {**item.begun, "arguments": text or "{}"}
            case kind:
                part = item.part()
                if kind == _THOUGHTS:
                    yield {"type": "response.reasoning_text.done", **item.place, "text": text}
                else:
                    logprobs = item.logprobs
                    yield {"type": "response.output_text.done", **item.place, "text": text, "logprobs": logprobs}
                yield {"type": "response.content_part.done", **item.place, "part": part}
                done = {**item.begun, "content": [part], **status}
                if kind == _THOUGHTS and self._seals:
                    done["encrypted_content"] = sealed(text)
        yield self._done_item(done)

    def _done_item(self, done: dict[str, Any]) -> Event:
        self._done.append(done)
        return {"type": "response.output_item.done", "output_index": len(self._done) - 1, "item": done}


def _mcp_call(server: str, name: str, approval: str | None = None) -> dict[str, Any]:
    """The item of a call that the daemon makes, at its beginning."""
    begun = {"type": _MCP_CALL, "server_label": server, "name": name, "arguments": ""}
    return {**begun, "approval_request_id": approval, "output": None, "error": None}
