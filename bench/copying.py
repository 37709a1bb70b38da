"""What does speculation gain where the answer is mostly a copy of the prompt?"""

from __future__ import annotations

from bench.processes import Served, trace_of
from bench.report import ratio, spread, table
from bench.scenarios import COPIED_TOKENS
from bench.sides import OURS, THEIRS, missing_note, ours, rounds, theirs
from bench.trace import measures

_PLAIN = {"UMA_SPECULATION": "false"}
_WITHOUT = f"{OURS}, speculation off"

_NOTES = f"""\
One greedy completion of {COPIED_TOKENS} tokens, with a prompt that makes the model repeat a paragraph with one name
changed. Tokens/s: after the first token. Ratios: to the daemon without draft tokens (--no-speculation) in the same
round. The median of the runs, with the smallest and the largest in brackets. Each run is a new process, warmed up;
every other round is in reverse order.
"""


def report(repeats: int) -> str:
    """Run all rounds and tell what was found."""
    runs = {OURS: ours(_measure), _WITHOUT: ours(_measure, **_PLAIN), THEIRS: theirs(_measure)}
    rates = rounds("copying", runs, repeats)
    rows = []
    for name, of in rates.items():
        beside = "" if name == _WITHOUT else ratio(list(zip(rates[_WITHOUT], of, strict=True)))
        rows.append([name, spread(of), beside])
    return f"## Copying, runs: {repeats}\n\n{table(['', 'tokens/s', 'ratio'], rows)}\n{_NOTES}{missing_note()}"


def _measure(at: Served) -> float:
    return measures(trace_of("bench.scenarios", "copying", at.http)).steady_rate
