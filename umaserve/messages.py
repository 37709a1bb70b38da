"""What dialects and sessions say to each other. A new dialect adds nothing here that a session must know."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field


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
    seed: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    grammar: str | None = None
    """GBNF text."""
    json_schema: str | None = None
    """A JSON schema as JSON text; excludes ``grammar``."""
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True)
class ChatTurn:
    """One message of a conversation, as the model's chat template takes it."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Generate:
    """A request for text. Fields left ``None`` take the server's defaults."""

    id: str
    prompt: str | tuple[ChatTurn, ...]
    """A raw prompt, or turns for the chat template."""
    max_tokens: int | None = None
    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[str, ...] = ()
    priority: Priority = Priority.INTERACTIVE
    target_ttft_s: float | None = None
    target_tbt_s: float | None = None


@dataclass(frozen=True, slots=True)
class Cancel:
    """End the running request of this id at the next token boundary."""

    id: str


@dataclass(frozen=True, slots=True)
class GetMetrics:
    """Ask for one snapshot."""


Command = Generate | Cancel | GetMetrics


class FinishReason(enum.Enum):
    """Why a stream ended without an error."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Usage:
    """True token counts of one request."""

    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class Token:
    """One generated token. ``text`` is empty while a character or a possible stop string is incomplete."""

    text: str
    token_id: int


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of a stream; every token came before it."""

    reason: FinishReason
    usage: Usage


@dataclass(frozen=True, slots=True)
class Metrics:
    """A snapshot: flat names to numbers and strings."""

    values: Mapping[str, int | float | str]


Output = Token | Finished | Metrics
