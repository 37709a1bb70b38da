"""A session: one request, from its arrival to its end, and all that is known of it."""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from umaserve.core.errors import RequestError
from umaserve.core.events import Output, Timing, Usage
from umaserve.core.requests import Generate
from umaserve.sessions.answer_text import AnswerText
from umaserve.sessions.cache_miss import Difference
from umaserve.sessions.caller import Caller
from umaserve.sessions.engine_api import Prepared
from umaserve.sessions.resumed import Resumed
from umaserve.sessions.speculation import OF_DRAFT_MODEL, Acceptance, Repetition
from umaserve.sessions.states import RUNNING, State

if TYPE_CHECKING:
    from umaserve.sessions.manager import SessionManager

NEVER = -1
"""``Session.looked_at`` before the first lookup: less than every ``Slots.version``."""

Sink = Callable[[Output | RequestError], None]


class Hold(enum.Enum):
    """Why a stream gets no tokens for now."""

    READER = "reader"
    PAUSE = "pause"
    DETACHED = "detached"


@dataclass(slots=True, eq=False)
class Session:
    """One request. Times are in seconds of the loop's clock."""

    id: int
    manager: SessionManager
    """The one that runs it: that of its model."""
    request: Generate
    sink: Sink
    """Gets its outputs, and a ``RequestError`` if it fails."""
    caller: Caller
    model: str = ""
    """The name of the model that answers it; empty where it was refused, since there is none."""
    requested_at: float = 0.0
    state: State = State.PREFILL
    prepared: Prepared | None = None
    before: Prepared | None = None
    """Prepared request of an engine that was lost."""
    begun: Resumed | None = None
    """Progress of the request in another process."""
    text: AnswerText | None = None
    slot: int | None = None
    cells: int = 0
    """KV cells promised to it while it has a slot."""
    computed: int = 0
    """Tokens of this sequence in the KV cache."""
    scored: int = 1
    """Tokens of its prompt whose log-probabilities it has, if they are wanted; the first one has none, and counts."""
    reused: int = 0
    """Prompt tokens that it found in the cache when it started."""
    difference: Difference | None = None
    """Where its prompt leaves a known sequence that is nearly the same, so that no more of that was reused."""
    reusable: int = 0
    """Length of the cached prefix that the last lookup found."""
    follows: int | None = None
    """Id of the session that, at the last lookup, was computing a longer prefix of this prompt."""
    awaits: int | None = None
    """The sequence on disk that it waits for, or has waited for: it does so once."""
    looked_at: int = NEVER
    """``Slots.version`` at the last lookup."""
    repetition: Repetition | None = None
    """Makes draft tokens from its text; ``None``: it has no draft tokens at all."""
    draft_tokens: Sequence[int] = ()
    """Draft tokens made from repetition, for the next tick."""
    drafting: Acceptance = field(default_factory=lambda: Acceptance(OF_DRAFT_MODEL))
    """Acceptance of the draft model's draft tokens."""
    generated: list[int] = field(default_factory=list)
    holds: set[Hold] = field(default_factory=set)
    held_at: float = 0.0
    held_s: float = 0.0
    """Total time of its past holds."""
    outbox: deque[Output | RequestError] = field(default_factory=deque)
    announced: bool = False
    """Whether its client was told that it is served."""
    waits_since: float = 0.0
    """Since when it waits in the queue: when it arrived, was released or preempted, or when the latest step of
    preparing or encoding its prompt ended."""
    crashes: int = 0
    """Engines that may have been lost because of it, since it last got past such a place."""
    kills: int = 0
    """Engines that another program killed while they computed it, since it last got past such a place."""
    innocent_at: int = 0
    """Number of its tokens from which on it is past the place where the latest engine was lost."""
    preparing_at: float | None = None
    """When it was first begun to be prepared."""
    prepared_at: float | None = None
    """When it was first prepared."""
    started_at: float | None = None
    first_made_at: float | None = None
    last_made_at: float | None = None
    """When its latest token was computed."""
    last_token_at: float | None = None
    """When its latest token was delivered."""
    last_gap_s: float | None = None
    """The time between its two latest tokens, as delivered."""

    @property
    def length(self) -> int:
        """Tokens that have to be computed before the next one can be sampled."""
        assert self.prepared is not None
        return len(self.prepared.tokens) + len(self.generated)

    @property
    def to_score(self) -> int:
        """Tokens of its prompt whose log-probabilities are wanted, and not known yet."""
        if self.prepared is None or self.request.prompt_logprobs is None:
            return 0
        return len(self.prepared.tokens) - self.scored

    @property
    def is_late(self) -> bool:
        """Whether a slow grammar is still at its next token."""
        return self.state is State.DECODE and self.computed == self.length

    @property
    def running(self) -> bool:
        return self.state in RUNNING

    @property
    def ended(self) -> bool:
        return self.state in (State.DONE, State.ERRORED)

    @property
    def tokens(self) -> Sequence[int]:
        """Tokens of its prompt, once that is prepared, and of its answer so far."""
        prepared = self.prepared or self.before
        return (*(() if prepared is None else prepared.tokens), *self.generated)

    @property
    def usage(self) -> Usage:
        prepared = self.prepared or self.before
        prompt = 0 if prepared is None else len(prepared.tokens)
        thoughts = 0 if self.text is None else self.text.thought_tokens
        sound_s = 0.0 if prepared is None else prepared.sound_s
        return Usage(prompt, len(self.generated), self.reused, thoughts, sound_s)

    def timing(self, now: float) -> Timing:
        started = now if self.started_at is None else self.started_at
        first = now if self.first_made_at is None else self.first_made_at
        return Timing(started - self.requested_at, first - self.requested_at, now - self.requested_at)
