"""How soon does a long prompt's answer begin after a restart, with what was computed before on disk, and without?"""

from __future__ import annotations

import tempfile
import time

from bench.processes import daemon
from umaserve.client import Client

WORDS = 515
"""Numbers: some 2,000 tokens."""
_PROMPT = " ".join(str(7 * number % 1000) for number in range(WORDS))


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="bench-kept-") as folder:
        computing, tokens, _ = _first_token(folder)
        reading, _, reused = _first_token(folder)
    print(f"{tokens} tokens: computed {computing * 1000:.0f} ms, read {reading * 1000:.0f} ms ({reused} reused)")
    print(f"{computing / reading:.1f} times as fast")


def _first_token(folder: str) -> tuple[float, int, int]:
    """Seconds to the first token of a new daemon, the prompt's tokens, and those reused."""
    with daemon("umaserve", UMA_KV_CACHE=folder, UMA_WEIGHTS="as-is") as at:
        # Warmed up, and all that is on disk is listed.
        with Client(at.socket).generate("Hi", max_tokens=8) as stream:
            list(stream)
        began = time.perf_counter()
        with Client(at.socket).generate(_PROMPT, max_tokens=2) as stream:
            next(iter(stream))
            seconds = time.perf_counter() - began
            list(stream)
            end = stream.end
        assert end is not None
        usage = end["usage"]
        return seconds, usage["prompt_tokens"], usage["prefix_reused_tokens"]


if __name__ == "__main__":
    main()
