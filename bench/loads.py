"""Sizes of load for umaserve beside llama-server, and the servers that have KV cells for them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from bench.llama_server import llama_server
from bench.processes import Served, daemon, trace_of
from bench.sides import OURS
from bench.trace import Measures, measures
from bench.workload import WARM_UP_TOKENS
from umaserve.client import Client
from umaserve.engine.llama.model import CELLS_ROUNDED_TO
from umaserve.settings.daemon import SETTINGS

TOKENS_A_WORD = 1.4


@dataclass(frozen=True, slots=True)
class Load:
    """What ``clients`` ask at once."""

    clients: int
    words: int
    tokens: int
    turns: int = 1
    opening: int = 0
    """Words that the first turn has more, as the instructions and tools of an agent."""

    def __str__(self) -> str:
        return f"{self.clients} x {self.prompts} words, {self.tokens} tokens"

    @property
    def prompts(self) -> str:
        turns = f"{self.turns} x {self.words}" if self.turns > 1 else str(self.words)
        return f"{self.opening} + {turns}" if self.opening else turns

    @property
    def cells(self) -> int:
        """KV cells that one client needs, with room to spare."""
        return int(TOKENS_A_WORD * self.opening + self.turns * (TOKENS_A_WORD * self.words + self.tokens + 16))

    def measure(self, at: Served, round_: int) -> Measures:
        """Run it once; each round has prompts of its own."""
        numbers = self.clients, self.words, self.tokens, self.turns, round_, self.opening
        found = measures(trace_of("bench.scenarios", "growing", at.http, *numbers), later=self.turns > 1)
        return replace(found, tick_ms=float(Client(at.socket).metrics()["decode_ms_ewma"])) if at.socket else found

    def measure_bare(self, model: str, round_: int) -> Measures:
        """Run umaserve's prompts with its KV cells in a bare llama.cpp loop. One turn only."""
        numbers = self.clients, self.tokens, self.words, round_
        return measures(trace_of("bench.bare", *numbers, **_ours(model, [self])))


def _ours(model: str, loads: Sequence[Load]) -> dict[str, str]:
    parallel = max(loads[0].clients, SETTINGS.load({}, {}).config.parallel)
    return _settings(model, loads, parallel)


def started(
    stack: contextlib.ExitStack,
    model: str,
    loads: Sequence[Load],
    binary: str | None,
    layouts: Mapping[str, Sequence[str]],
) -> dict[str, Served]:
    """umaserve and llama-server, the latter in each of the ways that ``layouts`` names and with the model's file as it
    is, for loads of one number of clients. Without a ``binary``, umaserve alone."""
    servers = {OURS: stack.enter_context(daemon("umaserve", **_ours(model, loads)))}
    if binary is not None:
        theirs = {**_settings(model, loads, loads[0].clients), "UMA_WEIGHTS": "as-is"}
        for name, layout in layouts.items():
            servers[name] = stack.enter_context(llama_server(binary, layout, **theirs))
    return servers


def _settings(model: str, loads: Sequence[Load], parallel: int) -> dict[str, str]:
    each = -(-max(load.cells for load in loads) // CELLS_ROUNDED_TO) * CELLS_ROUNDED_TO
    return {
        "UMA_MODEL": model,
        "UMA_MAX_TOKENS": str(max(WARM_UP_TOKENS, *(load.tokens for load in loads))),
        "UMA_PARALLEL": str(parallel),
        "UMA_N_CTX": str(parallel * each),
    }
