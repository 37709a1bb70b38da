"""``python -m bench.grammar``: what it costs to hold answers to a JSON schema; without scheduler and sockets."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence

from bench import grammar_sides, hard_grammars
from bench.report import load_average, machine, number, progress, table
from umaserve.core.errors import ConfigError, ModelError
from umaserve.core.requests import Generate, Grammar, Sampling, Syntax, TokenIds
from umaserve.engine.engine import LlamaEngine, load
from umaserve.sessions.engine_api import Prepared, Run, Tick
from umaserve.sessions.kv_operations import Release
from umaserve.settings.daemon import SETTINGS
from umaserve.system.memory import resident_bytes

STREAMS = (1, 16)
KIB = (1, 16, 60)
"""Sizes of schemas."""
COPIES = 64
_PROMPT = "A list of people as JSON: "
_SCHEMA = {
    "type": "array",
    "minItems": 1000,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 20},
            "age": {"type": "integer", "minimum": 0, "maximum": 120},
            "role": {"enum": ["reader", "writer", "owner"]},
        },
        "required": ["name", "age", "role"],
    },
}
_NOTES = """\
A tick: one decode with the next token of every stream, and its sampling; the median of {ticks}. Free: without a
grammar. Bound: with a schema of three properties. Sampling: of one token, the mean.
"""
_LARGE_NOTES = """\
Prepared: from the request to the first decode, beside which other streams run. Memory: what one of {copies} choices of
the same request takes, each with a matcher of its own.
"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.grammar", description="What grammars cost.")
    parser.add_argument("--streams", type=int, nargs="+", default=STREAMS, metavar="N")
    parser.add_argument("--ticks", type=int, default=40, metavar="N", help="of each measurement")
    parser.add_argument(
        "--vocabulary",
        nargs="+",
        metavar="FILE",
        help="instead, the hardest grammars known, with the vocabularies of these GGUF files",
    )
    parser.add_argument(
        "--llama-server",
        metavar="PATH",
        help="instead, the same grammars for the daemon and for this binary of llama.cpp's server",
    )
    arguments = parser.parse_args()
    try:
        if arguments.vocabulary:
            return _hardest(arguments.vocabulary)
        if arguments.llama_server:
            return _beside(arguments.llama_server)
        config = SETTINGS.load({}, dict(os.environ)).config
        most = max(arguments.streams)
        config = dataclasses.replace(config, parallel=most, n_ctx=most * 256)
        engine = load(config, lambda _fraction: True)
    except (ConfigError, ModelError) as error:
        print(f"bench.grammar: {error}", file=sys.stderr)
        return 2
    print(f"{machine()}\nload before: {load_average()}\n")
    rows = [row for n in arguments.streams for row in _steps(engine, n, arguments.ticks)]
    print(table(("streams", "temperature", "free, ms", "bound, ms", "ratio", "sampling free, us", "bound, us"), rows))
    print(_NOTES.format(ticks=arguments.ticks))
    rows = [_large(engine, kib) for kib in KIB]
    print(table(("schema, KiB", "prepared, ms", "memory, KiB"), rows))
    print(_LARGE_NOTES.format(copies=COPIES))
    engine.close()
    return 0


def _hardest(paths: Sequence[str]) -> int:
    print(f"{machine()}\nload before: {load_average()}\n")
    for path in paths:
        print(f"{path}\n\n{table(hard_grammars.COLUMNS, list(hard_grammars.rows(path)))}\n")
    print(hard_grammars.NOTES.format(steps=hard_grammars.STEPS, repeats=hard_grammars.REPEATS))
    return 0


def _beside(binary: str) -> int:
    print(f"{machine()}\nload before: {load_average()}\n")
    grammars = {
        "three properties": Grammar(Syntax.JSON_SCHEMA, json.dumps(_SCHEMA), "json_schema"),
        "JSON in GBNF": Grammar(Syntax.GBNF, grammar_sides.JSON_IN_GBNF, "grammar"),
        **{
            f"schema of {kib} KiB": Grammar(Syntax.JSON_SCHEMA, json.dumps(_schema_of(1024 * kib)), "json_schema")
            for kib in KIB
        },
        **{name: one for name, one in hard_grammars.grammars().items() if one.syntax is not Syntax.LARK},
    }
    print(table(grammar_sides.COLUMNS, list(grammar_sides.rows(binary, grammars))))
    print(
        grammar_sides.NOTES.format(
            tokens=grammar_sides.TOKENS, rounds=grammar_sides.ROUNDS, patience=grammar_sides.PATIENCE_S
        )
    )
    return 0


def _steps(engine: LlamaEngine, streams: int, ticks: int) -> Iterator[list[str]]:
    grammar = Grammar(Syntax.JSON_SCHEMA, json.dumps(_SCHEMA), "json_schema")
    for temperature in (0.0, 1.0):
        progress(f"{streams} streams, temperature {temperature:g}")
        taken: dict[bool, list[float]] = {False: [], True: []}
        sampled: dict[bool, list[float]] = {False: [], True: []}
        # In turns, so that what else the box does falls on both.
        for bound in (False, True, True, False):
            sampling = Sampling(temperature, ignore_eos=True, seed=1, grammar=grammar if bound else None)
            taken[bound] += _ticks(engine, streams, ticks // 2, sampling, sampled[bound])
        free, held = (1000 * statistics.median(taken[bound]) for bound in (False, True))
        tokens = [number(1e6 * statistics.mean(sampled[bound])) for bound in (False, True)]
        yield [str(streams), f"{temperature:g}", number(free), number(held), f"{held / free:.2f}", *tokens]


def _ticks(engine: LlamaEngine, streams: int, ticks: int, sampling: Sampling, sampled: list[float]) -> list[float]:
    """The seconds of each tick, after the prompts are computed; those of each token's sampling go into ``sampled``."""
    engine.run(Tick([Release(slot) for slot in range(streams)], []))
    all_prepared: list[Prepared] = [
        engine.prepare(Generate("b", _PROMPT + f"{slot}: ", 200, sampling)) for slot in range(streams)
    ]
    for prepared in all_prepared:
        setattr(prepared.sampler, "sample", _timed(getattr(prepared.sampler, "sample"), sampled))  # noqa: B009, B010
    last = [prepared.tokens for prepared in all_prepared]
    done = [0] * streams
    seconds = []
    for _ in range(1 + ticks):
        runs = [Run(slot, done[slot], last[slot], all_prepared[slot].sampler) for slot in range(streams)]
        started = time.perf_counter()
        result = engine.run(Tick([], runs))
        seconds.append(time.perf_counter() - started)
        done = [start + len(tokens) for start, tokens in zip(done, last, strict=True)]
        last = [list(tokens) for tokens in result.tokens]
    return seconds[1:]


def _timed(work: Callable[..., int], seconds: list[float]) -> Callable[..., int]:
    def timed(*arguments: object) -> int:
        started = time.perf_counter()
        done = work(*arguments)
        seconds.append(time.perf_counter() - started)
        return done

    return timed


def _large(engine: LlamaEngine, kib: int) -> list[str]:
    progress(f"a schema of {kib} KiB")
    schema = json.dumps(_schema_of(kib * 1024))
    grammar = Grammar(Syntax.JSON_SCHEMA, schema, "json_schema")
    request = Generate("b", TokenIds((1,)), 10, Sampling(grammar=grammar))
    taken = []
    for _ in range(5):
        started = time.perf_counter()
        prepared = engine.prepare(request)
        taken.append(1000 * (time.perf_counter() - started))
    before = resident_bytes()
    choices: Sequence[Prepared] = [engine.prepare_choice(request, prepared) for _ in range(COPIES)]
    held = (resident_bytes() - before) / len(choices)
    return [number(len(schema) / 1024), number(statistics.median(taken)), number(held / 1024)]


def _schema_of(n_bytes: int) -> dict[str, object]:
    """An object of objects, with values of all kinds."""
    choose = random.Random(1)
    values: list[dict[str, object]] = [
        {"type": "string", "maxLength": 40},
        {"type": "string", "format": "date-time"},
        {"type": "integer", "minimum": 0, "maximum": 1000},
        {"anyOf": [{"type": "number"}, {"type": "null"}]},
        {"type": "array", "items": {"type": "boolean"}, "maxItems": 10},
        {"enum": ["low", "middle", "high"]},
    ]
    parts: dict[str, object] = {}
    size = 0
    while size < n_bytes:
        properties = {f"field_{n}": choose.choice(values) for n in range(12)}
        part = {"type": "object", "properties": properties, "required": list(properties)[:6]}
        parts[f"part_{len(parts)}"] = part
        size += len(json.dumps(part))
    return {"type": "object", "properties": parts, "required": list(parts)}


if __name__ == "__main__":
    sys.exit(main())
