"""llama-server's timings of an answer and progress of its prompt, which several dialects have."""

from __future__ import annotations

from dataclasses import dataclass, field

from umaserve.core.events import Prefilled, Prefilling, Timing, Token, Usage


def timings(usage: Usage, timing: Timing) -> dict[str, float]:
    """Timings in milliseconds and tokens per second; ``prompt_n`` prompt tokens were computed, ``cache_n`` were cached.
    ``timing.total_s`` ends with the answer, or with its latest token."""
    cache_n, predicted_n = usage.prefix_reused_tokens, usage.completion_tokens
    prompt_n = usage.prompt_tokens - cache_n
    # Without a first token, all the time was spent on the prompt.
    first_token_s = timing.first_token_s if predicted_n else timing.total_s
    prompt_s = max(0.0, first_token_s - timing.started_s)
    # From the first token to the last: a single token has no duration and no rate.
    predicted_s = max(0.0, timing.total_s - first_token_s)
    intervals = max(0, predicted_n - 1)
    return {
        "cache_n": cache_n,
        "prompt_n": prompt_n,
        "prompt_ms": prompt_s * 1000,
        "prompt_per_token_ms": prompt_s * 1000 / prompt_n if prompt_n else 0.0,
        "prompt_per_second": prompt_n / prompt_s if prompt_s else 0.0,
        "predicted_n": predicted_n,
        "predicted_ms": predicted_s * 1000,
        "predicted_per_token_ms": predicted_s * 1000 / intervals if intervals else 0.0,
        "predicted_per_second": intervals / predicted_s if intervals and predicted_s else 0.0,
    }


def timings_at(at: Prefilling) -> dict[str, float]:
    """Timings of an answer whose prompt is being computed."""
    return timings(Usage(at.done_tokens, 0, at.reused_tokens), Timing(total_s=at.elapsed_s))


@dataclass(slots=True)
class RunningTimings:
    """The timings of an answer that goes on."""

    prefilled: Prefilled = field(default_factory=lambda: Prefilled(0))
    n_tokens: int = 0
    first_token_s: float = 0.0

    def take(self, token: Token) -> None:
        if token.sampled:
            self.first_token_s = self.first_token_s if self.n_tokens else token.elapsed_s
            self.n_tokens += 1

    def at(self, now_s: float) -> dict[str, float]:
        """Timings of the answer so far; ``now_s``: seconds since the request."""
        usage = Usage(self.prefilled.input_tokens, self.n_tokens, self.prefilled.reused_tokens)
        return timings(usage, Timing(self.prefilled.started_s, self.first_token_s, now_s))


def progress(at: Prefilling) -> dict[str, int]:
    """Progress of the prompt, in tokens, and the time that it took, in milliseconds."""
    return {
        "total": at.input_tokens,
        "cache": at.reused_tokens,
        "processed": at.done_tokens,
        "time_ms": round(at.elapsed_s * 1000),
    }
