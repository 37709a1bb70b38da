"""``python -m bench.watched``: what ten pages that watch the box cost another client, while two people chat."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from http.client import HTTPConnection

import orjson

from bench.processes import daemon
from bench.report import load_average, machine, number, progress, ratio, table

CHATS = 2
GOAL = 1.05
_NOTES = """\
One client's stream of {tokens} tokens, beside {chats} chats that stream all the time, without anybody at /api/box and
with {watchers} who read its events. Both sides have daemons of their own, in turns, {rounds} of each; gaps between
tokens in ms. The goal: p95 grows by at most 5%.
"""


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    before = load_average()
    pairs: list[tuple[float, float]] = []
    for round_ in range(options.rounds):
        found: dict[int, float] = {}
        for watchers in (0, options.watchers) if round_ % 2 == 0 else (options.watchers, 0):
            progress(f"round {round_ + 1} of {options.rounds}: {watchers} watchers")
            found[watchers] = measure(watchers, options.tokens)
        pairs.append((found[0], found[options.watchers]))
    print(report(pairs, options.watchers))
    print(_NOTES.format(chats=CHATS, **vars(options)))
    print(f"{machine()}. Load average before: {before}; after: {load_average()}.")
    return 0


def report(pairs: Sequence[tuple[float, float]], watchers: int) -> str:
    """A table of ``pairs``, each the p95 without and with watchers in seconds, and the verdict by their median."""
    rows = [[str(i), number(1000 * alone), number(1000 * seen)] for i, (alone, seen) in enumerate(pairs, 1)]
    met = statistics.median(seen / alone for alone, seen in pairs) <= GOAL
    verdict = f"With watchers {ratio(pairs)} of the p95 without: the goal is {'met' if met else 'missed'}."
    return f"{table(['round', 'p95 alone', f'p95 with {watchers}'], rows)}\n{verdict}"


def measure(watchers: int, tokens: int) -> float:
    """The p95 of the gaps of a client's stream, in seconds."""
    over = threading.Event()
    with daemon("umaserve") as at:
        for _ in range(CHATS):
            threading.Thread(target=_chat, args=(at.http, over), daemon=True).start()
        for _ in range(watchers):
            threading.Thread(target=_watch, args=(at.http, over), daemon=True).start()
        # Both chats and all watchers are under way.
        next(_events(at.http, "/v1/completions", _request(1)))
        times = [time.perf_counter() for _ in _events(at.http, "/v1/completions", _request(tokens))]
        over.set()
    gaps = [after - before for before, after in itertools.pairwise(times)]
    return statistics.quantiles(gaps, n=20)[-1]


def _chat(http: str, over: threading.Event) -> None:
    while not over.is_set():
        for _ in _events(http, "/v1/completions", _request(4000)):
            if over.is_set():
                return


def _watch(http: str, over: threading.Event) -> None:
    for _ in _events(http, "/api/box"):
        if over.is_set():
            return


def _request(tokens: int) -> dict[str, object]:
    return {"prompt": "Once upon a time", "max_tokens": tokens, "ignore_eos": True, "stream": True}


def _events(http: str, path: str, body: dict[str, object] | None = None) -> Iterator[bytes]:
    """The data of each event; raises ``RuntimeError`` for any other answer."""
    connection = HTTPConnection(http)
    with contextlib.closing(connection):
        headers = {"Content-Type": "application/json"}
        connection.request("GET" if body is None else "POST", path, body and orjson.dumps(body), headers)
        response = connection.getresponse()
        if response.status != 200:
            raise RuntimeError(f"{path} answered: {response.status} {response.read(500)!r}")
        for line in response:
            if line.startswith(b"data: {"):
                yield line


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m bench.watched", description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=600, help="of the measured stream")
    parser.add_argument("--watchers", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5, help="of both sides")
    return parser


if __name__ == "__main__":
    sys.exit(main())
