"""``python -m bench.repeating``: what do drafts from a tenant's earlier answers gain where it gets one again, and cost
where it does not?"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from bench.conversations import ServerSentEvents
from bench.processes import daemon
from bench.report import load_average, machine, progress, ratio, spread, table
from bench.scenarios import SSE, ask_all, warm_up
from bench.trace import measures
from bench.workload import prompts
from umaserve.client import run

TOKENS = 100
NEW, AGAIN = "another answer", "the same answer again"
_NOTES = f"""\
Greedy completions of {TOKENS} tokens, whose short prompts do not hold the answer, one after another at one daemon.
Tokens/s: after the first token, with drafts from earlier answers. Ratios: to the same request with `cache_prompt`
false, which drafts from its own text only. The median of the prompts, with the smallest and the largest in brackets.
"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.repeating", description=__doc__)
    parser.add_argument("--prompts", type=int, default=4, help="how many (default: %(default)s)")
    options = parser.parse_args(argv)
    before = load_average()
    with daemon("umaserve") as at:
        found = run(measure(at.http, options.prompts))
    rows = [[name, spread([rate for _, rate in pairs]), ratio(pairs)] for name, pairs in found.items()]
    print(f"## Repeating\n\n{table(['', 'tokens/s', 'ratio'], rows)}\n{_NOTES}")
    print(f"{machine()}. Load average before: {before}; after: {load_average()}.")
    return 0


async def measure(address: str, n_prompts: int) -> dict[str, list[tuple[float, float]]]:
    """By what is answered: for each prompt tokens a second without drafts from earlier answers, and with them."""

    async def rate(text: str, *, reuse: bool) -> float:
        return measures(await ask_all(address, [ServerSentEvents(text, TOKENS, reuse=reuse)])).steady_rate

    await warm_up(SSE, address, 1)
    # The first one is warmed up with, too.
    first, *texts = prompts(n_prompts + 1)
    await rate(first, reuse=True)
    found: dict[str, list[tuple[float, float]]] = {NEW: [], AGAIN: []}
    for text in texts:
        progress(text[:40])
        for pairs in found.values():
            pairs.append((await rate(text, reuse=False), await rate(text, reuse=True)))
    return found


if __name__ == "__main__":
    sys.exit(main())
