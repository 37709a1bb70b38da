"""Values of all types that cross, there and back, and whatever else may come."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import orjson
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from standin import StandInEngine

from umaserve.core.errors import ContextExceeded, Fault, RequestError
from umaserve.core.events import ModelInfo
from umaserve.core.queries import Answer, CountPrompt, Pair, Query, Tokenize
from umaserve.core.requests import Generate
from umaserve.core.tool_call_format import TOLD_IN_WORDS
from umaserve.remote.failures import REQUEST_ERRORS
from umaserve.remote.server import Loaded
from umaserve.remote.values import Codec, Coder, Malformed, Tail
from umaserve.sessions.engine_api import Chunk, Sampler, Tick, TickResult, media_ids
from umaserve.settings.daemon import Config


class StandInChunk:
    """One of each number, as far as a comparison sees."""

    def __init__(self, number: int) -> None:
        self.number, self.encoded = number, False


NUMBERS = Coder(lambda one, _tail: one.number, lambda number, _tail: StandInChunk(number))
CODEC = Codec({Sampler: NUMBERS, Chunk: NUMBERS, RequestError: REQUEST_ERRORS})
TYPES = [Generate, Answer, Tick, TickResult]

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
st.register_type_strategy(RequestError, st.builds(RequestError, st.sampled_from(Fault), st.text(), st.text()))
st.register_type_strategy(Chunk, st.builds(StandInChunk, st.integers(0, 9)))
st.register_type_strategy(int, st.integers(-(2**63), 2**63 - 1))
st.register_type_strategy(memoryview, st.binary().map(memoryview))
st.register_type_strategy(object, st.builds(StandInChunk, st.integers(0, 9)))


def crossed(hint: object, value: object) -> tuple[Any, bytes, bytes]:
    """What arrives, and what it was written as."""
    tail: list[bytes | memoryview] = []
    head = orjson.dumps(CODEC.of(hint).write(value, tail))
    joined = b"".join(tail)
    came = Tail(joined)
    made = CODEC.of(hint).read(orjson.loads(head), came)
    came.end()
    return made, head, joined


def values(hint: Any) -> st.SearchStrategy[Any]:
    if hint is Generate:
        return st.builds(Generate, chat_template_kwargs=st.dictionaries(st.text(), json_values, max_size=2))
    return st.from_type(hint)


@pytest.mark.parametrize("hint", TYPES, ids=str)
def test_what_arrives_is_what_was_sent(hint: object) -> None:
    @settings(max_examples=examples(30))
    @given(values(hint))
    def check(value: object) -> None:
        made, head, tail = crossed(hint, value)
        assert type(made) is type(value)
        # Lists may have been tuples: it is the same if it is written the same.
        assert crossed(hint, made)[1:] == (head, tail)

    check()


@pytest.mark.parametrize("hint", TYPES, ids=str)
def test_nothing_else_is_taken(hint: object) -> None:
    @settings(max_examples=examples(50))
    @given(json_values, st.binary())
    def check(head: object, tail: bytes) -> None:
        with pytest.raises(Malformed):
            CODEC.of(hint).read(head, Tail(tail))

    check()


@pytest.mark.parametrize(
    "value",
    [
        Config(model="/tmp/\udcff.gguf", lora=("a", "b")),
        replace(StandInEngine().info, tool_form=replace(TOLD_IN_WORDS, also=(TOLD_IN_WORDS,), between=None)),
        Loaded(StandInEngine(parts=2).capacity, frozenset({1, 2}), [b"a", b""], StandInEngine().info, ["en"]),
        Tokenize(Pair("a", "b"), special=True),
        CountPrompt(Generate("r", "hello", lora=(("a", 0.5),))),
    ],
    ids=lambda value: type(value).__name__,
)
def test_records_of_all_kinds_arrive(value: object) -> None:
    hint = Query if isinstance(value, Query) else type(value)
    made, head, tail = crossed(hint, value)
    assert crossed(hint, made)[1:] == (head, tail)
    assert made == replace(value) or isinstance(value, Loaded | ModelInfo), "these have lists where there were tuples"


def test_what_json_has_no_form_for_crosses_too() -> None:
    ids = [1, 2, *media_ids(2**127 - 1, 3), 4]
    assert crossed(Sequence[int], ids)[0] == ids
    assert crossed(Sequence[float], [math.inf, -math.inf, 0.1])[0] == [math.inf, -math.inf, 0.1]
    assert math.isnan(crossed(float, math.nan)[0])
    assert crossed(str, "/tmp/\udcff.gguf")[0] == "/tmp/\udcff.gguf"


@pytest.mark.parametrize(
    "error",
    [RequestError(Fault.BUSY, "field", "problem", retry_after_s=2.5), ContextExceeded(7, 5)],
    ids=lambda error: type(error).__name__,
)
def test_errors_arrive_as_what_they_are(error: RequestError) -> None:
    made = crossed(RequestError, error)[0]
    assert type(made) is type(error)
    assert (made.fault, made.message, made.retry_after_s) == (error.fault, error.message, error.retry_after_s)
    assert vars(made) == vars(error)
