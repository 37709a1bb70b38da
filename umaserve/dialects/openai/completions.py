"""OpenAI's chat and text completions: a body in, one JSON answer or a stream of chunks out."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson

from umaserve.chat_format.tool_calls import ToolCallParser, parser_for, short_ids
from umaserve.core.errors import RequestError
from umaserve.core.events import (
    Finished,
    ModelInfo,
    Output,
    Prefilled,
    Prefilling,
    PromptScores,
    Spoken,
    Started,
    Token,
    Usage,
    VoiceInfo,
)
from umaserve.core.requests import ChatTurn, Generate
from umaserve.core.server_tools import CallResult, ServerCall
from umaserve.dialects import sse
from umaserve.dialects.http import JSON, ErrorReply, cap_headers
from umaserve.dialects.openai.choices import ChatChoice, Part, SpokenChoice, TextChoice
from umaserve.dialects.openai.errors import error_body
from umaserve.dialects.openai.requests import CompletionRequest, chat_request, completion_request
from umaserve.dialects.openai.server_tools import CallingChoice
from umaserve.dialects.openai.text_scores import TextScores
from umaserve.dialects.parameters import RequestLimits
from umaserve.dialects.server_tools import ServerToolsOf
from umaserve.dialects.timings import progress, timings
from umaserve.dialects.tool_rounds import NO_MORE_CALLS, ToolRounds

SSE_DONE = b"[DONE]"
"""The data of a stream's last event, after all choices have ended."""

Choice = ChatChoice | SpokenChoice | TextChoice


class _OpenAIBody:
    """Base of chat and text completions: parallel choices, their ends, and the object around them."""

    end = SSE_DONE
    stream_type = sse.CONTENT_TYPE
    whole_type = JSON
    frame = staticmethod(sse.event)
    ping = staticmethod(sse.ping)
    _object: str
    _chunk_object: str

    def __init__(
        self, limits: RequestLimits, model: Callable[[str], ModelInfo | None], new_id: str, created: int
    ) -> None:
        """``new_id`` is the answer's id, ``created`` its creation time in seconds since 1970."""
        self.headers = cap_headers(limits)
        self._limits = limits
        self._model = model
        self._new_id = new_id
        self._created = created
        self._asked = CompletionRequest("", (), 1, stream=False, include_usage=False)
        self._choices: Sequence[Choice] = ()
        self._parts: list[list[Part]] = []
        self._finished: dict[int, Finished] = {}
        self._failed: set[int] = set()
        self._prompts: dict[int, str] = {}
        """Prompts by choice, as the model got them, where that is asked for."""
        self._head: dict[str, Any] | None = None

    @property
    def streaming(self) -> bool:
        return self._asked.stream

    @property
    def done(self) -> bool:
        """Whether all choices have finished or failed."""
        return 0 < len(self._choices) == len(self._finished) + len(self._failed)

    def send(self, index: int, output: Output) -> list[bytes]:
        """The chunks for an output of choice ``index``, each the data of one event; none unless streaming."""
        choice = self._running(index)
        match output:
            case Started():
                part = Part()
            case Prefilled():
                self._prompts[index] = output.text
                return []
            case Token():
                part = choice.token(output)
            case PromptScores() if isinstance(choice, TextChoice):
                part = choice.prompt(output)
            case Spoken() if isinstance(choice, SpokenChoice):
                part = choice.spoken(output)
            case Prefilling():
                # Without choices, like the chunk with the usage, which clients know.
                return [orjson.dumps({**self._chunk([]), "prompt_progress": progress(output)})]
            case Finished():
                output, between = self._between_rounds(output)
                if between is None:
                    self._finished[index] = output
                part = between or choice.finish(output.reason)
            case _:
                return []
        if not self.streaming:
            self._parts[index].append(part)
            return []
        chunks = [self._chunk([item]) for item in choice.chunks(part)]
        if isinstance(output, Finished) and index in self._finished:
            chunks[-1]["timings"] = timings(output.usage, output.timing)
            if self._asked.include_usage and len(self._finished) == len(self._choices):
                # Where llama-server has the timings: in the last chunk, whichever that is.
                timed = {"timings": chunks[-1]["timings"]} if len(self._choices) == 1 else {}
                chunks.append({**self._chunk([]), "usage": self._usage(), **timed})
            chunks[-1] |= self._verbose(index)
        return [orjson.dumps(chunk) for chunk in chunks]

    def _between_rounds(self, end: Finished) -> tuple[Finished, Part | None]:
        """The end with the tokens of all rounds; and the part at the end of this one, where another follows."""
        return end, None

    def fail(self, index: int, error: RequestError) -> list[bytes]:
        """The chunk for the error that ended choice ``index``; none unless streaming."""
        self._running(index)
        self._failed.add(index)
        return [error_body(error).body] if self.streaming else []

    def error(self, error: RequestError) -> ErrorReply:
        return error_body(error)

    def result(self) -> bytes:
        """The whole answer, once every choice has finished."""
        if self.streaming or not self.done or self._failed:
            raise RuntimeError("no whole answer to give")
        whole = self._around(self._object)
        whole["choices"] = [choice.whole(parts) for choice, parts in zip(self._choices, self._parts, strict=True)]
        whole["usage"] = self._usage()
        # Parallel choices have no common rate.
        if len(self._choices) == 1:
            whole["timings"] = timings(self._finished[0].usage, self._finished[0].timing)
        whole |= self._verbose(0)
        return orjson.dumps(whole)

    def _take(self, asked: CompletionRequest, choices: Sequence[Choice]) -> Sequence[Generate]:
        # Without ``choices``, so as not to keep the prompt's media in memory.
        self._asked = replace(asked, choices=())
        self._choices = choices
        self._parts = [[] for _ in choices]
        return asked.choices

    def _running(self, index: int) -> Choice:
        if index in self._finished or index in self._failed or not 0 <= index < len(self._choices):
            raise RuntimeError(f"choice {index} isn't running")
        return self._choices[index]

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        chunk = self._around(self._chunk_object)
        chunk["choices"] = choices
        if self._asked.include_usage:
            chunk["usage"] = None
        return chunk

    def _around(self, kind: str) -> dict[str, Any]:
        if self._head is None:
            info = self._model(self._asked.model)
            self._head = {
                "model": self._asked.model if info is None else info.name,
                "system_fingerprint": None if info is None else f"b{zlib.crc32(repr(info).encode()):08x}",
            }
        return {"id": self._new_id, "object": kind, "created": self._created, **self._head}

    def _verbose(self, index: int) -> dict[str, Any]:
        """Fields that llama-server adds to a choice where ``verbose`` is true, as far as they aren't told already."""
        return {"__verbose": {"index": index, "prompt": self._prompts.get(index, "")}} if self._asked.verbose else {}

    def _usage(self) -> dict[str, Any]:
        """The tokens of all choices; a prompt counts once for all its choices."""
        prompts: dict[int, list[Usage]] = {}
        for index, end in self._finished.items():
            prompts.setdefault(index // self._asked.choices_each, []).append(end.usage)
        prompt = sum(usages[0].prompt_tokens for usages in prompts.values())
        # The minimum: what one choice reused from another was computed for this answer.
        cached = sum(min(usage.prefix_reused_tokens for usage in usages) for usages in prompts.values())
        completion = sum(end.usage.completion_tokens for end in self._finished.values())
        thoughts = sum(end.usage.reasoning_tokens for end in self._finished.values())
        details = {"completion_tokens_details": {"reasoning_tokens": thoughts}} if thoughts else {}
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": cached},
            **details,
        }


class ChatBody(_OpenAIBody):
    """One ``POST /v1/chat/completions``."""

    _object, _chunk_object = "chat.completion", "chat.completion.chunk"

    def __init__(
        self,
        limits: RequestLimits,
        voice: VoiceInfo | None,
        model: Callable[[str], ModelInfo | None],
        new_id: str,
        created: int,
        server_tools: ServerToolsOf | None = None,
    ) -> None:
        """``voice`` is the daemon's, if it has one. ``server_tools``: as in ``Facts``."""
        super().__init__(limits, model, new_id, created)
        self._voice = voice
        self._server_tools = server_tools
        self._rounds: ToolRounds | None = None
        self._turns: list[ChatTurn] = []
        """The answer so far, with the results of its calls."""

    def receive(self, body: bytes) -> Sequence[Generate]:
        """The choices asked for, each a request of its own; raises ``RequestError``."""
        asked = chat_request(body, self._limits, self._voice, self._new_id, self._server_tools)
        if asked.servers:
            self._rounds = ToolRounds(asked.choices[0], asked.servers)
        return self._take(asked, [self._choice(index, asked) for index in range(len(asked.choices))])

    def _choice(self, index: int, asked: CompletionRequest) -> ChatChoice | SpokenChoice:
        unique = self._new_id.removeprefix("chatcmpl-")
        if asked.audio is not None:
            return SpokenChoice(f"audio_{unique}", self._created, asked.audio)
        request = asked.choices[index]
        if not request.tools:
            return ChatChoice(index, None)
        new_id = short_ids(f"{unique}_{index}")
        custom = {tool.name for tool in request.tools if tool.custom}

        def parser() -> ToolCallParser:
            return parser_for(request, self._model(request.model), new_id)

        return CallingChoice(parser, custom, asked.servers) if asked.servers else ChatChoice(index, parser, custom)

    # -- tools that the daemon calls -----------------------------------------------------------------------------

    def _between_rounds(self, end: Finished) -> tuple[Finished, Part | None]:
        if self._rounds is None:
            return end, None
        choice = self._calling
        part = choice.goes_on(end.reason)
        if part is not None:
            for number in self._rounds.refused(choice.awaited):
                choice.called(number, NO_MORE_CALLS)
        return replace(end, usage=self._rounds.count(end.usage)), part

    def take_calls(self) -> Mapping[int, ServerCall]:
        """The calls to make before the answer goes on."""
        return {} if self._rounds is None or self.done else self._calling.awaited

    def called(self, number: int, result: CallResult) -> list[bytes]:
        """Keep a result, which only the model is told."""
        self._calling.called(number, result)
        return []

    def next_request(self) -> Generate:
        """The request with which the answer goes on."""
        assert self._rounds is not None
        self._turns += self._calling.next_round()
        return self._rounds.next_request(self._turns)

    @property
    def _calling(self) -> CallingChoice:
        (choice,) = self._choices
        assert isinstance(choice, CallingChoice)
        return choice


class CompletionBody(_OpenAIBody):
    """One ``POST /v1/completions``."""

    _object = _chunk_object = "text_completion"

    def receive(self, body: bytes) -> Sequence[Generate]:
        """The choices asked for, each a request of its own; raises ``RequestError``."""
        asked = completion_request(body, self._limits, self._new_id)
        return self._take(asked, [_text_choice(index, asked) for index in range(len(asked.choices))])


def _text_choice(index: int, asked: CompletionRequest) -> TextChoice:
    request = asked.choices[index]
    text = request.prompt if asked.echo and isinstance(request.prompt, str) else None
    if not asked.echo or request.logprobs is None:
        return TextChoice(index, text or "", prompt_logprobs=asked.prompt_logprobs)
    return TextChoice(index, scores=TextScores(request.logprobs, text), prompt_logprobs=asked.prompt_logprobs)
