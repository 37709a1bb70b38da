"""What grammars cost umaserve and llama-server, which get the same requests at the same endpoint, ``/completion``."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import NamedTuple

from bench.llama_server import llama_server
from bench.processes import Served, daemon
from bench.report import number, progress
from umaserve.messages import Grammar, Syntax

PATIENCE_S = 10.0
TOKENS = 48
ROUNDS = 3
COLUMNS = ("grammar", "us a token: umaserve", "llama-server", "first token, ms: umaserve", "llama-server")
NOTES = """\
One stream of at most {tokens} tokens, greedy, by /completion. Us a token: the time between tokens, less that of the
same prompt without a grammar. First token: of a request with an empty prompt cache. Both: medians of {rounds} rounds,
in which the servers take turns. No answer: within {patience:g} s; the server is then ended and started again.
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
            _ask(self._at.http, {})
        try:
            return _ask(self._at.http, constraint)
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
    starts: list[Start] = [lambda: daemon("umaserve", UMA_PARALLEL="1"), lambda: llama_server(binary, UMA_PARALLEL="1")]
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
    cost = statistics.median(1e6 * (held.token_s - free.token_s) for free, held in answers)
    return number(cost), number(1000 * statistics.median(held.first_s for _free, held in answers))


def _constraint(grammar: Grammar) -> dict[str, object]:
    if grammar.syntax is Syntax.JSON_SCHEMA:
        return {"json_schema": json.loads(grammar.text)}
    return {"grammar": grammar.text}


def _ask(address: str, constraint: Mapping[str, object]) -> Answer:
    """Raises ``Failed`` for a refusal, ``TimeoutError`` and other ``OSError``s."""
    body = {"prompt": PROMPT, "n_predict": TOKENS, "temperature": 0, "cache_prompt": False}
    connection = http.client.HTTPConnection(address, timeout=PATIENCE_S)
    with contextlib.closing(connection):
        asked = time.perf_counter()
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/completion", json.dumps({**body, "stream": True, **constraint}), headers)
        response = connection.getresponse()
        if response.status != http.client.OK:
            raise Failed("refused")
        times = []
        for line in response:
            if time.perf_counter() - asked > 3 * PATIENCE_S:
                raise TimeoutError
            if line.startswith(b"error") or b'"error"' in line[:20]:
                raise Failed(f"given up after {len(times)} tokens")
            if line.startswith(b"data: {"):
                times.append(time.perf_counter())
        if len(times) < 3:
            raise Failed("ends at once")
        return Answer(times[0] - asked, (times[-1] - times[0]) / (len(times) - 1))
