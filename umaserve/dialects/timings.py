"""llama-server's timings of an answer and progress of its prompt, which several dialects have."""

from __future__ import annotations

from umaserve.core.events import Prefilling, Timing, Usage


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


def progress(at: Prefilling) -> dict[str, int]:
    """Progress of the prompt, in tokens, and the time that it took, in milliseconds."""
    return {
        "total": at.input_tokens,
        "cache": at.reused_tokens,
        "processed": at.done_tokens,
        "time_ms": round(at.elapsed_s * 1000),
    }
