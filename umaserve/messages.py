"""What dialects and sessions say to each other. A new dialect adds nothing here that a session must know."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from umaserve.errors import RequestError

# Commands: what a client asks for.


class Priority(enum.IntEnum):
    """Scheduling class: background work runs when no interactive prompt waits, or when it has aged."""

    INTERACTIVE = 0
    BACKGROUND = 1


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen. The cut-offs default to llama.cpp's own; a temperature of 0 is greedy."""

    temperature: float = 0.0
    top_p: float = 0.95
    top_k: int = 40
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    grammar: str | None = None
    """GBNF text."""
    json_schema: str | None = None
    """A JSON schema as JSON text; excludes ``grammar``."""
    ignore_eos: bool = False
    length_penalty: float = 1.0
    """Above 1 answers get longer, below 1 shorter: the logits of the tokens that end one are scaled by it."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model made in an earlier turn. ``arguments`` is JSON text."""

    id: str
    name: str
    arguments: str


Base64 = str | memoryview
"""A long one as it lies in the memory of the message that it came in: a copy would hold up everybody."""


@dataclass(frozen=True, slots=True)
class Image:
    """A picture in any format. ``data`` is base64, of which nothing has been checked; errors name ``field``."""

    data: Base64
    field: str
    max_slices: int | None = None
    """Parts into which the projector may cut it, for those that do; ``None``: as many as it likes."""
    numbered: bool | None = None
    """Whether several images of one conversation have their numbers before them; ``None``: only for models that were
    trained with such."""


@dataclass(frozen=True, slots=True)
class Audio:
    """A recording: little-endian float32 mono of ``sample_rate``, or a file of any format where that is ``None``."""

    data: Base64
    field: str
    sample_rate: int | None = None


@dataclass(frozen=True, slots=True)
class Video:
    """A film's file: its pictures, and its sound. ``omni``: interleaved by time, which otherwise follow each other."""

    data: Base64
    field: str
    omni: bool = False
    stack_frames: int = 1
    """Pictures of each second; those after the first are tiled into one."""
    max_slices: int | None = None


Media = Image | Audio | Video


@dataclass(frozen=True, slots=True)
class Attachment:
    """What stands before the character ``at`` of a turn's content, counted from 0; behind all where ``at`` is its
    length."""

    at: int
    media: Media


@dataclass(frozen=True, slots=True)
class ChatTurn:
    """One message of a conversation, as the model's chat template takes it."""

    role: str
    content: str
    attachments: tuple[Attachment, ...] = field(default=(), kw_only=True)
    """In their order."""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    """The call that a turn of the role "tool" answers."""


@dataclass(frozen=True, slots=True)
class TokenIds:
    """A prompt that the client has tokenized itself."""

    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call. ``parameters`` is its arguments' JSON schema as JSON text."""

    name: str
    description: str
    parameters: str


TOOL_CALL_OPEN, TOOL_CALL_CLOSE = "<tool_call>", "</tool_call>"
"""What a call stands between in the generated text; inside is one JSON object, ``{"name", "arguments"}``."""


SoundFormat = Literal["mp3", "opus", "aac", "flac"]
"""A compressed sound file; Opus is in Ogg, AAC in ADTS."""


@dataclass(frozen=True, slots=True)
class Speaking:
    """How an answer is spoken."""

    speaker: Audio | None = None
    """A recording of the one whose voice it is; ``None``: the daemon's own."""
    language: str = ""
    """As an ISO 639-1 code that the daemon's voice speaks; empty: the one that it speaks of itself."""
    sound_format: SoundFormat | None = None
    """``None``: mono samples at 24 kHz, little-endian float32."""


@dataclass(frozen=True, slots=True)
class Generate:
    """A request for text. Fields left ``None`` take the server's defaults."""

    id: str
    prompt: str | tuple[ChatTurn, ...] | TokenIds
    """A raw prompt, or turns for the chat template."""
    max_tokens: int | None = None
    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[str, ...] = ()
    logprobs: int | None = None
    """How many alternatives to report with each token's log-probability; ``None``: no log-probabilities at all."""
    tools: tuple[Tool, ...] = ()
    must_call: bool = False
    """Whether the answer has to be a tool call; otherwise the model may choose."""
    recorded: bytes | None = None
    """The client's own words, where the operator may want to keep the conversation."""
    cache_prompt: bool = True
    """Whether it may begin with what was computed for another request, and leave its own for others."""
    enable_thinking: bool | None = None
    """For chat templates that know a variable of this name; ``None``: as they do of themselves."""
    continue_final_message: bool | None = None
    """Whether the answer goes on with the last turn; ``None``: where that is the assistant's."""
    add_generation_prompt: bool = True
    """Whether the chat template opens a turn of the assistant's, where none is continued."""
    spoken: Speaking | None = None
    """How the answer is spoken as well; ``None``: not at all."""
    lora: tuple[tuple[str, float], ...] | None = None
    """Adapters by name, each with its scale; ``None``: all that the server has, at 1."""
    priority: Priority = Priority.INTERACTIVE
    target_ttft_s: float | None = None
    target_tbt_s: float | None = None


@dataclass(frozen=True, slots=True)
class Cancel:
    """End the running request of this id at the next token boundary."""

    id: str


@dataclass(frozen=True, slots=True)
class Replace:
    """Drop the running request unheard, and start this one in its place."""

    request: Generate


@dataclass(frozen=True, slots=True)
class Modify:
    """Go on with the running request as if it had been asked for like this: sampling, ``max_tokens`` and ``stop``.

    It stands by itself, whatever earlier changes said: of several that wait, only the last one is applied.
    """

    request: Generate


@dataclass(frozen=True, slots=True)
class Pause:
    """Compute no more tokens until ``Resume``."""


@dataclass(frozen=True, slots=True)
class Resume:
    """Go on after ``Pause``."""


@dataclass(frozen=True, slots=True)
class Feedback:
    """A client's opinion of a generation, to be kept."""

    values: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Reattach:
    """Take over the generation that a lost connection left, from its token number ``position`` (from 0) on."""

    request_id: str
    position: int


@dataclass(frozen=True, slots=True)
class GetMetrics:
    """Ask for one snapshot."""


Steering = Modify | Pause | Resume
Command = Generate | Cancel | Replace | Steering | Feedback | Reattach | GetMetrics


@dataclass(frozen=True, slots=True)
class Tokenize:
    """The tokens of a text; ``special``: with the model's start token, and control tokens as written."""

    text: str
    special: bool


@dataclass(frozen=True, slots=True)
class Detokenize:
    """The text of tokens."""

    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Embed:
    """A vector for each text."""

    inputs: tuple[str | TokenIds, ...]


Query = Tokenize | Detokenize | Embed
"""Questions to the engine that make no stream."""


# Outputs: what comes back.


class FinishReason(enum.Enum):
    """Why a stream ended without an error."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    CONTENT_FILTER = "content_filter"


@dataclass(frozen=True, slots=True)
class Usage:
    """True token counts of one request."""

    prompt_tokens: int
    completion_tokens: int
    prefix_reused_tokens: int = 0
    """Tokens of the prompt that had been computed before, for another request."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds from the request: until its prompt was begun, until its first token, until its end."""

    started_s: float = 0.0
    first_token_s: float = 0.0
    total_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Scored:
    """A token with the natural logarithm of its probability; ``piece`` may be part of a character."""

    token_id: int
    piece: bytes
    logprob: float


@dataclass(frozen=True, slots=True)
class Logprobs:
    """The chosen token, and the likeliest ones, best first."""

    chosen: Scored
    top: tuple[Scored, ...]


@dataclass(frozen=True, slots=True)
class Started:
    """The request was taken up: a model is there, and what follows is its stream."""


@dataclass(frozen=True, slots=True)
class Loading:
    """The request waits for the model. ``eta_s`` is a guess at the seconds left, ``None`` without a ground for one."""

    fraction: float
    eta_s: float | None


@dataclass(frozen=True, slots=True)
class Waiting:
    """The request waits for a place: ``position`` from 1 in a queue of ``length``."""

    position: int
    length: int
    eta_s: float | None


@dataclass(frozen=True, slots=True)
class Placed:
    """The request waits no more: its prompt is being computed."""


@dataclass(frozen=True, slots=True)
class Prefilled:
    """The prompt is computed; the first token comes next, or the end."""

    input_tokens: int


@dataclass(frozen=True, slots=True)
class Token:
    """One generated token. ``text`` is empty while a character or a possible stop string is incomplete.

    ``elapsed_s`` is since the request, ``since_last_s`` since the token before or, for the first one, the request.
    """

    text: str
    token_id: int
    logprobs: Logprobs | None = None
    elapsed_s: float = 0.0
    since_last_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Spoken:
    """A part of the answer's speech, as ``Speaking.sound_format`` says; of a compressed file the next bytes."""

    sound: bytes


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of a stream; every token, and all of its speech, came before it."""

    reason: FinishReason
    usage: Usage
    timing: Timing = Timing()
    recording: str | None = None
    """The id of what was kept of the conversation, if it was."""


@dataclass(frozen=True, slots=True)
class Steered:
    """``command`` holds from the next token on; or was refused for the reason given, and all goes on as before."""

    command: Steering
    refusal: RequestError | None = None


@dataclass(frozen=True, slots=True)
class FeedbackKept:
    """Feedback was written down, or there is nowhere to write it."""

    kept: bool


@dataclass(frozen=True, slots=True)
class Metrics:
    """A snapshot: flat names to numbers and strings."""

    values: Mapping[str, int | float | str]


Output = Started | Loading | Waiting | Placed | Prefilled | Token | Spoken | Finished | Steered | FeedbackKept | Metrics


@dataclass(frozen=True, slots=True)
class Tokenized:
    """``pieces`` are the bytes of each token."""

    ids: Sequence[int]
    pieces: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class Detokenized:
    text: str


@dataclass(frozen=True, slots=True)
class Embedded:
    """One vector of unit length for each input, and the tokens that they had together."""

    vectors: Sequence[Sequence[float]]
    prompt_tokens: int


Answer = Tokenized | Detokenized | Embedded


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What is known of the loaded model, for clients that ask."""

    name: str
    architecture: str
    quantization: str
    parameters: int
    size_bytes: int
    context_tokens: int
    """The longest that prompt and answer together may get."""
    training_tokens: int
    """The context that the model was trained with."""
    vocabulary: int
    embedding_length: int
    chat_template: str | None
    bos: str
    eos: str


@dataclass(frozen=True, slots=True)
class VoiceInfo:
    """What is known of the daemon's voice, for requests that ask for speech."""

    languages: Sequence[str]
    """What it speaks, as ISO 639-1 codes."""
    clones: bool
    """Whether a recording of somebody can be its speaker."""
    formats: Sequence[SoundFormat] = ()
    """The compressed ones in which it can be heard."""
    reference: Audio | None = None
    """The daemon's own such recording."""
    reference_path: str = ""
    """How the operator calls it."""
