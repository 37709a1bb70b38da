"""Outputs of sessions, and properties of what is loaded: what comes back."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from umaserve.core.commands import Steering
from umaserve.core.errors import RequestError
from umaserve.core.requests import Audio, SoundFormat
from umaserve.core.tool_call_format import THINK_TAGS, TOLD_IN_WORDS, ThoughtForm, ToolForm


class FinishReason(enum.Enum):
    """Why a stream ended without an error."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    CONTENT_FILTER = "content_filter"


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one request."""

    prompt_tokens: int
    completion_tokens: int
    prefix_reused_tokens: int = 0
    """Tokens of the prompt that were in the cached prefix."""
    reasoning_tokens: int = 0
    """Tokens of the completion that are thoughts, or marks around them."""
    sound_s: float = 0.0
    """The seconds of sound in the prompt."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds since the request: when its prompt was started, at its first token, at its end."""

    started_s: float = 0.0
    first_token_s: float = 0.0
    total_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Scored:
    """A token and the natural logarithm of its probability; ``piece`` may be a part of a character."""

    token_id: int
    piece: bytes
    logprob: float


@dataclass(frozen=True, slots=True)
class Logprobs:
    """The chosen token, and the likeliest tokens, best first."""

    chosen: Scored
    top: tuple[Scored, ...]
    rank: int | None = None
    """The place of the chosen token among all, from 1; ``None`` where it was sampled."""


@dataclass(frozen=True, slots=True)
class Started:
    """The request was accepted: the model is loaded, and the request's stream follows."""


@dataclass(frozen=True, slots=True)
class Loading:
    """The request waits for the model. ``fraction`` is loaded; ``eta_s`` estimates the seconds left, if possible."""

    fraction: float
    eta_s: float | None


@dataclass(frozen=True, slots=True)
class Waiting:
    """The request waits in the queue of ``length`` requests, at ``position`` (from 1). ``eta_s``: seconds, if known."""

    position: int
    length: int
    eta_s: float | None


@dataclass(frozen=True, slots=True)
class CacheMiss:
    """A prompt leaves a known sequence that is nearly the same, so that what follows has to be computed."""

    at: int
    """Tokens before the difference."""
    prompt_tokens: int
    before: str
    """The end of the text before it."""
    here: str
    """How the prompt goes on; empty where that is no text, but an image or a sound."""
    known: str | None
    """How the known sequence goes on; ``None`` where the client may not read it."""


@dataclass(frozen=True, slots=True)
class Placed:
    """The request has left the queue: its prompt is being computed."""

    miss: CacheMiss | None = None


@dataclass(frozen=True, slots=True)
class Prefilling:
    """Part of the prompt is computed: ``done_tokens`` of ``input_tokens``, those in the cached prefix included. Only
    for requests that want it."""

    input_tokens: int
    reused_tokens: int
    done_tokens: int
    elapsed_s: float
    """Seconds since the prompt was started."""


@dataclass(frozen=True, slots=True)
class PromptScores:
    """The log-probabilities of the next tokens of the prompt, from its second one on. Only for requests that want
    them."""

    tokens: Sequence[Logprobs]
    first: bytes | None = None
    """The bytes of the prompt's first token, which nothing stands before, and ``tokens`` follow."""


@dataclass(frozen=True, slots=True)
class Prefilled:
    """The prompt is computed; the first token or the end follows."""

    input_tokens: int
    reused_tokens: int = 0
    """Tokens of the prompt that were in the cached prefix."""
    started_s: float = 0.0
    """Seconds from the request until its prompt was started."""
    text: str = ""
    """The prompt as the model got it, where the request asks for it."""


class Token(NamedTuple):
    """One generated token. ``text`` is empty while a character or a possible stop string is incomplete.

    ``elapsed_s`` is since the request, ``since_last_s`` since the previous token (for the first: since the request).
    A named tuple, since each stream has one in each tick, and a frozen dataclass takes three times as long to make.
    """

    text: str
    token_id: int
    logprobs: Logprobs | None = None
    elapsed_s: float = 0.0
    since_last_s: float = 0.0
    sampled: bool = True
    """False for text that was held back until the end: it is of earlier tokens, and ``token_id`` is the last one's. And
    for the token that ends an answer, which has no text, where its log-probability is told."""
    thoughts: str = ""
    answer: str | None = None
    """``text`` without thoughts and marks, which may come later than in ``text``; ``None``: they aren't told apart."""

    @property
    def said(self) -> str:
        """The answer's text, which is all text where thoughts aren't told apart."""
        return self.text if self.answer is None else self.answer


@dataclass(frozen=True, slots=True)
class Spoken:
    """A part of the answer's speech in ``Speaking.sound_format``; of a compressed file the next bytes."""

    sound: bytes
    text: str = field(default="", compare=False)
    """The sentence that begins with it, as it is spoken; empty: an earlier one goes on."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of a stream, after all tokens and all speech."""

    reason: FinishReason
    usage: Usage
    timing: Timing = Timing()
    recording: str | None = None
    """The id of the conversation's recording, if there is one."""
    stop_string: str | None = None
    """The stop string that ended it; ``None``: something else did."""
    tokens: Sequence[int] = ()
    """Tokens of the prompt and of the answer, where the request asks for them and no text was withheld."""


@dataclass(frozen=True, slots=True)
class Steered:
    """``command`` takes effect from the next token on; with ``refusal``, it was refused and changes nothing."""

    command: Steering
    refusal: RequestError | None = None


@dataclass(frozen=True, slots=True)
class FeedbackKept:
    """Whether feedback was stored, or the server stores none."""

    kept: bool


@dataclass(frozen=True, slots=True)
class Metrics:
    """A snapshot of the metrics: flat names to numbers and strings."""

    values: Mapping[str, int | float | str]
    models: Mapping[str, Mapping[str, int | str]] = field(default_factory=dict)
    """Metrics of each model, by its name."""
    aliases: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The other names of the models that have any."""


Prefill = Placed | Prefilling | Prefilled
Output = (
    Started | Loading | Waiting | Prefill | PromptScores | Token | Spoken | Finished | Steered | FeedbackKept | Metrics
)


class SlotFile(NamedTuple):
    """File that the sequence of a slot was saved in, or restored from."""

    filename: str
    tokens: int
    n_bytes: int
    took_s: float
    """Seconds that it took."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Properties of the loaded model."""

    name: str
    architecture: str
    quantization: str
    parameters: int
    size_bytes: int
    context_tokens: int
    """The limit of prompt and answer together."""
    training_tokens: int
    """The context that the model was trained with."""
    vocabulary: int
    embedding_length: int
    chat_template: str | None
    bos: str
    eos: str
    tool_form: ToolForm = TOLD_IN_WORDS
    """Form of the model's tool calls."""
    thought_form: ThoughtForm = THINK_TAGS
    """Form of the model's thoughts: how it marks them."""
    thinks: bool = False
    """Whether it writes thoughts before its answer, unless told otherwise."""
    lacks: Sequence[str] = ()
    """Abilities that the model lacks here and other models have, a sentence each."""
    adapters: Sequence[str] = ()
    """The names of its LoRA adapters, in the operator's order."""
    sees: bool = False
    """Whether its projector takes images."""
    hears: bool = False
    """Whether its projector takes sounds."""
    parallel: int = 1
    """Sequences that are decoded at once."""
    gpu_bytes: int = 0
    """About so much of ``size_bytes`` is in the memory of GPUs: in proportion to the layers there."""
    needed_bytes: int = 0
    """Memory of the box that it takes, weights included; 0 where that was not measured."""
    writes: bool = True
    """Whether it generates text."""
    embeds: bool = False
    """Whether it makes embeddings."""
    ranks: bool = False
    """Whether it scores documents by a question."""
    end_tokens: Sequence[int] = ()
    """The tokens that end an answer."""
    license: str = ""
    """The license that the model's file names; empty: none."""
    chat_problem: str = ""
    """Why chats are refused, or those with tools served worse; empty where they aren't."""


class ModelState(enum.StrEnum):
    """State of one of the daemon's models."""

    UNLOADED = "unloaded"
    LOADING = "loading"
    LOADED = "loaded"
    UNLOADING = "unloading"
    FAILED = "failed"
    """The model could not be loaded, or its engine ended; it is tried again after a pause, if somebody asks for it."""


@dataclass(frozen=True, slots=True)
class ListedModel:
    """One of the models that the daemon may serve."""

    name: str
    aliases: Sequence[str]
    description: str
    default: bool
    """Whether requests that name none get it."""
    size_bytes: int
    """Bytes of the model's files; 0 where they can't be read."""
    state: ModelState
    progress: float
    """How much of it is loaded, from 0 to 1."""
    needed_bytes: int
    """The memory that it takes or would take, as far as is known."""
    last_used_at: float | None
    """When it had work last, in seconds since 1970; ``None``: not since the start."""
    info: ModelInfo | None
    """Properties of the model; ``None`` where it has not been loaded since the start."""
    takes: Sequence[str] | None = None
    """Kinds of media that the model takes besides text, of "image", "audio" and "video"; ``None`` where that is known
    once it is loaded."""
    context_tokens: int = 0
    """The limit of prompt and answer together; of a model that has not been loaded, by its settings and its training,
    if memory has room for it. 0 where nobody knows."""
    architecture: str = ""
    """llama.cpp's name of the model's architecture; empty where nobody knows."""
    tags: Sequence[str] = ()
    """The operator's words for it."""
    room_bytes: int | None = None
    """The memory that it could have at the latest look, if all models that are not pinned were unloaded; ``None``
    where it is loaded."""


@dataclass(frozen=True, slots=True)
class ModelDownload:
    """Download of a model that an operator has asked for."""

    name: str
    """The name by which it was asked for."""
    model: str = ""
    """The name that the model has in the folder; empty until the hub has told of it."""
    files: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """By the URL of each file, how many bytes are there, and how many it has; empty until the hub has told."""
    problem: str | None = None
    """Why it has failed; empty: it has not; ``None``: nobody knows yet."""
    ended: int = 0
    """Number of downloads that had ended when it had; 0: it has not."""
    deleted: bool = False
    """Whether an operator has deleted what was there of it: it is in no list."""


@dataclass(frozen=True, slots=True)
class VoiceInfo:
    """Properties of the daemon's voice."""

    languages: Sequence[str]
    """The languages that it speaks, as ISO 639-1 codes."""
    clones: bool
    """Whether it can speak with the voice in a recording."""
    formats: Sequence[SoundFormat] = ()
    """The compressed formats that it can make."""
    reference: Audio | None = None
    """The daemon's own recording of a speaker."""
    reference_path: str = ""
    """The recording's path, as the operator gave it."""
    name: str = ""
