"""The tools: what each is for, which arguments it has, and which question of the other APIs it asks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import orjson

from umaserve import __version__
from umaserve.core.errors import Fault, RequestError
from umaserve.core.events import Finished, FinishReason, ListedModel, ModelInfo
from umaserve.core.requests import Audio, ChatTurn, Generate
from umaserve.dialects.facts import Facts
from umaserve.dialects.llama_server.rerank import parse_rerank, rerank_result
from umaserve.dialects.mcp.answers import AnswerBody
from umaserve.dialects.mcp.messages import Message
from umaserve.dialects.mcp.results import Content, failed, failures, found, text
from umaserve.dialects.mcp.schemas import (
    AskArguments,
    EmbedArguments,
    RerankArguments,
    SpeakArguments,
    StatusArguments,
    TranscribeArguments,
)
from umaserve.dialects.mcp.speech import SpokenResult
from umaserve.dialects.openai.embeddings import embeddings_result, parse_embeddings
from umaserve.dialects.openai.speech import text_to_speech
from umaserve.dialects.parameters import check_prompt_bytes, sampling, within_cap
from umaserve.dialects.routes import Asked, EngineQuestion, Handed, SpeechReply, TextReply, ask
from umaserve.dialects.sampling_schemas import DEFAULTS
from umaserve.dialects.transcription import check_end, transcription
from umaserve.wire.declared import Declared
from umaserve.wire.fields import Fields
from umaserve.wire.schema_components import Components

STATUS = "status"
"""The tool that each server answers for itself."""

Called = Handed | bytes
"""What answers a call: another endpoint, or the response itself."""


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool."""

    name: str
    title: str
    about: str
    arguments: type[Declared]
    offered: Callable[[Facts], bool]
    """Whether the server can do it for the client, as far as is known."""
    start: Callable[[Message, Any, Facts], Called]
    """Answers a call with the given arguments, of the class above."""

    def listed(self) -> dict[str, object]:
        """The tool in the list of all."""
        return {
            "name": self.name,
            "title": self.title,
            "description": self.about,
            "inputSchema": Components().rendered(self.arguments.schema()),
            "annotations": {"readOnlyHint": True, "openWorldHint": False},
        }

    def call(self, message: Message, arguments: dict[str, Any], facts: Facts) -> Called:
        """Answer a call."""
        try:
            self.check_names(arguments)
        except RequestError as error:
            return failed(message, error)
        return self.start(message, self.arguments(arguments), facts)

    def check_names(self, arguments: Mapping[str, Any]) -> None:
        """Raise ``RequestError`` unless the tool knows all of the arguments."""
        known = self.arguments.field_names()
        unknown = next((name for name in arguments if name not in known), None)
        if unknown is not None:
            # A model learns of its mistake, where a mistyped argument would be ignored in silence.
            has = f"this tool has {', '.join(sorted(known))}" if known else "this tool has none"
            raise RequestError(Fault.BAD_REQUEST, unknown[:64], f"expected to be absent: {has}")


def _ask(message: Message, given: AskArguments, facts: Facts) -> Handed:
    def request() -> Generate:
        turns = [ChatTurn("system", given.system)] if given.system else []
        turns.append(ChatTurn("user", given.prompt))
        check_prompt_bytes(sum(len(turn.content.encode()) for turn in turns), facts.limits)
        return Generate(
            facts.new_id("mcp-"),
            tuple(turns),
            max_tokens=within_cap(given.max_tokens, facts.limits),
            sampling=sampling(given, DEFAULTS),
            splits_thoughts=True,
            model=_model(given.model, facts, _writes),
        )

    return _answered(message, facts, request, _answer)


def _answer(said: str, end: Finished) -> list[Content]:
    content = [text(said)]
    if end.reason is FinishReason.LENGTH:
        tokens = end.usage.completion_tokens
        content.append(text(f"[The answer reached its limit of {tokens} tokens and is cut off here.]"))
    elif end.reason is FinishReason.CONTENT_FILTER:
        content.append(text("[The server's content filter ended the answer here.]"))
    return content


def _transcribe(message: Message, given: TranscribeArguments, facts: Facts) -> Handed:
    def request() -> Generate:
        name = _model(given.model, facts, lambda info: info.hears)
        request = transcription(
            Audio(given.audio, "audio"),
            facts.new_id("mcp-"),
            facts.limits,
            facts.model(name),
            language=(given.language or "").strip(),
            prompt=(given.prompt or "").strip(),
        )
        return replace(request, model=name)

    return _answered(message, facts, request, _transcript)


def _transcript(said: str, end: Finished) -> list[Content]:
    check_end(end, "audio")
    return [text(said.strip())]


def _answered(
    message: Message,
    facts: Facts,
    request: Callable[[], Generate],
    content: Callable[[str, Finished], list[Content]],
) -> Handed:
    body = AnswerBody(message, facts.limits, request, content)
    return Handed(TextReply(lambda _facts: body), failures(message))


def _embed(message: Message, given: EmbedArguments, facts: Facts) -> Handed:
    def question(_body: bytes, facts: Facts) -> Asked:
        name = _model(given.model, facts, lambda info: info.embeds)
        info = facts.loaded(name)
        asked = parse_embeddings(Fields(given.values), facts.limits, info.embedding_length)
        return ask(asked.query, lambda answer: found(message, embeddings_result(answer, asked, info.name)), name)

    return Handed(EngineQuestion(question), failures(message))


def _rerank(message: Message, given: RerankArguments, facts: Facts) -> Handed:
    def question(_body: bytes, facts: Facts) -> Asked:
        asked = parse_rerank(Fields(given.values), facts.limits)
        name = _model(given.model, facts, lambda info: info.ranks)
        known = facts.loaded(name).name
        return ask(asked.query, lambda answer: found(message, rerank_result(answer, asked, known)), name)

    return Handed(EngineQuestion(question), failures(message))


def _speak(message: Message, given: SpeakArguments, facts: Facts) -> Handed:
    body = SpokenResult(message, lambda: text_to_speech(Fields(given.values), facts.voice))
    return Handed(SpeechReply(lambda _facts: body), failures(message))


def _status(message: Message, _given: StatusArguments, facts: Facts) -> bytes:
    told = {
        "version": __version__,
        "models": [_told(one) for one in facts.models()],
        "voice": None if facts.voice is None else {"name": facts.voice.name, "languages": facts.voice.languages},
        "answers_in_progress": len(facts.running()),
    }
    return found(message, orjson.dumps(told))


def _told(one: ListedModel) -> dict[str, Any]:
    told: dict[str, Any] = {"name": one.name, "default": one.default, "state": one.state}
    if one.description:
        told["description"] = one.description
    if one.context_tokens:
        told["context_tokens"] = one.context_tokens
    if one.info is not None:
        able = {"ask": _writes(one.info), "embed": one.info.embeds, "rerank": one.info.ranks}
        told["tools"] = [name for name, can in {**able, "transcribe": one.info.hears}.items() if can]
    return told


def _writes(info: ModelInfo) -> bool:
    return info.writes


def _model(asked: str | None, facts: Facts, able: Callable[[ModelInfo], bool]) -> str:
    """The name of the model that a call means: the one that it names, else the first that is known to be able."""
    known = (one.name for one in facts.models() if one.info is not None and able(one.info))
    return asked or next(known, "")


def _any(able: Callable[[ModelInfo], bool], facts: Facts) -> bool:
    """Whether a model can do it, or may be able to: of one that has not been loaded nobody knows."""
    return any(one.info is None or able(one.info) for one in facts.models())


def _hears(facts: Facts) -> bool:
    return any(one.takes is None or "audio" in one.takes for one in facts.models())


TOOLS = {
    tool.name: tool
    for tool in (
        Tool(
            "ask",
            "Ask a model",
            "Asks a language model of this server, which runs on its own machine, and returns its answer as text. It"
            " knows nothing but what the prompt says: put all that it needs there. Of use for a second opinion, and"
            " for work on long texts that need not be read by yourself: to summarize, translate, classify, extract.",
            AskArguments,
            partial(_any, _writes),
            _ask,
        ),
        Tool(
            "embed",
            "Embed texts",
            "Returns a vector for each text, by an embedding model: texts of a similar meaning have similar vectors.",
            EmbedArguments,
            partial(_any, lambda info: info.embeds),
            _embed,
        ),
        Tool(
            "rerank",
            "Rank documents",
            "Puts documents in the order in which they answer a question, the best first, by a reranking model."
            " Returns their indices, which count from 0, and their scores.",
            RerankArguments,
            partial(_any, lambda info: info.ranks),
            _rerank,
        ),
        Tool(
            "transcribe",
            "Transcribe speech",
            "Returns the text of what is said in a sound file, by a model that hears.",
            TranscribeArguments,
            _hears,
            _transcribe,
        ),
        Tool(
            "speak",
            "Speak a text",
            "Reads a text aloud, and returns the sound file.",
            SpeakArguments,
            lambda facts: facts.voice is not None,
            _speak,
        ),
        Tool(
            STATUS,
            "Show the server",
            "Lists the models of this server, with their states and the tools that each can serve where these are"
            " known, and says how many answers are in progress.",
            StatusArguments,
            lambda _facts: True,
            _status,
        ),
    )
}
"""All tools by their names, in the order in which they are listed."""
