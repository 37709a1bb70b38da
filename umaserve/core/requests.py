"""Requests from dialects to sessions: what clients ask for. ``events`` has what comes back.

A new dialect adds nothing here that a session must know.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal


class Priority(enum.IntEnum):
    """Scheduling class: a background request runs when no interactive prompt waits, or once it has waited long
    enough."""

    INTERACTIVE = 0
    BACKGROUND = 1


class Syntax(enum.Enum):
    """Syntax in which a grammar is written."""

    GBNF = "gbnf"
    LARK = "lark"
    REGEX = "regex"
    JSON_SCHEMA = "json_schema"


@dataclass(frozen=True, slots=True)
class Grammar:
    """A grammar that an answer has to match as a whole. Errors name ``field``, in which the client sent it."""

    syntax: Syntax
    text: str
    field: str = field(compare=False)


SAMPLERS = ("penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature")
"""The samplers that every answer has unless it names its own, in llama.cpp's default order."""
ADAPTIVE_P = "adaptive_p"
"""The sampler that draws near a wanted probability; always the last one, and only where a request names it."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters. The defaults of ``top_p``, ``top_k`` and ``min_p`` are llama.cpp's; temperature 0 is
    greedy."""

    temperature: float = 0.0
    top_p: float = 0.95
    top_k: int = 40
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    grammar: Grammar | None = None
    ignore_eos: bool = False
    length_penalty: float = 1.0
    """Above 1 answers get longer, below 1 shorter: it scales the logits of the tokens that end an answer."""
    text_bias: tuple[tuple[str, float], ...] = ()
    """Biases like ``logit_bias``, of all tokens of each text."""
    scores_after: bool = False
    """Whether log-probabilities are those by which the token was drawn, of the tokens that the cut-offs left."""
    penalty_window: int = 64
    """Number of the last tokens, the prompt's included, that count for the penalties."""
    samplers: tuple[str, ...] = SAMPLERS
    """The samplers that are applied, in this order."""
    dry_multiplier: float = 0.0
    """Strength of the penalty on tokens that would go on with a repetition; 0: off."""
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    """Tokens that may repeat without a penalty."""
    dry_penalty_last_n: int = 64
    """Number of the last tokens, the prompt's included, in which repetitions are looked for."""
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    """Texts at which a repetition ends."""
    top_n_sigma: float = -1.0
    """Standard deviations of the logits below the greatest one within which tokens are kept; 0 and below: off."""
    typical_p: float = 1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    dynatemp_range: float = 0.0
    """How far the temperature follows the entropy to either side of ``temperature``; 0: not at all."""
    dynatemp_exponent: float = 1.0
    mirostat: int = 0
    """Version of Mirostat, which takes the place of all samplers but the temperature; 0: off."""
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    adaptive_target: float = -1.0
    """Probability near which ``ADAPTIVE_P`` draws; below 0 it draws as usual."""
    adaptive_decay: float = 0.9
    min_tokens: int = 0
    """Tokens before which neither an end token nor one of ``stop_token_ids`` comes."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end the answer as its end token does."""
    bad_words: tuple[str, ...] = ()
    """Texts whose last token never follows their other ones in the answer."""

    @property
    def random(self) -> bool:
        """Whether equal requests get unequal answers, which no seed fixes."""
        return self.temperature > 0 and self.seed is None and self.top_k != 1


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model made in an earlier turn. ``arguments`` is JSON text."""

    id: str
    name: str
    arguments: str


MAX_MEDIA_KEPT = 1 << 20
"""Bytes of a request's media that are kept until its end, to be prepared once more."""
Base64 = str | memoryview
"""Long data is a view into the received message: a copy would block the loop."""


@dataclass(frozen=True, slots=True)
class Image:
    """An image in any format. ``data`` is unchecked base64; errors name ``field``."""

    data: Base64
    field: str
    max_slices: int | None = None
    """The most slices into which a projector may cut the image; ``None``: the projector decides."""
    numbered: bool | None = None
    """Whether to put numbers before the images of a conversation with several; ``None``: only for models trained so."""


@dataclass(frozen=True, slots=True)
class Audio:
    """A recording: mono little-endian float32 samples at ``sample_rate``; if that is ``None``, a file in any format."""

    data: Base64
    field: str
    sample_rate: int | None = None


@dataclass(frozen=True, slots=True)
class Sound:
    """A recording, as ``Audio``, from a client that sent it as bytes, without base64."""

    data: memoryview
    field: str
    sample_rate: int | None = None


@dataclass(frozen=True, slots=True)
class Video:
    """A video file: its frames and its sound. ``omni``: interleaved by time; otherwise the sound follows the frames."""

    data: Base64
    field: str
    omni: bool = False
    stack_frames: int = 1
    """Frames per interval (a second, more in long videos); those after the first are tiled into one image."""
    max_slices: int | None = None


Media = Image | Audio | Sound | Video


@dataclass(frozen=True, slots=True)
class Attachment:
    """Media before the character ``at`` (from 0) of a turn's content; at the end if ``at`` is the content's length."""

    at: int
    media: Media


@dataclass(frozen=True, slots=True)
class ChatTurn:
    """One message of a conversation, as the model's chat template takes it."""

    role: str
    content: str
    attachments: tuple[Attachment, ...] = field(default=(), kw_only=True)
    """Media of the turn, in the order of their places."""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    """The call that a turn of the role "tool" answers."""
    thoughts: str = ""
    """Thoughts of the assistant before its answer."""


@dataclass(frozen=True, slots=True)
class TokenIds:
    """A prompt that the client has tokenized."""

    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MixedText:
    """A prompt of texts and token ids, one after another. One that begins with ids gets no start token."""

    parts: tuple[str | TokenIds, ...]


@dataclass(frozen=True, slots=True)
class Infill:
    """A gap in a text, to be filled by a model that is made for it."""

    prefix: str
    """The text before the gap."""
    suffix: str
    """The text after it."""
    beginning: str = ""
    """Beginning of what fills the gap."""
    others: tuple[tuple[str, str], ...] = ()
    """Other texts that may help: their names, which may be empty, and the texts."""


Prompt = str | tuple[ChatTurn, ...] | TokenIds | MixedText | Infill
"""A raw prompt, turns for the chat template, or a gap to fill."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call. ``parameters`` is its arguments' JSON schema as JSON text; ``bound`` is what
    its only argument, a text, has to match (Lark or a regular expression). ``strict``: a call follows all of its
    schema, and one that no grammar can enforce is refused. ``custom``: clients get that text instead of arguments."""

    name: str
    description: str
    parameters: str
    bound: Grammar | None = None
    strict: bool = False
    custom: bool = False


SoundFormat = Literal["mp3", "opus", "aac", "flac"]
"""The format of a compressed audio file; Opus is in Ogg, AAC in ADTS."""


@dataclass(frozen=True, slots=True)
class Speaking:
    """Form of a spoken answer."""

    speaker: Audio | None = None
    """A recording of the speaker; ``None``: the daemon's own voice."""
    language: str = ""
    """An ISO 639-1 code that the daemon's voice speaks; empty: the voice's default."""
    sound_format: SoundFormat | None = None
    """Format of a compressed file; ``None``: little-endian float32 samples, mono, 24 kHz."""


@dataclass(frozen=True, slots=True)
class SoundLimit:
    """The most tokens of an answer that says what is said in the prompt's sounds."""

    least: int
    each_second: int

    def tokens(self, sound_s: float) -> int:
        return self.least + math.ceil(self.each_second * sound_s)


@dataclass(frozen=True, slots=True)
class Generate:
    """A request for text. Where no other meaning is given, ``None`` means the server's default."""

    id: str
    prompt: Prompt
    max_tokens: int | None = None
    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[str, ...] = ()
    logprobs: int | None = None
    """The number of alternatives to report with each token's log-probability; ``None``: no log-probabilities."""
    prompt_logprobs: int | None = None
    """The number of alternatives for each token of the prompt, as ``logprobs``; all these tokens are computed for this
    request."""
    tools: tuple[Tool, ...] = ()
    must_call: bool = False
    """Whether the answer must be a tool call; otherwise the model chooses."""
    parallel_calls: bool = True
    """Whether an answer may have several tool calls."""
    recorded: bytes | None = None
    """The client's payload, if the operator records conversations."""
    cache_prompt: bool = True
    """Whether it may reuse a cached prefix of another request, and leave its own in the cache."""
    enable_thinking: bool | None = None
    """Value for chat templates with a variable of this name; ``None``: true for models that think."""
    chat_template_kwargs: Mapping[str, object] = field(default_factory=dict)
    """Values for other variables of the chat template, by name, as parsed from JSON."""
    splits_thoughts: bool = False
    """Whether its tokens tell thoughts and answer apart."""
    thought_budget: int | None = None
    """After how many tokens thoughts are closed by force; ``None``: the server's limit, if it has one."""
    stops_in_thoughts: bool = False
    """Whether ``stop`` applies to thoughts too."""
    continue_final_message: bool | None = None
    """Whether the answer continues the last turn; ``None``: if that is the assistant's."""
    add_generation_prompt: bool = True
    """Whether the chat template opens a turn of the assistant, unless one is continued."""
    sound_limit: SoundLimit | None = None
    """A limit besides ``max_tokens``, by the length of the prompt's sounds; none for a model that can't leave out its
    thoughts."""
    spoken: Speaking | None = None
    """How to speak the answer; ``None``: text only."""
    lora: tuple[tuple[str, float], ...] | None = None
    """Adapters by name, each with its scale; ``None``: all of the server's, with scale 1."""
    wants_progress: bool = False
    """Whether to report how much of the prompt is computed, after each part of it."""
    wants_prompt: bool = False
    """Whether to report the prompt as the model gets it."""
    context: tuple[int, ...] = ()
    """Tokens that come before those of the prompt, which are turns of text: an earlier conversation's."""
    wants_tokens: bool = False
    """Whether to report the tokens of prompt and answer at the end. Not for prompts with media, which are no tokens."""
    priority: Priority = Priority.INTERACTIVE
    target_ttft_s: float | None = None
    target_tbt_s: float | None = None
    model: str = ""
    """The name that the client calls the model by; empty: the default one."""

    @property
    def continues_text(self) -> bool:
        """Whether the answer goes on with text that the last turn begins."""
        if not isinstance(self.prompt, tuple) or self.continue_final_message is False:
            return False
        last = self.prompt[-1]
        return last.role == "assistant" and bool(last.content) and not last.tool_calls

    @property
    def shares_prefixes(self) -> bool:
        """Whether it may reuse a cached prefix of another request, and leave its own in the cache. Of tokens in the
        cache no log-probabilities are known."""
        return self.cache_prompt and self.prompt_logprobs is None

    @property
    def has_media(self) -> bool:
        """Whether it has images, sounds or videos to decode."""
        return isinstance(self.prompt, tuple) and any(turn.attachments for turn in self.prompt)

    def with_small_media(self) -> Generate:
        """Copy without media that would take megabytes until its end; others are views into the whole message no
        more."""
        if not isinstance(self.prompt, tuple) or not self.has_media:
            return self
        small = sum(len(one.media.data) for turn in self.prompt for one in turn.attachments) <= MAX_MEDIA_KEPT
        turns = (replace(t, attachments=tuple(map(_alone, t.attachments)) if small else ()) for t in self.prompt)
        return replace(self, prompt=tuple(turns))


def _alone(one: Attachment) -> Attachment:
    data = one.media.data
    return one if isinstance(data, str) else replace(one, media=replace(one.media, data=memoryview(bytes(data))))
