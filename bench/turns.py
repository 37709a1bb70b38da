"""``python -m bench.turns``: the later turns of conversations at a relay, by their prefix and by the lowest load."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson

from bench.processes import free_address, running
from bench.report import load_average, machine, number, progress, table

POLICIES = ("prefix", "load")
SECRET = "measured"
WORDS = ("river", "stone", "lantern", "orchard", "winter", "harbour", "copper", "meadow", "violin", "thunder", "paper")
_NOTES = """\
{conversations} conversations of {turns} turns at a relay with {workers} workers: real daemons with the default model,
one compute thread each, on this machine, with KV cells for {cells} tokens, and {host_cache} MiB of memory for what was
computed: somewhat more than its share of the conversations. A conversation begins with {words} words of its own; each
turn has {more} more, and an answer of {answer} tokens; between turns {think:g} s on average. Both sides have the same
conversations, and daemons of their own. Time to first token of the turns from the second on, in ms.
"""


@dataclass(frozen=True, slots=True)
class Turn:
    number: int
    ttft_s: float


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    before = load_average()
    found: dict[str, list[Turn]] = {policy: [] for policy in POLICIES}
    for round_ in range(options.rounds):
        for policy in POLICIES if round_ % 2 == 0 else reversed(POLICIES):
            progress(f"round {round_ + 1} of {options.rounds}: by {policy}")
            found[policy] += measure(policy, options)
    print(report(found))
    print(_NOTES.format(**vars(options)))
    print(f"{machine()}. Load average before: {before}; after: {load_average()}.")
    return 0


def report(found: dict[str, list[Turn]]) -> str:
    """A table, with how many times better the first of ``POLICIES`` is in each column."""
    rows, values = [], {}
    for policy in POLICIES:
        times = sorted(1000 * turn.ttft_s for turn in found[policy] if turn.number > 1)
        *_, p95 = statistics.quantiles(times, n=20)
        values[policy] = (statistics.mean(times), statistics.median(times), p95)
        rows.append([policy, str(len(times)), *map(number, values[policy])])
    ratios = [load / prefix for prefix, load in zip(*(values[policy] for policy in POLICIES), strict=True)]
    rows.append(["times better", "", *(f"{ratio:.1f}" for ratio in ratios)])
    return table(["by", "turns", "TTFT mean", "p50", "p95"], rows)


def measure(policy: str, options: argparse.Namespace) -> list[Turn]:
    """All turns of all conversations, with a relay and daemons of their own."""
    with _relay(policy) as relay, contextlib.ExitStack() as workers:
        for number_ in range(options.workers):
            workers.enter_context(_daemon(relay, number_, options.cells, options.host_cache))
        while _workers(relay) < options.workers:
            time.sleep(0.1)
        return asyncio.run(_converse(relay, options))


async def _converse(relay: str, options: argparse.Namespace) -> list[Turn]:
    each = (_conversation(relay, number_, options) for number_ in range(options.conversations))
    return [turn for turns in await asyncio.gather(*each) for turn in turns]


async def _conversation(relay: str, seed: int, options: argparse.Namespace) -> list[Turn]:
    dice, turns = random.Random(seed), []
    messages = [{"role": "system", "content": _words(dice, options.words)}]
    for turn in range(1, options.turns + 1):
        await asyncio.sleep(options.think * dice.uniform(0.5, 1.5))
        messages.append({"role": "user", "content": _words(dice, options.more)})
        ttft_s, answer = await _ask(relay, messages, options.answer)
        messages.append({"role": "assistant", "content": answer})
        turns.append(Turn(turn, ttft_s))
    return turns


def _words(dice: random.Random, count: int) -> str:
    return " ".join(dice.choice(WORDS) for _ in range(count))


async def _ask(relay: str, messages: list[dict[str, str]], tokens: int) -> tuple[float, str]:
    """The time to the first token, and the answer. Raises ``RuntimeError`` for any other answer."""
    body = orjson.dumps(
        {"model": "default", "messages": messages, "max_tokens": tokens, "stream": True, "ignore_eos": True}
    )
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    started = time.perf_counter()
    reader, writer = await asyncio.open_connection(*relay.split(":"))
    writer.write(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
    ttft_s, said = 0.0, []
    status = await reader.readline()
    if status.split()[1] != b"200":
        raise RuntimeError(f"the relay answered: {(status + await reader.read())[:500]!r}")
    while line := await reader.readline():
        if not line.startswith(b"data: {"):
            continue
        choices = orjson.loads(line.removeprefix(b"data: "))["choices"]
        text = choices[0]["delta"].get("content") if choices else None
        if text:
            ttft_s = ttft_s or time.perf_counter() - started
            said.append(text)
    writer.close()
    if not said:
        raise RuntimeError("a stream ended without a token")
    return ttft_s, "".join(said)


@contextlib.contextmanager
def _relay(policy: str) -> Iterator[str]:
    address = free_address()
    command = [sys.executable, "-m", "umaserve", "relay", "--listen", address, "--log-level", "error"]
    command += ["--worker-secret", SECRET, "--route-by", policy, "--queue-timeout", "600", "--max-queue-len", "1000"]
    with running(command, lambda: _workers(address) == 0):
        yield address


@contextlib.contextmanager
def _daemon(relay: str, number_: int, cells: int, host_cache: int) -> Iterator[None]:
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        socket = Path(folder, "uma.sock")
        command = [sys.executable, "-m", "umaserve", "--socket", str(socket), "--relay", f"http://{relay}"]
        command += ["--worker-secret", SECRET, "--worker-name", f"box-{number_}"]
        settings = {"UMA_HTTP": "", "UMA_THREADS": "1", "UMA_N_CTX": str(cells), "GOMP_SPINCOUNT": "0"}
        settings["UMA_HOST_CACHE_BYTES"] = str(host_cache << 20)
        with running(command, socket.exists, **settings):
            yield


def _workers(relay: str) -> int:
    with urllib.request.urlopen(f"http://{relay}/health") as response:
        return int(orjson.loads(response.read())["workers"])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m bench.turns", description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("--conversations", type=int, default=32)
    add("--workers", type=int, default=4)
    add("--turns", type=int, default=6)
    add("--words", type=int, default=600, help="that a conversation begins with")
    add("--more", type=int, default=60, help="words of each turn")
    add("--answer", type=int, default=16, help="tokens")
    add("--cells", type=int, default=16384, help="KV cells of each worker")
    add("--host-cache", type=int, default=384, metavar="MIB", help="of each worker")
    add("--think", type=float, default=30.0, metavar="S", help="mean time between turns")
    add("--rounds", type=int, default=1)
    return parser


if __name__ == "__main__":
    sys.exit(main())
