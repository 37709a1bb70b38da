"""The clients' accounts: what each key may do, by its terms, and what it has used."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from umaserve.access.key_entries import Key
from umaserve.access.keys import KeyFile
from umaserve.core.errors import Fault, RequestError, model_not_granted
from umaserve.core.requests import Priority
from umaserve.sessions.rates import RateLimits, Rates
from umaserve.wire.relay_messages import TokenCounts

SPEND_AT_ONCE = 64
"""Tokens of a stream after which they are counted, so that an endless one is not free."""
TAIL = 4096
"""Characters of a reply's end in which its usage is looked for."""
_PROMPT = re.compile(r'"(?:prompt_tokens|input_tokens|prompt_eval_count|tokens_evaluated)"\s*:\s*(\d{1,12})')
_GENERATED = re.compile(r'"(?:completion_tokens|output_tokens|eval_count|tokens_predicted)"\s*:\s*(\d{1,12})')
"""Patterns of the token counts in a reply, as OpenAI's, Anthropic's, Ollama's and llama-server's clients read them. In
a text the quotes would be escaped."""
_DELTAS = tuple(
    f'{{"type":"response.{kind}.delta"'
    for kind in ("output_text", "output_audio_transcript", "function_call_arguments")
)
_ENDS = ('{"type":"response.done"', '{"type":"conversation.item.input_audio_transcription.completed"')
"""How the events of a realtime session begin that have text of the model's, and those that tell its usage."""


@dataclass(slots=True)
class Used:
    """Usage of one key since the relay's start."""

    requests_total: int = 0
    refused_total: int = 0
    """Requests refused for its rates."""
    prompt_tokens_total: int = 0
    generated_tokens_total: int = 0


class Accounts:
    """Accounts of all keys, by name."""

    def __init__(self, keys: KeyFile, clock: Callable[[], float]) -> None:
        self.used: dict[str, Used] = {}
        self.changes = 0
        """Number of changes of ``used``."""
        self._keys = keys
        self._clock = clock
        self._rates = Rates(0, 0)

    def admit(self, name: str) -> None:
        """Count a request, or raise ``RequestError`` where the key's rate is used up, or it was revoked."""
        limits = self._valid(name).limits
        used = self.used.setdefault(name, Used())
        self.changes += 1
        try:
            self._rates.admit(name, self._clock(), limits)
        except RequestError:
            used.refused_total += 1
            raise
        used.requests_total += 1

    def in_background(self, name: str) -> bool:
        return self._valid(name).priority is Priority.BACKGROUND

    def check_model(self, name: str, model: str | None) -> None:
        """Raise ``RequestError`` unless the key may use ``model``."""
        allowed = self._valid(name).models
        if allowed and model not in allowed:
            raise model_not_granted(model or "none")

    def granted(self, name: str) -> Sequence[str]:
        """The models that the key may use; empty: all."""
        return self._valid(name).models

    def visible(self, name: str, models: Iterable[str]) -> list[str]:
        """Select the ``models`` that the key may use."""
        allowed = self._valid(name).models
        return [model for model in models if not allowed or model in allowed]

    def tally(self, name: str) -> Tally:
        """Make the tally of a request of this key."""
        return Tally(lambda prompt, generated: self._spend(name, prompt, generated))

    def session_tally(self, name: str) -> SessionTally:
        """Make the tally of a session of the Realtime API."""
        return SessionTally(lambda prompt, generated: self._spend(name, prompt, generated))

    def _spend(self, name: str, prompt: int, generated: int) -> None:
        used = self.used.setdefault(name, Used())
        self.changes += 1
        used.prompt_tokens_total += prompt
        used.generated_tokens_total += generated
        self._rates.spend(name, generated, self._clock(), self._limits(name))

    def _valid(self, name: str) -> Key:
        """The key of this name. Raises ``RequestError`` where it was revoked since its connection was made."""
        key = self._keys.named(name)
        if key is None:
            raise RequestError(Fault.UNAUTHORIZED, "key", "expected one that is valid, and this one was revoked")
        return key

    def _limits(self, name: str) -> RateLimits | None:
        """Limits of the key; ``None`` where it was revoked: what it runs goes on."""
        key = self._keys.named(name)
        return None if key is None else key.limits

    def charge(self, used: Mapping[str, tuple[int, int]], age_s: float) -> None:
        """Take from the keys' rates what they have used at another relay, so many seconds ago: requests and tokens, by
        name."""
        then = self._clock() - age_s
        for name, (requests, tokens) in used.items():
            self._rates.spend(name, tokens, then, self._limits(name), requests=requests)

    def shown(self, name: str) -> Mapping[str, int]:
        """Usage of a key, by the names of ``Used``."""
        return asdict(self.used.get(name, Used()))


class Tally:
    """Counts the tokens of one reply: as its worker reports them, else as its own end does, else a token for each event
    of its stream."""

    def __init__(self, spend: Callable[[int, int], None]) -> None:
        self._spend = spend
        self._events = self._spent = 0
        self._tail = ""
        self._reported: TokenCounts | None = None

    def chunk(self, chunk: str | bytes) -> None:
        if isinstance(chunk, bytes):
            return
        # Of Ollama's streams each line is one; a WebSocket's message has no line.
        self._events += chunk.count("\n\n") or chunk.count("\n") or 1
        self._tail = (self._tail + chunk)[-TAIL:]
        if self._events - self._spent >= SPEND_AT_ONCE:
            self._spend(0, self._events - self._spent)
            self._spent = self._events

    def end(self, body: str | bytes | None, counts: TokenCounts | None) -> None:
        """Take the end of the reply, which is whole; ``body``: of one that was not streamed."""
        self._reported = counts
        if isinstance(body, str) and body:
            self._tail, self._events = body[-TAIL:], 0

    def close(self) -> None:
        """Count what is left: the request is over, in whatever way."""
        counts = self._reported or TokenCounts()
        prompt = _last(_PROMPT, self._tail) if counts.prompt_tokens is None else counts.prompt_tokens
        generated = _last(_GENERATED, self._tail) if counts.completion_tokens is None else counts.completion_tokens
        if generated is None:
            generated = self._events
        self._spend(prompt or 0, max(0, generated - self._spent))


class SessionTally(Tally):
    """Counts the tokens of a session's answers and transcripts: as their ends say; and of answers without an end a
    token for each event of text."""

    def chunk(self, chunk: str | bytes) -> None:
        if not isinstance(chunk, str):
            return
        if chunk.startswith(_DELTAS):
            self._events += 1
        elif chunk.startswith(_ENDS):
            generated = _last(_GENERATED, chunk) or 0
            self._spend(_last(_PROMPT, chunk) or 0, generated)
            self._events = max(0, self._events - generated)


def _last(pattern: re.Pattern[str], text: str) -> int | None:
    found = pattern.findall(text)
    return int(found[-1]) if found else None
