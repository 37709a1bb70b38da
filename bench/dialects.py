"""What of the Unix socket's speed do WebSocket and server-sent events keep, and how does llama-server compare?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from bench import llama_server
from bench.conversations import CONVERSATIONS, SSE, UNIX_SOCKET
from bench.processes import trace_of, trace_over
from bench.report import LATENCIES, latencies, number, progress, ratio, table
from bench.trace import Measures, measures, medians

Round = dict[str, Measures]
"""One run of each way, one right after the other."""

_LLAMA_SERVER = f"llama-server, {SSE}"

_NOTES = """\
Tokens/s, steady: of all streams, from the last stream's first token until the first stream ends (a dash: the first
stream had ended by then; use more --tokens). Tokens/s, whole: from the first request to the last token, prompts
included. Ratios: to the Unix socket in the same round, the median of the rounds, with the smallest and the largest in
brackets. All other numbers are medians of the runs. Each run is a new process, warmed up; the runs of a round follow
each other, in reverse order in every other round. All have the same prompts and decode greedily. WebSocket is
/generate with its default options, so every message repeats the text so far; SSE is /v1/completions. Both use TCP.
"""

_LATENCY_NOTES = """\
In ms. TTFT: from before the client connects. Gaps: between two tokens of one stream, over its whole life.
"""


def report(clients: Sequence[int], tokens: int, repeats: int) -> str:
    """Run all rounds and tell what was found."""
    rounds: dict[int, list[Round]] = {n: [] for n in clients}
    ways = _ways()
    for repeat in range(repeats):
        for n in clients:
            progress(f"dialects, round {repeat + 1} of {repeats}, {n} clients")
            order = list(ways) if repeat % 2 == 0 else list(reversed(ways))
            rounds[n].append({way: ways[way](n, tokens) for way in order})
    compared = "" if _LLAMA_SERVER in ways else f"llama-server: not measured, {llama_server.VARIABLE} is not set.\n"
    return f"""\
## Dialects: {tokens} tokens for each client, rounds: {repeats}

{_speed_table(rounds, list(ways))}
{_NOTES}{compared}
{_latency_table(rounds, list(ways))}
{_LATENCY_NOTES}"""


def _ways() -> dict[str, Callable[[int, int], Measures]]:
    """How to run each, by its name: from the numbers of clients, and of tokens for each."""
    ways: dict[str, Callable[[int, int], Measures]] = {way: partial(_run, way) for way in CONVERSATIONS}
    binary = llama_server.binary()
    if binary is not None:
        ways[_LLAMA_SERVER] = partial(_run_llama_server, binary)
    return ways


def _run(dialect: str, clients: int, tokens: int) -> Measures:
    return measures(trace_over(dialect, "umaserve", clients, tokens))


def _run_llama_server(binary: str, clients: int, tokens: int) -> Measures:
    with llama_server.llama_server(binary) as at:
        return measures(trace_of("bench.load", SSE, at.http, clients, tokens))


def _speed_table(rounds: dict[int, list[Round]], ways: Sequence[str]) -> str:
    rows = []
    for clients, runs in rounds.items():
        for way in ways:
            pairs = [(run[UNIX_SOCKET], run[way]) for run in runs]
            found = medians([after for _, after in pairs])
            steady = ratio([(before.steady_rate, after.steady_rate) for before, after in pairs])
            whole = ratio([(before.whole_rate, after.whole_rate) for before, after in pairs])
            if way == UNIX_SOCKET:
                steady = whole = ""
            rows.append([str(clients), way, number(found.steady_rate), steady, number(found.whole_rate), whole])
    return table(["clients", "", "steady, tokens/s", "ratio", "whole, tokens/s", "ratio"], rows)


def _latency_table(rounds: dict[int, list[Round]], ways: Sequence[str]) -> str:
    rows = []
    for clients, runs in rounds.items():
        for way in ways:
            found = medians([run[way] for run in runs])
            rows.append([str(clients), way, *latencies(found), f"{found.observer_cores:.2f}"])
    return table(["clients", "", *LATENCIES, "cores of the generator"], rows)
