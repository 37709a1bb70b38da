"""One choice of an OpenAI answer: parts, rendered as chunks of a stream or as a whole."""

from __future__ import annotations

import base64
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

from umaserve.chat_format.tool_calls import CallPiece, ToolCallParser
from umaserve.core.events import FinishReason, Logprobs, PromptScores, Scored, Spoken, Token
from umaserve.dialects.custom_tools import CustomInput
from umaserve.dialects.dialect import FINISH_REASONS
from umaserve.dialects.openai.text_scores import Arrays, TextScores, joined, listed, logprob, prompt_logprobs, text_of
from umaserve.wire.pcm import pcm16, wav

_UNPADDED = 6
"""A multiple of this many bytes is whole 16-bit samples, and needs no base64 padding."""


class Part(NamedTuple):
    """The part that one output adds to a choice. A named tuple for the reason that ``Token`` is one."""

    text: str = ""
    thoughts: str = ""
    sound: bytes = b""
    """16-bit samples, or the next bytes of a compressed file."""
    calls: Sequence[CallPiece] = ()
    logprobs: Sequence[Logprobs] = ()
    arrays: Arrays | None = None
    """Log-probabilities of a text completion."""
    prompt_logprobs: bytes = b""
    """Items of vLLM's array."""
    finish_reason: str | None = None


class ChatChoice:
    """A message. ``tool_calls`` makes the parser that finds the calls in its text; ``None`` without tools. ``custom``:
    the names of the custom tools."""

    def __init__(
        self, index: int, tool_calls: Callable[[], ToolCallParser] | None, custom: Collection[str] = ()
    ) -> None:
        self._index = index
        self._new_parser = tool_calls
        self._parser: ToolCallParser | None = None
        self._custom = custom
        self._inputs: dict[int, CustomInput] = {}
        """The inputs of custom tools' calls, by their calls' indexes."""
        self._begun = False
        self._called = False

    def token(self, token: Token) -> Part:
        # How the model writes calls is known once it is loaded, and so at the first token.
        if self._parser is None and self._new_parser is not None:
            self._parser = self._new_parser()
        # A call in a thought is none.
        text, calls = (token.said, []) if self._parser is None else self._parser.push(token.said)
        self._called |= any(piece.whole for piece in calls)
        return Part(text, token.thoughts, calls=self._with_inputs(calls), logprobs=_scores(token))

    def finish(self, reason: FinishReason) -> Part:
        text, calls = ("", []) if self._parser is None else self._parser.finish()
        self._called |= any(piece.whole for piece in calls)
        called = self._called and reason is FinishReason.STOP
        calls = self._with_inputs(calls)
        return Part(text, calls=calls, finish_reason="tool_calls" if called else FINISH_REASONS[reason])

    def chunks(self, part: Part) -> list[dict[str, Any]]:
        """The ``choices`` items for ``part`` in a stream; the role comes first."""
        shaped = []
        if not self._begun:
            self._begun = True
            shaped.append(_chunk(self._index, {"role": "assistant", "content": None}))
        logprobs = _chat_logprobs(part.logprobs)
        if part.thoughts:
            shaped.append(_chunk(self._index, {"reasoning_content": part.thoughts}, logprobs))
            logprobs = None
        if part.text or logprobs:
            shaped.append(_chunk(self._index, {"content": part.text}, logprobs))
        deltas = [self._delta(piece) for piece in part.calls if not piece.ends]
        shaped += [_chunk(self._index, {"tool_calls": [delta]}) for delta in deltas]
        if part.finish_reason is not None:
            shaped.append(_chunk(self._index, {}, finish_reason=part.finish_reason))
        return shaped

    def whole(self, parts: Sequence[Part]) -> dict[str, Any]:
        """The one ``choices`` item that says all ``parts``."""
        text = "".join(part.text for part in parts)
        thoughts = "".join(part.thoughts for part in parts)
        calls = self._calls([piece for part in parts for piece in part.calls])
        message: dict[str, Any] = {"role": "assistant", "content": text or (None if calls else ""), "refusal": None}
        if thoughts:
            message["reasoning_content"] = thoughts
        if calls:
            message["tool_calls"] = calls
        return {
            "index": self._index,
            "message": message,
            "logprobs": _chat_logprobs([scores for part in parts for scores in part.logprobs]),
            "finish_reason": parts[-1].finish_reason,
        }

    def _with_inputs(self, pieces: Iterable[CallPiece]) -> list[CallPiece]:
        """``pieces``, where those of custom tools' calls have more of the input as their arguments."""
        told = list[CallPiece]()
        for piece in pieces:
            if piece.name in self._custom:
                self._inputs[piece.index] = CustomInput()
            taken = self._inputs.get(piece.index)
            if taken is not None and not piece.name:
                text = taken.finish(whole=piece.whole) if piece.ends else taken.push(piece.arguments)
                told += [CallPiece(piece.index, arguments=text)] if text else []
            if taken is None or piece.name or piece.ends:
                told.append(piece)
        return told

    def _delta(self, piece: CallPiece) -> dict[str, Any]:
        """A call's first item in a stream has its id and its name, the others have more of its arguments."""
        if piece.name:
            return {"index": piece.index, **self._call(piece, "")}
        if piece.index in self._inputs:
            return {"index": piece.index, "custom": {"input": piece.arguments}}
        return {"index": piece.index, "function": {"arguments": piece.arguments}}

    def _calls(self, pieces: Sequence[CallPiece]) -> list[dict[str, Any]]:
        """The calls, without those that turned out to be none."""
        ended = {piece.index for piece in pieces if piece.ends}
        begun = [piece for piece in pieces if piece.name and piece.index in ended]
        arguments: dict[int, str] = {}
        for piece in pieces:
            arguments[piece.index] = arguments.get(piece.index, "") + piece.arguments
        return [self._call(piece, arguments[piece.index]) for piece in begun]

    def _call(self, begun: CallPiece, arguments: str) -> dict[str, Any]:
        if begun.index in self._inputs:
            return {"id": begun.id, "type": "custom", "custom": {"name": begun.name, "input": arguments}}
        return {"id": begun.id, "type": "function", "function": {"name": begun.name, "arguments": arguments}}


class SpokenChoice:
    """A spoken message; its text, without thoughts, is the transcript. The format is one of ``CHAT_FORMATS``."""

    def __init__(self, audio_id: str, created: int, audio_format: str) -> None:
        """``created``: in seconds since 1970."""
        # The audio isn't kept, so it expires at once.
        self._named = {"id": audio_id, "expires_at": created}
        self._format = audio_format
        self._begun = False
        self._unsent = b""

    def token(self, token: Token) -> Part:
        return Part(token.said, logprobs=_scores(token))

    def spoken(self, spoken: Spoken) -> Part:
        return Part(sound=pcm16(spoken.sound) if self._format in ("wav", "pcm16") else spoken.sound)

    def finish(self, reason: FinishReason) -> Part:
        return Part(finish_reason=FINISH_REASONS[reason])

    def chunks(self, part: Part) -> list[dict[str, Any]]:
        """The ``choices`` items for ``part`` in a stream; the role and the audio's id come first."""
        shaped = []
        if not self._begun:
            self._begun = True
            named = {**self._named, "transcript": ""}
            shaped.append(_chunk(0, {"role": "assistant", "content": None, "audio": named}))
        if part.text or part.logprobs:
            shaped.append(_chunk(0, {"audio": {"transcript": part.text}}, _chat_logprobs(part.logprobs)))
        sound = self._unsent + part.sound
        # Clients join the pieces before they decode them, so only the last one may have padding.
        end = len(sound) if part.finish_reason is not None else len(sound) - len(sound) % _UNPADDED
        self._unsent = sound[end:]
        if end:
            shaped.append(_chunk(0, {"audio": {"data": base64.b64encode(sound[:end]).decode()}}))
        if part.finish_reason is not None:
            shaped.append(_chunk(0, {}, finish_reason=part.finish_reason))
        return shaped

    def whole(self, parts: Sequence[Part]) -> dict[str, Any]:
        """The one ``choices`` item that says all ``parts``."""
        sound = b"".join(part.sound for part in parts)
        audio = {
            **self._named,
            "data": base64.b64encode(wav(sound) if self._format == "wav" else sound).decode(),
            "transcript": "".join(part.text for part in parts),
        }
        return {
            "index": 0,
            "message": {"role": "assistant", "content": None, "refusal": None, "audio": audio},
            "logprobs": _chat_logprobs([scores for part in parts for scores in part.logprobs]),
            "finish_reason": parts[-1].finish_reason,
        }


class TextChoice:
    """Plain text that begins with ``echo``, or with the prompt that ``scores`` tells of."""

    def __init__(
        self, index: int, echo: str = "", scores: TextScores | None = None, prompt_logprobs: int | None = None
    ) -> None:
        """``prompt_logprobs``: the alternatives of vLLM's field of this name; ``None``: it is not wanted."""
        self._index = index
        self._echo = echo
        self._scores = scores or TextScores(None)
        self._prompt_logprobs = prompt_logprobs

    def prompt(self, scores: PromptScores) -> Part:
        text, arrays = self._scores.of_prompt(scores) if self._scores.in_prompt else ("", None)
        items = b"" if self._prompt_logprobs is None else prompt_logprobs(scores, self._prompt_logprobs)
        return Part(text, arrays=arrays, prompt_logprobs=items)

    def token(self, token: Token) -> Part:
        text = self._scores.end_prompt() + token.text if self._scores.in_prompt else token.text
        return Part(text, arrays=None if token.logprobs is None else self._scores.of_answer(token.logprobs))

    def finish(self, reason: FinishReason) -> Part:
        text = self._scores.end_prompt() if self._scores.in_prompt else ""
        return Part(text, finish_reason=FINISH_REASONS[reason])

    def chunks(self, part: Part) -> list[dict[str, Any]]:
        """The ``choices`` items for ``part`` in a stream."""
        echo, self._echo = self._echo, ""
        if not (echo or part.text or part.arrays or part.finish_reason):
            return []
        arrays = [] if part.arrays is None else [part.arrays]
        return [self._item(echo + part.text, arrays, part.finish_reason)]

    def whole(self, parts: Sequence[Part]) -> dict[str, Any]:
        """The one ``choices`` item that says all ``parts``."""
        text = self._echo + "".join(part.text for part in parts)
        arrays = [part.arrays for part in parts if part.arrays is not None]
        item = self._item(text, arrays, parts[-1].finish_reason)
        if self._prompt_logprobs is not None:
            item["prompt_logprobs"] = listed(part.prompt_logprobs for part in parts)
        return item

    def _item(self, text: str, arrays: Sequence[Arrays], finish_reason: str | None) -> dict[str, Any]:
        return {
            "text": text,
            "index": self._index,
            "logprobs": joined(arrays) if arrays else None,
            "finish_reason": finish_reason,
        }


def _chunk(
    index: int,
    delta: dict[str, Any],
    logprobs: dict[str, Any] | None = None,
    finish_reason: str | None = None,
) -> dict[str, Any]:
    """One item of ``choices`` in a chat completion chunk."""
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}


def _scores(token: Token) -> tuple[Logprobs, ...]:
    return () if token.logprobs is None else (token.logprobs,)


def _chat_logprobs(logprobs: Sequence[Logprobs]) -> dict[str, Any] | None:
    if not logprobs:
        return None
    return {"content": [scored(scores) for scores in logprobs], "refusal": None}


def scored(scores: Logprobs) -> dict[str, Any]:
    """One token with its alternatives."""
    return {**scored_token(scores.chosen), "top_logprobs": [scored_token(top) for top in scores.top]}


def scored_token(scored: Scored) -> dict[str, Any]:
    """A token with its log-probability."""
    return {"token": text_of(scored), "logprob": logprob(scored), "bytes": list(scored.piece)}
