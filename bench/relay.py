"""What a relay costs: latency, requests and chunks a second, idle workers' memory, and whether anything is lost."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import socket
import statistics
import sys
import time
import urllib.request
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from bench.processes import free_address, running
from bench.relay_standins import MODEL, SECRET, Asking, Backend, Listening, Worker
from bench.report import number, progress, table

T = TypeVar("T", bound=asyncio.Protocol)

CLIENTS = 32


async def _connected(address: str, make: Callable[[], T]) -> T:
    host, port = address.rsplit(":", 1)
    _, protocol = await asyncio.get_running_loop().create_connection(make, host, int(port))
    return protocol


async def _worker(address: str, chunks: int = 0, max_concurrent: int = 4096) -> Worker:
    worker = await _connected(address, lambda: Worker(chunks, max_concurrent))
    await worker.registered
    return worker


async def _ask(address: str, clients: int, times: int) -> tuple[list[float], float, int]:
    """The times of all requests, the seconds in all, and how many were answered otherwise."""
    started = time.perf_counter()
    asking = [await _connected(address, lambda: Asking(times)) for _ in range(clients)]
    for one in asking:
        await one.done
    seconds = time.perf_counter() - started
    took = [second for one in asking for second in one.took]
    return took, seconds, clients * times - len(took) + sum(one.bad for one in asking)


async def _direct_and_relayed(relay: str, requests: int) -> list[list[str]]:
    """Rows of a backend, a relay whose worker is a stand-in, and another one with a real worker at that backend."""
    backend = free_address()
    host, port = backend.rsplit(":", 1)
    server = await asyncio.get_running_loop().create_server(Backend, host, int(port))
    await _worker(relay)
    rows = []
    with _relay() as (second, _pid), _real_worker(second, backend):
        while not await asyncio.to_thread(_has_worker, second):
            await asyncio.sleep(0.05)
        sides = {"direct": backend, "relay": relay, "relay and worker": second}
        for clients in (1, CLIENTS):
            for name, address in list(sides.items()) * 3:
                took, seconds, _bad = await _ask(address, clients, requests // clients)
                p95 = statistics.quantiles(took, n=20)[-1]
                p50 = statistics.median(took)
                rows.append([str(clients), name, number(p50 * 1e6), number(p95 * 1e6), number(len(took) / seconds)])
    server.close()
    return sorted(rows, key=lambda row: (int(row[0]), list(sides).index(row[1])))


def _real_worker(relay: str, backend: str) -> contextlib.AbstractContextManager[int]:
    command = [sys.executable, "-m", "umaserve", "worker", "--relay", f"http://{relay}", "--worker-secret", SECRET]
    command += ["--backend", f"http://{backend}", "--models", MODEL, "--max-concurrent", "256", "--log-level", "error"]
    return running(command, lambda: True)


def _has_worker(relay: str) -> bool:
    with urllib.request.urlopen(f"http://{relay}/health") as response:
        return b'"workers":1' in response.read()


async def _streams(relay: str, streams: int, chunks: int) -> tuple[int, float]:
    """Chunks that reached clients, and the seconds in which they did."""
    await _worker(relay, chunks)
    started = time.perf_counter()
    listening = [await _connected(relay, Listening) for _ in range(streams)]
    for one in listening:
        await one.done
    return sum(one.chunks for one in listening), time.perf_counter() - started


async def _idle_workers(relay: str, workers: int) -> None:
    for _ in range(workers):
        await _worker(relay)


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _rss_mib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


@contextlib.contextmanager
def _relay() -> Iterator[tuple[str, int]]:
    """A fresh relay's address and process."""
    address = free_address()
    host, port = address.rsplit(":", 1)
    command = [sys.executable, "-m", "umaserve", "relay", "--listen", address, "--log-level", "error"]
    command += ["--worker-secret", SECRET, "--max-connections", "16384"]

    def is_ready() -> bool:
        socket.create_connection((host, int(port))).close()
        return True

    with running(command, is_ready) as pid:
        yield address, pid


def _with_relay(measure: Callable[[str, int], Coroutine[Any, Any, Any]]) -> Any:
    """Run ``measure`` beside a fresh relay."""
    with _relay() as (address, pid):
        return uvloop.run(measure(address, pid))


def main() -> None:
    parser = argparse.ArgumentParser("python -m bench.relay", description=__doc__)
    parser.add_argument("--requests", type=int, default=3000, help="of each run, direct and relayed")
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--chunks", type=int, default=400, help="of each stream")
    parser.add_argument("--workers", type=int, default=1000, help="that are idle")
    parser.add_argument("--soak", type=int, default=100_000, help="requests, for losses and growth")
    options = parser.parse_args()

    async def latency(relay: str, _pid: int) -> list[list[str]]:
        return await _direct_and_relayed(relay, options.requests)

    async def streams(relay: str, pid: int) -> list[str]:
        before = _cpu_s(pid)
        chunks, seconds = await _streams(relay, options.streams, options.chunks)
        lost = options.streams * options.chunks - chunks
        cores = (_cpu_s(pid) - before) / seconds
        each_us = cores * seconds / chunks * 1e6
        return [str(options.streams), number(chunks / seconds), str(lost), number(cores), number(each_us)]

    async def idle(relay: str, pid: int) -> list[str]:
        before = _rss_mib(pid)
        await _idle_workers(relay, options.workers)
        return [str(options.workers), number(before), number(_rss_mib(pid))]

    async def soak(relay: str, pid: int) -> list[str]:
        await _worker(relay)
        await _ask(relay, CLIENTS, 2000 // CLIENTS)
        before = _rss_mib(pid)
        took, seconds, bad = await _ask(relay, CLIENTS, options.soak // CLIENTS)
        return [str(len(took)), str(bad), number(len(took) / seconds), number(before), number(_rss_mib(pid))]

    progress("relay: latency")
    print(table(["clients", "", "p50, µs", "p95, µs", "requests/s"], _with_relay(latency)))
    progress("relay: streams")
    print(table(["streams", "chunks/s", "lost", "cores", "CPU µs a chunk"], [_with_relay(streams) for _ in range(3)]))
    progress("relay: idle workers")
    print(table(["idle workers", "MiB before", "after"], [_with_relay(idle)]))
    progress("relay: many requests")
    print(table(["requests", "lost or wrong", "requests/s", "MiB before", "after"], [_with_relay(soak)]))


if __name__ == "__main__":
    main()
