"""The hardest grammars found so far that a client may send: what they take to compile, and their hardest step."""

from __future__ import annotations

import json
import random
import statistics
import time
from collections.abc import Iterator

import llama_cpp
import numpy as np

from bench.report import number, progress
from umaserve.core.errors import ModelError, RequestError
from umaserve.core.requests import Grammar, Syntax
from umaserve.engine.grammar.grammar import NESTED, lark_of
from umaserve.engine.llama.model import Model
from umaserve.engine.sampling.constraint import Constraint, Vocabulary

STEPS = 40
REPEATS = 3
COLUMNS = ("grammar", "compiled, ms", "hardest step, ms", "median, ms", "given up")
NOTES = """\
Random texts of each grammar, {steps} tokens at most, whose tokens are long, short or any. Compiled: on the preparing
thread, without Python's lock. A step takes a token and finds all that may follow; no other stream waits for it. Each
number is the least of {repeats} repeats, in CPU time. Given up: texts that became too complex to follow.
"""


class BareModel(Model):
    """A model's vocabulary without its weights; raises ``ModelError``."""

    def __init__(self, path: str) -> None:
        parameters = llama_cpp.llama_model_default_params()
        parameters.vocab_only = True
        native = llama_cpp.llama_model_load_from_file(path.encode(), parameters)
        if not native:
            raise ModelError(f"{path}: expected a GGUF file with a vocabulary, got none that llama.cpp can load")
        self.native = native
        self.vocab = llama_cpp.llama_model_get_vocab(native)
        self.n_vocab = llama_cpp.llama_vocab_n_tokens(self.vocab)
        tokens = range(self.n_vocab)
        self.pieces = [self._piece(token, special=False) for token in tokens]
        self.end_tokens = frozenset(token for token in tokens if llama_cpp.llama_vocab_is_eog(self.vocab, token))


def rows(path: str) -> Iterator[list[str]]:
    """A row for each grammar, with the vocabulary in the GGUF file ``path``."""
    vocabulary = Vocabulary(BareModel(path))
    for name, grammar in grammars().items():
        progress(f"{len(vocabulary.pieces)} tokens: {name}")
        compiled, steps, given_up = [], [], 0
        for _ in range(REPEATS):
            started = time.process_time()
            nested = grammar.syntax in NESTED
            constraint = Constraint(vocabulary, lark_of(grammar), grammar.field, nested=nested)
            compiled.append(time.process_time() - started)
            texts = [_text(vocabulary, constraint.copy(), length) for length in (-1, 0, 1)]
            # A text is the same in each repeat.
            steps.append([seconds for text, _whole in texts for seconds in text])
            given_up = sum(not whole for _text, whole in texts)
        least = [min(times) for times in zip(*steps, strict=True)]
        ms = [1000 * min(compiled), 1000 * max(least), 1000 * statistics.median(least)]
        yield [name, *map(number, ms), f"{given_up} of 3"]


def _text(vocabulary: Vocabulary, constraint: Constraint, length: int) -> tuple[list[float], bool]:
    """The seconds of each step of a random text with long tokens (1), short ones (-1) or any (0); and whether the
    grammar could be followed to its end."""
    choose = random.Random(1)
    logits = np.zeros(len(vocabulary.pieces), np.float32)
    seconds: list[float] = []
    last: int | None = None
    for _ in range(STEPS):
        started = time.process_time()
        try:
            if last is not None:
                constraint.accept(last)
            left = constraint.mask(logits, 0)
        except RequestError:
            return [*seconds, time.process_time() - started], False
        seconds.append(time.process_time() - started)
        left[list(vocabulary.end_tokens)] = -np.inf
        allowed = np.flatnonzero(left == 0)
        if not allowed.size:
            break
        last = max(map(int, choose.choices(allowed, k=200)), key=lambda token: length * len(vocabulary.pieces[token]))
    return seconds, True


def grammars() -> dict[str, Grammar]:
    """Each of them is within all limits."""
    texts = _words(240)
    text = {"type": "string"}
    options = [{"properties": {"a": text | {"maxLength": n}}, "required": ["a"]} for n in range(1, 251)]
    lists = {"type": "array"}
    for _ in range(3):
        lists = {"type": "array", "items": lists}
    patterns = {f"^{word}.*$": {"type": "integer"} for word in dict.fromkeys(word[:2] for word in texts)}
    schemas = {
        "70 equal references, 10 levels": _references(10, 70),
        "250 objects as options": {"anyOf": [{"type": "object", **option} for option in options]},
        "150 lists as options": {"anyOf": [lists | {"maxItems": n} for n in range(1, 151)]},
        "240 optional properties": {"type": "object", "properties": dict.fromkeys(texts, text)},
        "patterns of keys": {"type": "object", "patternProperties": patterns, "additionalProperties": False},
        "a pattern of many states": text | {"pattern": "^.*a.{12}$"},
        "a pattern of bounded repeats": text | {"pattern": "^(.{0,40}x){0,20}$"},
        "4,000 texts": {"enum": _words(4000)},
    }
    rules = {
        "GBNF of many readings": (Syntax.GBNF, 'root ::= s\ns ::= s s | [a-z] | ""\n'),
        "Lark of many readings": (Syntax.LARK, 'start: s\ns: s s s | s s | /[a-z]/ | ""\n'),
        "Lark of long tokens": (Syntax.LARK, 'start: /={32}/ s\ns: s s | /[=#-]/ | ""\n'),
        "GBNF of 5,000 texts": (Syntax.GBNF, "root ::= " + " | ".join(f'"{word}"' for word in _words(5000))),
    }
    return {
        name: Grammar(Syntax.JSON_SCHEMA, json.dumps(schema), "json_schema") for name, schema in schemas.items()
    } | {name: Grammar(syntax, text, "grammar") for name, (syntax, text) in rules.items()}


def _references(levels: int, each: int) -> dict[str, object]:
    """Options that are all the same, by many names."""
    defs: dict[str, object] = {f"a{levels}": {"type": "array", "items": {"type": "integer"}}}
    for level in range(levels):
        defs[f"a{level}"] = {"anyOf": [{"$ref": f"#/$defs/b{level}_{n}"} for n in range(each)]}
        defs |= {f"b{level}_{n}": {"$ref": f"#/$defs/a{level + 1}"} for n in range(each)}
    return {"$ref": "#/$defs/a0", "$defs": defs}


def _words(n: int) -> list[str]:
    choose = random.Random(1)
    return ["".join(choose.choices("abcdefghijklmnopqrstuvwxyz", k=8)) for _ in range(n)]
