"""The blocks of an answer of Anthropic's Messages API: events of a stream, and the whole list."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from umaserve.chat_format.tool_calls import CallPiece, ToolCallParser
from umaserve.wire.cut_json import whole_members

Event = dict[str, Any]

SIGNATURE = "dW1hc2VydmU="
"""Signature of all thoughts: programs want one and send it back, and here none is checked."""


@dataclass(slots=True)
class _Block:
    """A block in the making: ``begun`` is what starts it, ``kind`` that of its deltas."""

    key: str | int
    begun: dict[str, Any]
    texts: list[str] = field(default_factory=list)
    kept: bool = True
    """Whether it is in the whole answer, too. A call that is malformed is not: its text is."""


class Blocks:
    """One answer. A block ends before the next one begins, and a call as soon as it is complete.

    ``tool_calls`` makes the parser that finds the calls in the text; ``None`` without tools. ``thoughts``: whether they
    are shown.
    """

    def __init__(self, tool_calls: Callable[[], ToolCallParser] | None, *, thoughts: bool = False) -> None:
        self._shows_thoughts = thoughts
        self._new_parser = tool_calls
        self._parser: ToolCallParser | None = None
        self._blocks: list[_Block] = []
        self._open: _Block | None = None
        self._held = ""
        """Thoughts that came within a call, whose block is first to end."""
        self.called = False
        """Whether there is a complete call."""

    def push(self, thoughts: str, text: str) -> Iterator[Event]:
        """The events for the next thoughts, and the text of the answer after them."""
        if thoughts and self._shows_thoughts:
            if self._open is not None and isinstance(self._open.key, int):
                self._held += thoughts
            else:
                yield from self._think(thoughts)
        # How the model writes calls is known once it is loaded, and so at the first token.
        if self._parser is None and self._new_parser is not None:
            self._parser = self._new_parser()
        yield from self._add(*((text, []) if self._parser is None else self._parser.push(text)))

    def finish(self) -> Iterator[Event]:
        """The events for the rest, at the end of the answer."""
        if self._parser is not None:
            yield from self._add(*self._parser.finish())
        yield from self._close()

    def whole(self) -> list[dict[str, Any]]:
        """The blocks of a whole answer, after ``finish``."""
        return [_whole(block) for block in self._blocks if block.kept]

    def _add(self, text: str, pieces: list[CallPiece]) -> Iterator[Event]:
        # What of the call that has begun is still to come was written before the text.
        current = [piece for piece in pieces if self._open is not None and piece.index == self._open.key]
        for piece in current:
            yield from self._call(piece)
        if text:
            yield from self._begin("text", {"type": "text", "text": ""})
            yield self._delta(text, {"type": "text_delta", "text": text})
        for piece in pieces[len(current) :]:
            yield from self._call(piece)

    def _call(self, piece: CallPiece) -> Iterator[Event]:
        if piece.name:
            yield from self._begin(piece.index, {"type": "tool_use", "id": piece.id, "name": piece.name, "input": {}})
            self._blocks[-1].kept = False
        if piece.arguments:
            yield self._delta(piece.arguments, {"type": "input_json_delta", "partial_json": piece.arguments})
        if piece.ends:
            self.called |= piece.whole
            self._blocks[-1].kept = True
            yield from self._close()

    def _think(self, thoughts: str) -> Iterator[Event]:
        yield from self._begin("thinking", {"type": "thinking", "thinking": "", "signature": ""})
        yield self._delta(thoughts, {"type": "thinking_delta", "thinking": thoughts})

    def _begin(self, key: str | int, begun: dict[str, Any]) -> Iterator[Event]:
        """Go on with the block that is open, if it has this key, or start one."""
        if self._open is not None and self._open.key == key:
            return
        yield from self._close()
        self._open = _Block(key, begun)
        self._blocks.append(self._open)
        yield {"type": "content_block_start", "index": self._index, "content_block": begun}

    def _delta(self, text: str, delta: dict[str, Any]) -> Event:
        self._blocks[-1].texts.append(text)
        return {"type": "content_block_delta", "index": self._index, "delta": delta}

    def _close(self) -> Iterator[Event]:
        while self._open is not None:
            if self._open.key == "thinking":
                yield self._delta("", {"type": "signature_delta", "signature": SIGNATURE})
            self._open = None
            yield {"type": "content_block_stop", "index": self._index}
            if self._held:
                held, self._held = self._held, ""
                yield from self._think(held)

    @property
    def _index(self) -> int:
        return len(self._blocks) - 1


def _whole(block: _Block) -> dict[str, Any]:
    text = "".join(block.texts)
    match block.begun["type"]:
        case "tool_use":
            return {**block.begun, "input": whole_members(text)}
        case "thinking":
            return {**block.begun, "thinking": text, "signature": SIGNATURE}
    return {**block.begun, "text": text}
