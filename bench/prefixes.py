"""How soon do clients have their first token when their prompts begin as one that the server has answered?"""

from __future__ import annotations

from bench.processes import Served, trace_of
from bench.report import ratio, spread, table
from bench.scenarios import PREFIX_TOKENS
from bench.sides import OURS, THEIRS, Run, both, missing_note, rounds
from bench.trace import Measures, measures

WORDS = (150, 500)
CLIENTS = (8, 16)

_NOTES = f"""\
In ms. A prompt with the shared words, and another question, has been answered before. Then all clients ask at once,
each with the shared words and its own question of one short line, for {PREFIX_TOKENS} tokens. Both servers may reuse
what they have computed (llama-server: cache_prompt, its default). TTFT: from before the client connects. The median of
the runs, with the smallest and the largest in brackets; ratios: to llama-server's p50 in the same round. Each run is a
new process, warmed up; every other round is in reverse order.
"""


def report(repeats: int) -> str:
    """Run all rounds and tell what was found."""
    rows = []
    for words in WORDS:
        for clients in CLIENTS:
            rows += _rows(words, clients, repeats)
    header = ["shared words", "clients", "", "TTFT p50", "ratio", "TTFT max"]
    return f"## A shared prefix, runs: {repeats}\n\n{table(header, rows)}\n{_NOTES}{missing_note()}"


def sharing(words: int, clients: int) -> dict[str, Run[Measures] | None]:
    """Both sides, asked by so many clients at once who share so many words."""

    def measure(at: Served) -> Measures:
        return measures(trace_of("bench.scenarios", "prefixes", at.http, words, clients))

    return both(measure)


def _rows(words: int, clients: int, repeats: int) -> list[list[str]]:
    runs = rounds(f"prefixes, {words} words, {clients} clients", sharing(words, clients), repeats)
    p50 = {name: [run.ttft_p50 for run in of] for name, of in runs.items()}
    beside = ratio(list(zip(p50[THEIRS], p50[OURS], strict=True))) if THEIRS in p50 else ""
    return [
        [
            str(words),
            str(clients),
            name,
            spread(p50[name]),
            beside if name == OURS else "",
            spread([run.ttft_max for run in of]),
        ]
        for name, of in runs.items()
    ]
