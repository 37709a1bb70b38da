"""Is any request lost, or answered otherwise, while models take turns in memory and their engines are killed?"""

from __future__ import annotations

import argparse
import contextlib
import os
import queue
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.processes import Served, daemon, with_children
from bench.report import progress
from umaserve.client import Client, ServerError
from umaserve.settings.model_files import default_model

BOX_MIB = 560
"""For two of the models."""
MODELS = "default", "second", "third", "fourth"
REQUESTS: Sequence[dict[str, Any]] = (
    {"prompt": "1, 2, 3, 4, 5,", "max_tokens": 30},
    {"prompt": " ".join(map(str, range(1, 41))), "max_tokens": 60},
    {"prompt": "1, 2, 3, 4, 5,", "max_tokens": 40, "grammar": 'root ::= "6, 7, 8, 9, 10, 11, 12, 13, 14"'},
    {"prompt": "1, 2, 3, 4, 5,", "max_tokens": 30, "repeat_penalty": 1.01, "temperature": 0.01, "seed": 7},
)
"""What follows is never in doubt, so rounding doesn't show."""
QUIET_S = 30.0
LOAD_S = 10.0
SPARED_S = 30.0
"""After one was killed that may still load, or have no token yet: requests fail whose engine is killed a few times in a
row without progress, as they should, and on a busy box a load takes seconds."""
TOLD_EVERY = 100
SOCKETS = 9
"""The daemon's to an engine."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run as many requests as asked for; returns the exit status: 1 where anything is wrong."""
    parser = argparse.ArgumentParser("python -m bench.soak", description=__doc__, allow_abbrev=False)
    parser.add_argument("--requests", type=int, default=2000, metavar="N", help="default: %(default)s")
    parser.add_argument("--clients", type=int, default=6, metavar="N", help="at once (default: %(default)s)")
    parser.add_argument(
        "--kill-every", type=float, default=3.0, metavar="SECONDS", help="one of the engines (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=1, help="of all that is random (default: %(default)s)")
    options = parser.parse_args(argv)
    soak = Soak(options.seed)
    soak.run(options.requests, options.clients, options.kill_every)
    print(f"{soak.answered} requests were answered, {len(soak.engines)} engines ran, {soak.killed} were killed.")
    print("\n".join(soak.wrong) or "Nothing was wrong.")
    return int(bool(soak.wrong))


class Soak:
    """``seed``: of all that is random. ``engines``: all processes that were seen. ``wrong``: what was, in words."""

    def __init__(self, seed: int) -> None:
        self.engines: set[int] = set()
        self.answered = self.killed = 0
        self.wrong: list[str] = []
        self._chance = random.Random(seed)

    def run(self, requests: int, clients: int, kill_every_s: float) -> None:
        """Ends once all requests have ended, and the daemon."""
        with tempfile.TemporaryDirectory(prefix="soak-") as folder:
            for name in MODELS[1:]:
                shutil.copy(default_model(), os.path.join(folder, f"{name}.gguf"))
            settings = {"UMA_MODELS_DIR": folder, "UMA_PARALLEL": "4", "UMA_N_CTX": "4096", "UMA_WEIGHTS": "as-is"}
            settings |= {"UMA_MEMORY_RESERVE": "0", "UMA_SPECULATION": "false", "BOX_MIB": str(BOX_MIB)}
            with daemon("bench.small_box", **settings) as at:
                expected = [_text(at, "default", request) for request in REQUESTS]
                besides = _descriptors(at) - SOCKETS
                self._ask_all(at, requests, clients, kill_every_s, expected)
                self._settle(at, besides)
        left = [pid for pid in self.engines if os.path.exists(f"/proc/{pid}")]
        self.wrong += [f"The process {pid} of an engine is left." for pid in left]

    def _ask_all(self, at: Served, requests: int, clients: int, kill_every_s: float, expected: Sequence[str]) -> None:
        todo: queue.SimpleQueue[tuple[str, int]] = queue.SimpleQueue()
        for _ in range(requests):
            todo.put((self._chance.choice(MODELS), self._chance.randrange(len(REQUESTS))))
        over = threading.Event()

        def ask() -> None:
            with contextlib.suppress(queue.Empty):
                while True:
                    model, number = todo.get_nowait()
                    try:
                        text = _text(at, model, REQUESTS[number])
                    except (ServerError, OSError) as error:
                        text = f"{type(error).__name__}: {error}"
                    if text != expected[number]:
                        self.wrong.append(f"{model}, request {number}: {text!r} instead of {expected[number]!r}.")
                    self.answered += 1
                    if self.answered % TOLD_EVERY == 0:
                        progress(f"{self.answered} of {requests} requests, {self.killed} engines killed")

        def kill() -> None:
            seen: dict[int, float] = {}
            spared_until = 0.0
            next_at = time.monotonic()
            while not over.wait(0.05):
                now, running = time.monotonic(), _engines(at)
                self.engines.update(running)
                seen = {pid: seen.get(pid, now) for pid in running}
                if now < next_at or not running:
                    continue
                next_at = now + kill_every_s * self._chance.uniform(0.5, 1.5)
                pid = self._chance.choice(running)
                if now < seen[pid] + LOAD_S:
                    if now < spared_until:
                        continue
                    spared_until = now + SPARED_S
                os.kill(pid, signal.SIGKILL)
                self.killed += 1

        killer, asking = threading.Thread(target=kill), [threading.Thread(target=ask) for _ in range(clients)]
        for thread in (killer, *asking):
            thread.start()
        for thread in asking:
            thread.join()
        over.set()
        killer.join()

    def _settle(self, at: Served, besides: int) -> None:
        """Nothing runs any more; ``besides``: descriptors of the daemon that are no engine's."""
        until = time.monotonic() + QUIET_S
        while time.monotonic() < until:
            metrics, running = Client(at.socket).metrics(), _engines(at)
            self.engines.update(running)
            busy = {name: metrics[name] for name in ("active_sessions", "waiting_sessions", "kv_cells_used")}
            too_many = _descriptors(at) - besides - SOCKETS * len(running)
            if not any(busy.values()) and too_many == 0:
                break
            time.sleep(0.1)
        else:
            self.wrong.append(f"{QUIET_S:.0f} s later there are {busy}, and {too_many} descriptors too many.")
        progress(f"{metrics['engine_crashes_total']} crashes, {metrics['rss_bytes'] >> 20} MiB")


def _text(at: Served, model: str, request: dict[str, Any]) -> str:
    with Client(at.socket).generate(model=model, **request) as stream:
        return "".join(event["text"] for event in stream)


def _engines(at: Served) -> list[int]:
    return with_children(at.pid)[1:]


def _descriptors(at: Served) -> int:
    return len(list(Path(f"/proc/{at.pid}/fd").iterdir()))


if __name__ == "__main__":
    sys.exit(main())
