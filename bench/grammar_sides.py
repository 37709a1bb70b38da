"""What grammars cost umaserve and llama-server, which get the same requests at the same endpoint, ``/completion``."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import NamedTuple

from bench.llama_server import llama_server
from bench.processes import Served, daemon, with_children
from bench.report import number, progress
from umaserve.core.requests import Grammar, Syntax

PATIENCE_S = 10.0
TOKENS = 48
ROUNDS = 5
COLUMNS = ("grammar", "us a token: umaserve", "llama-server", "first token, ms: umaserve", "llama-server")
NOTES = """\
One stream of at most {tokens} tokens, greedy, by /completion, without draft tokens, on one thread. Us a token: CPU time
of the server for each token after the first, less that of the same prompt without a grammar. First token: of a request
with an empty prompt cache. Both: of the best of {rounds} rounds, in which the servers take turns. No answer: within
{patience:g} s; the server is then ended and started again.
"""
PROMPT = "A long list of people as JSON: "
JSON_IN_GBNF = r"""
root ::= "[" value ("," value){1000}
value ::= object | array | string | number
object ::= "{" string ":" value ("," string ":" value)* "}"
array ::= "[" (value ("," value)*)? "]"
string ::= "\"" [a-zA-Z0-9 ]{1,20} "\""
number ::= [0-9]{1,8}
"""

Start = Callable[[], AbstractContextManager[Served]]


class Failed(Exception):
    """No answer; the text says what came of it."""


class Answer(NamedTuple):
    first_s: float
    token_s: float
    """CPU time of the server for each token after the first."""


class Side:
    """A server, started again after it has hung or crashed."""

    def __init__(self, start: Start) -> None:
        self._start = start
        self._open = contextlib.ExitStack()
        self._at: Served | None = None

    def answer(self, constraint: Mapping[str, object]) -> Answer:
        """Raises ``Failed``."""
        if self._at is None:
            self._at = self._open.enter_context(self._start())
            _ask(self._at, {})
        try:
            return _ask(self._at, constraint)
        except TimeoutError:
            # It may not even end when it is told to.
            os.kill(self._at.pid, signal.SIGKILL)
            self.close()
            raise Failed(f"no answer in {PATIENCE_S:g} s") from None
        except (OSError, http.client.HTTPException):
            self.close()
            raise Failed("crashed") from None

    def close(self) -> None:
        self._at = None
        self._open.close()


def rows(binary: str, grammars: Mapping[str, Grammar]) -> Iterator[list[str]]:
    """A row for each grammar, as ``COLUMNS`` has it. ``binary``: llama-server's."""
    # More threads would spin while they wait for each other.
    settings = {"UMA_PARALLEL": "1", "UMA_SPECULATION": "false", "UMA_THREADS": "1"}
    starts: list[Start] = [lambda: daemon("umaserve", **settings), lambda: llama_server(binary, **settings)]
    sides = [Side(start) for start in starts]
    with contextlib.ExitStack() as stack:
        for side in sides:
            stack.callback(side.close)
        for name, grammar in grammars.items():
            progress(name)
            costs, firsts = zip(*(_cells(answers) for answers in _answers(sides, grammar)), strict=True)
            yield [name, *costs, *firsts]


def _answers(sides: list[Side], grammar: Grammar) -> list[list[tuple[Answer, Answer]] | str]:
    """Of each side, the answers without and with the grammar in each round, or what came instead."""
    found: list[list[tuple[Answer, Answer]] | str] = [[] for _side in sides]
    for _ in range(ROUNDS):
        for index, side in enumerate(sides):
            answers = found[index]
            if isinstance(answers, list):
                try:
                    answers.append((side.answer({}), side.answer(_constraint(grammar))))
                except Failed as failure:
                    found[index] = str(failure)
    return found


def _cells(answers: list[tuple[Answer, Answer]] | str) -> tuple[str, str]:
    if isinstance(answers, str):
        return answers, "-"
    free_s, held_s = (min(answer.token_s for answer in some) for some in zip(*answers, strict=True))
    return number(1e6 * (held_s - free_s)), number(1000 * min(held.first_s for _free, held in answers))


def _constraint(grammar: Grammar) -> dict[str, object]:
    if grammar.syntax is Syntax.JSON_SCHEMA:
        return {"json_schema": json.loads(grammar.text)}
    return {"grammar": grammar.text}


def _ask(at: Served, constraint: Mapping[str, object]) -> Answer:
    """Raises ``Failed`` for a refusal, ``TimeoutError`` and other ``OSError``s."""
    body = {"prompt": PROMPT, "n_predict": TOKENS, "temperature": 0, "cache_prompt": False}
    connection = http.client.HTTPConnection(at.http, timeout=PATIENCE_S)
    with contextlib.closing(connection):
        asked = time.perf_counter()
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/completion", json.dumps({**body, "stream": True, **constraint}), headers)
        response = connection.getresponse()
        if response.status != http.client.OK:
            raise Failed("refused")
        tokens, first_s, first_cpu_s = 0, 0.0, 0.0
        for line in response:
            if time.perf_counter() - asked > 3 * PATIENCE_S:
                raise TimeoutError
            if line.startswith(b"error") or b'"error"' in line[:20]:
                raise Failed(f"given up after {tokens} tokens")
            if line.startswith(b"data: {"):
                tokens += 1
                if tokens == 1:
                    first_s, first_cpu_s = time.perf_counter() - asked, _cpu_s(at.pid)
        if tokens < 3:
            raise Failed("ends at once")
        return Answer(first_s, (_cpu_s(at.pid) - first_cpu_s) / (tokens - 1))


def _cpu_s(pid: int) -> float:
    """The CPU time so far, by the processes' clocks (clock_getcpuclockid(3)), of one and the engine it has started."""
    return sum(time.clock_gettime(~one << 3 | 2) for one in with_children(pid))
