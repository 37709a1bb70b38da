"""How the computing threads of a daemon that runs wait for one another: by spinning, or asleep in the kernel, which
takes up to half of the speed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from umaserve.client import Client, ServerError
from umaserve.commands.findings import Finding
from umaserve.system import ports, program, threads

TOKENS = 32
TIMEOUT_S = 30.0
"""For the daemon to take the request, and between two tokens."""
SLEEPING = 50.0
"""Switches a token, of all threads, from which on barriers sleep. Where they spin it is some 10 with one stream, and 25
with sixteen: the daemon's calls are waited for. Where each barrier sleeps it is 80 or more for each thread."""


def of_daemon(path: str) -> Iterator[Finding]:
    """The threads of the daemon that serves the Unix socket at ``path``, which is asked for ``TOKENS``; nothing where
    none does, or where others' processes can't be looked into."""
    switches = _switches_a_token(path)
    if switches is None:
        return
    if switches < SLEEPING:
        yield Finding("ok", "barriers", f"{switches:.0f} context switches per token: the compute threads spin")
    else:
        found = f"barriers sleep: {switches:.0f} context switches per token, which costs up to half of the speed"
        advice = (
            "stop other programs that compute here, or lower --threads; OMP_WAIT_POLICY and GOMP_SPINCOUNT make it"
            " worse"
        )
        yield Finding("note", "barriers", found, advice)


def _switches_a_token(path: str) -> float | None:
    try:
        engines = program.running("umaserve.engine", parent=ports.listener(path))
        if not engines:
            return None
        before = _switches(engines)
        with Client(path, TIMEOUT_S).generate(
            "1, 2, 3,", max_tokens=TOKENS, ignore_eos=True, priority="background"
        ) as stream:
            tokens = sum(1 for _ in stream)
        return (_switches(engines) - before) / tokens
    except (OSError, ServerError):
        return None


def _switches(pids: Sequence[int]) -> int:
    return sum(map(threads.switches_of, pids))
