"""The engine on the real model, called as the scheduler calls it."""

from __future__ import annotations

import dataclasses
import functools
import gc
import itertools
import json
import re
import threading
from collections.abc import Iterator
from typing import Any

import llama_cpp
import numpy as np
import pytest
from engine_world import no_pause
from standin import EngineFailure

from umaserve.core.errors import Fault, RequestError
from umaserve.core.events import Logprobs
from umaserve.core.queries import Detokenize, Detokenized, Embed, Tokenize, Tokenized
from umaserve.core.requests import ChatTurn, Generate, Grammar, MixedText, Sampling, Syntax, TokenIds, Tool
from umaserve.core.tool_call_format import Slot, ToolForm
from umaserve.engine.engine import LlamaEngine, load
from umaserve.engine.sampling.candidates import Candidates
from umaserve.engine.sampling.sampler import Sampler
from umaserve.sessions.answer_text import text_of
from umaserve.sessions.engine_api import Outcome, Prepared, Run, Tick
from umaserve.sessions.kv_operations import Divide, Release
from umaserve.settings.daemon import Config

STORY = "Once upon a time, in a small village by the sea,"
N_CTX = 512
CLEAR = (Release(0), Release(1))


def engine(**settings) -> LlamaEngine:
    settings = {"n_ctx": N_CTX, "parallel": 2, "threads": 1, "weights": "as-is"} | settings
    return load(Config(**settings), lambda _fraction: True)


@pytest.fixture(scope="module")
def plain() -> Iterator[LlamaEngine]:
    """All sequences share the KV cells."""
    made = engine()
    made.run(Tick([Divide(0)], []))
    yield made
    made.close()


@pytest.fixture(scope="module")
def pooled() -> Iterator[LlamaEngine]:
    """All sequences share the KV cells."""
    made = engine(pooling="mean")
    made.run(Tick([Divide(0)], []))
    yield made
    made.close()


def gbnf(text: str) -> Grammar:
    return Grammar(Syntax.GBNF, text, "grammar")


class Stream:
    """One request on slot 0 of an engine whose other slots are idle."""

    def __init__(self, engine: LlamaEngine, prompt: str | tuple[ChatTurn, ...] | TokenIds = STORY, **fields) -> None:
        self.engine = engine
        self.request = Generate("t", prompt, **fields)
        self.prepared: Prepared = engine.prepare(self.request)
        self.tokens: list[int] = []
        self.logprobs: list[Logprobs] = []
        self.text = ""
        self._text = text_of(self.request, self.prepared, engine)
        self.ended = False
        self._computed = 0
        engine.run(Tick(CLEAR, []))

    def run(self, n: int = 10**6) -> Stream:
        """Up to ``n`` tokens, as the scheduler would."""
        prepared = self.prepared
        for _ in range(min(n, prepared.max_tokens - len(self.tokens))):
            tokens = self.tokens[-1:] if self.tokens else prepared.tokens
            result = self.engine.run(Tick([], [Run(0, self._computed, tokens, prepared.sampler, prepared.logprobs)]))
            self._computed += len(tokens)
            while result.late:
                result = self.engine.run(Tick([], [Run(0, self._computed, [], prepared.sampler, prepared.logprobs)]))
            ((token,),) = result.tokens
            if token in self.engine.end_tokens:
                self.ended = True
                break
            self.tokens.append(token)
            self.logprobs += result.logprobs.get(0, ())
            said, ended = self._text.push(token)
            self.text += said.text
            self.ended = ended is not None
            if self.ended:
                return self
        if self.ended or len(self.tokens) == prepared.max_tokens:
            rest, _ = self._text.finish()
            self.text += rest.text
        return self

    def change(self, **fields) -> None:
        request = dataclasses.replace(self.request, **fields)
        self.prepared = self.engine.change(self.prepared, request, self.tokens)
        self._text.set_stops(request.stop)


# -- log-probabilities -----------------------------------------------------------------------------------------------


def test_log_probabilities_are_of_the_models_own_logits(plain: LlamaEngine):
    greedy = Stream(plain, max_tokens=6, logprobs=4).run()
    assert [len(one.top) for one in greedy.logprobs] == [4] * 6
    assert [one.chosen for one in greedy.logprobs] == [one.top[0] for one in greedy.logprobs]
    assert [one.chosen.token_id for one in greedy.logprobs] == greedy.tokens
    assert b"".join(one.chosen.piece for one in greedy.logprobs).decode() == greedy.text
    banned = Sampling(logit_bias=((greedy.tokens[0], -100.0),), presence_penalty=2.0)
    (other,) = Stream(plain, max_tokens=1, logprobs=4, sampling=banned).run().logprobs
    assert other.top == greedy.logprobs[0].top
    assert other.chosen != other.top[0]


def test_log_probabilities_come_only_where_they_are_asked_for(plain: LlamaEngine):
    assert Stream(plain, max_tokens=2).run().logprobs == []
    assert [one.top for one in Stream(plain, max_tokens=2, logprobs=0).run().logprobs] == [(), ()]
    plain.run(Tick(CLEAR, []))
    asking, silent = (plain.prepare(Generate("t", STORY, 4, logprobs=n)) for n in (1, None))
    runs = [Run(slot, 0, one.tokens, one.sampler, one.logprobs) for slot, one in enumerate((silent, asking))]
    assert list(plain.run(Tick([], runs)).logprobs) == [1]


def test_a_control_token_is_reported_as_it_is_written(plain: LlamaEngine):
    (end,) = plain.end_tokens & set(plain.answer(Tokenize("<|im_end|>")).ids)
    stream = Stream(plain, max_tokens=1, logprobs=0, sampling=Sampling(logit_bias=((end, 100.0),)))
    run = Run(0, 0, stream.prepared.tokens, stream.prepared.sampler, 0)
    assert plain.run(Tick([], [run])).logprobs[0][0].chosen.piece == b"<|im_end|>"


# -- a change on the way ---------------------------------------------------------------------------------------------


def test_a_change_of_nothing_changes_nothing(plain: LlamaEngine):
    whole = Stream(plain, max_tokens=20).run()
    stream = Stream(plain, max_tokens=20).run(7)
    stream.change()
    assert stream.run().tokens == whole.tokens


def test_the_sampling_changes_and_knows_what_came_before(plain: LlamaEngine):
    loop = (ChatTurn("user", "la la la la"),)
    stream = Stream(plain, loop, max_tokens=24).run(12)
    stream.change(sampling=Sampling(presence_penalty=100.0, ignore_eos=True))
    seen = {*stream.prepared.tokens[-64:], *stream.tokens}
    after = stream.run().tokens[12:]
    assert len(after) == len(set(after)) == 12
    assert not seen & set(after)


def test_a_seed_gives_another_stream_after_a_change(plain: LlamaEngine):
    flat = np.zeros(plain.info.vocabulary, np.float32)
    sampling = Sampling(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=7)
    first = plain.prepare(Generate("t", STORY, 20, sampling))
    candidates = Candidates(plain.info.vocabulary)
    drawn = [first.sampler.sample(flat.copy(), candidates) for _ in range(5)]
    changes = [plain.change(first, Generate("t", "", sampling=sampling), drawn) for _ in range(2)]
    again = [[one.sampler.sample(flat.copy(), candidates) for _ in range(5)] for one in changes]
    assert again[0] == again[1] != drawn


def test_stops_and_length_change(plain: LlamaEngine):
    whole = Stream(plain, max_tokens=30).run()
    stream = Stream(plain, max_tokens=10).run(5)
    stream.change(max_tokens=30)
    assert stream.run().tokens == whole.tokens
    stream = Stream(plain, max_tokens=30).run(5)
    stop = whole.text[60:66]
    stream.change(stop=(stop,))
    assert stream.prepared.max_tokens == 30
    stream.change(stop=(stop,), max_tokens=None)
    assert stream.prepared.max_tokens == plain.prepare(Generate("t", STORY)).max_tokens
    assert stream.run().text == whole.text[: whole.text.index(stop)]


def test_a_change_that_is_refused_changes_nothing(plain: LlamaEngine):
    whole = Stream(plain, max_tokens=20, stop=("wizard",)).run()
    stream = Stream(plain, max_tokens=20, stop=("wizard",)).run(3)
    with pytest.raises(RequestError, match="logit_bias") as caught:
        stream.change(stop=(" ",), sampling=Sampling(logit_bias=((10**6, 1.0),)))
    assert caught.value.fault is Fault.BAD_REQUEST
    assert stream.run().text == whole.text


@pytest.mark.parametrize("wanted", [None, N_CTX, 10**9])
def test_an_answer_is_cut_to_what_the_context_holds(plain: LlamaEngine, wanted: int | None):
    room = N_CTX - len(plain.answer(Tokenize(STORY)).ids)
    assert plain.prepare(Generate("t", STORY, wanted)).max_tokens == room
    stream = Stream(plain, max_tokens=10)
    stream.change(max_tokens=wanted)
    assert stream.prepared.max_tokens == room


def test_a_prompt_that_leaves_no_room_for_an_answer_is_refused(plain: LlamaEngine):
    assert plain.prepare(Generate("t", TokenIds((1,) * (N_CTX - 1)))).max_tokens == 1
    said = f"^prompt: expected at most {N_CTX - 1} tokens, got {N_CTX}. This model's maximum context length is {N_CTX} "
    with pytest.raises(RequestError, match=said) as caught:
        plain.prepare(Generate("t", TokenIds((1,) * N_CTX), 1))
    assert caught.value.fault is Fault.CONTEXT_EXCEEDED


def test_a_grammar_goes_on_where_it_was(plain: LlamaEngine):
    grammar = 'root ::= "one, two, three, four, five, " [0-9]{8} "."'
    stream = Stream(plain, max_tokens=60, sampling=Sampling(grammar=gbnf(grammar))).run(5)
    old = stream.prepared
    for temperature in (1.0, 0.0):
        stream.change(sampling=Sampling(temperature=temperature, grammar=gbnf('root ::= "something else"')))
        gc.collect()
        stream.run(4)
    assert old.sampler.constraint is stream.prepared.sampler.constraint
    del old
    gc.collect()
    stream.run()
    assert stream.ended
    assert stream.text.startswith("one, two, three, four, five, ")
    assert stream.text[-9:-1].isdigit()
    assert stream.text.endswith(".")


@pytest.mark.parametrize("grammar", [None, 'root ::= "one " ("two " | "three ") [a-c]{9} "."'])
def test_a_choice_says_what_it_would_say_if_it_were_prepared_alone(plain: LlamaEngine, grammar: str | None):
    def sampling(seed: int) -> Sampling:
        return Sampling(temperature=1.5, seed=seed, repeat_penalty=1.3, grammar=grammar and gbnf(grammar))

    first, other = (
        Stream(plain, max_tokens=20, sampling=sampling(1)),
        Stream(plain, max_tokens=20, sampling=sampling(2)),
    )
    alone = [Stream(plain, max_tokens=20, sampling=sampling(seed)).run().text for seed in (1, 2)]
    other.prepared = plain.prepare_choice(other.request, first.prepared)
    assert other.prepared.tokens is first.prepared.tokens
    plain.run(Tick(CLEAR, []))
    texts = [first.run().text]
    first.prepared = None
    gc.collect()
    plain.run(Tick(CLEAR, []))
    texts.append(other.run().text)
    assert texts == alone
    assert texts[0] != texts[1]


def test_a_grammar_that_becomes_too_complex_fails_its_run_alone(plain: LlamaEngine, monkeypatch):
    bound = plain.prepare(Generate("t", STORY, 5, sampling=Sampling(grammar=gbnf("root ::= [0-9]+"))))
    free = plain.prepare(Generate("u", STORY, 5))
    refused = RequestError(Fault.BAD_REQUEST, "grammar", "expected less")

    def refuse(_token: int) -> bool:
        raise refused

    monkeypatch.setattr(bound.sampler.constraint, "accept", refuse)
    plain.run(Tick(CLEAR, []))
    result = plain.run(Tick([], [Run(0, 0, bound.tokens, bound.sampler), Run(1, 0, free.tokens, free.sampler)]))
    while result.late:
        assert [len(tokens) for tokens in result.tokens[1:]] in ([], [1])
        result = plain.run(Tick([], [Run(0, len(bound.tokens), [], bound.sampler)]))
    assert result.outcome is Outcome.DONE
    assert result.failed == {0: refused}
    assert result.tokens[0] == ()


# -- slow grammars ---------------------------------------------------------------------------------------------------

LETTERS = Sampling(grammar=gbnf("root ::= [a-zA-Z ,.]+"))


@pytest.fixture
def go_on() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def slow_from(call: int, plain: LlamaEngine, go_on: threading.Event) -> Prepared:
    """A request whose grammar decides about no token, from this one on, before the event is set."""
    prepared = plain.prepare(Generate("t", STORY, 9, sampling=LETTERS))
    accept, calls = prepared.sampler.constraint.accept, itertools.count()
    prepared.sampler.constraint.accept = lambda token: (next(calls) < call or go_on.wait()) and accept(token)
    plain.run(Tick(CLEAR, []))
    return prepared


def test_a_slow_grammar_keeps_no_other_stream_waiting(plain: LlamaEngine, go_on: threading.Event):
    alone = [Stream(plain, max_tokens=4, sampling=sampling).run().tokens for sampling in (LETTERS, Sampling())]
    free = plain.prepare(Generate("u", STORY, 9))
    slow = slow_from(0, plain, go_on)
    length = len(slow.tokens)
    result = plain.run(Tick([], [Run(0, 0, slow.tokens, slow.sampler), Run(1, 0, free.tokens, free.sampler)]))
    others = [*result.tokens[1]]
    for start in range(length, length + 3):
        assert (result.tokens[0], result.late) == ([], {0})
        result = plain.run(Tick([], [Run(0, length, [], slow.sampler), Run(1, start, others[-1:], free.sampler)]))
        others += result.tokens[1]
    assert others == alone[1]
    go_on.set()
    assert slow.sampler.step.ended.wait(60)
    result = plain.run(Tick([], [Run(0, length, [], slow.sampler)]))
    assert (result.tokens, result.late) == ([alone[0][:1]], set())
    assert plain.run(Tick([], [Run(0, length, alone[0][:1], slow.sampler)])).tokens == [alone[0][1:2]]


def test_a_late_token_comes_though_its_sequence_has_lost_its_slot(plain: LlamaEngine, go_on: threading.Event):
    alone = Stream(plain, max_tokens=1, sampling=LETTERS).run().tokens
    slow = slow_from(0, plain, go_on)
    assert plain.run(Tick([], [Run(0, 0, slow.tokens, slow.sampler)])).late
    assert plain.run(Tick([Release(0)], [Run(1, 0, slow.tokens, slow.sampler)])).late
    go_on.set()
    assert slow.sampler.step.ended.wait(60)
    assert plain.run(Tick([Release(1)], [Run(0, 0, slow.tokens, slow.sampler)])).tokens == [alone]


def test_draft_tokens_before_a_late_token_are_taken_and_none_behind_it(plain: LlamaEngine, go_on: threading.Event):
    alone = Stream(plain, max_tokens=5, sampling=LETTERS).run().tokens
    slow = slow_from(2, plain, go_on)
    length = len(slow.tokens)
    result = plain.run(Tick([], [Run(0, 0, slow.tokens, slow.sampler)]))
    while result.late:
        result = plain.run(Tick([], [Run(0, length, [], slow.sampler)]))
    first = [*result.tokens[0]]
    result = plain.run(Tick([], [Run(0, length, [*first, *alone[1:4]], slow.sampler, draft_tokens=3)]))
    # Whether the tick waits for the token before the slow one is a matter of time.
    taken = [*first, *result.tokens[0]]
    assert taken in (alone[:1], alone[:2])
    assert result.late == {0}
    assert llama_cpp.llama_memory_seq_pos_max(plain._model.memory, 0) == length + len(taken) - 1
    go_on.set()
    assert slow.sampler.step.ended.wait(60)
    result = plain.run(Tick([], [Run(0, length + len(taken), [], slow.sampler)]))
    assert result.tokens == [alone[len(taken) : len(taken) + 1]]


def test_the_prompt_is_told_as_text_where_that_is_wanted(plain: LlamaEngine):
    turns = (ChatTurn("user", "hé"),)
    told = plain.prepare(Generate("t", turns, wants_prompt=True)).text
    assert told.endswith("<|im_start|>user\nhé<|im_end|>\n<|im_start|>assistant\n")
    assert plain.prepare(Generate("t", turns)).text == ""


def test_a_context_comes_before_the_tokens_of_the_turns(plain: LlamaEngine):
    turns = (ChatTurn("user", "Go on. <|im_end|>"),)
    alone = list(plain.prepare(Generate("t", turns)).tokens)
    assert list(plain.prepare(Generate("t", turns, context=(5, 6, 7))).tokens) == [5, 6, 7, *alone]
    with pytest.raises(RequestError, match=r"^context\[1\]: expected a token id from 0 to 49151, got 49152$"):
        plain.prepare(Generate("t", turns, context=(5, 49152)))
    with pytest.raises(RequestError, match=rf"^prompt: expected at most {N_CTX - 1} tokens, got "):
        plain.prepare(Generate("t", turns, context=(5,) * N_CTX))


# -- tools -----------------------------------------------------------------------------------------------------------

CITY = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]}
SUM = {"type": "object", "properties": {"a": {"$ref": "#/$defs/n"}}, "required": ["a"], "$defs": {"n": {"enum": [1]}}}
TOOLS = (Tool("weather", "Tells the weather.", json.dumps(CITY)), Tool("add", "Adds.", json.dumps(SUM)))
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'


def calls(text: str) -> list[dict]:
    """The calls in ``text``, each checked against its tool's schema."""
    found = [json.loads(part.split("</tool_call>")[0]) for part in text.split("<tool_call>")[1:]]
    for call in found:
        assert list(call) == ["name", "arguments"]
        allowed = [{"city": "Paris"}, {"city": "Rome"}] if call["name"] == "weather" else [{"a": 1}]
        assert call["name"] in ("weather", "add")
        assert call["arguments"] in allowed
    return found


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.5, top_k=0, top_p=1.0, min_p=0.0, seed=3)])
@pytest.mark.parametrize("prompt", [(ChatTurn("user", "Is it warm in Rome?"),), STORY, TokenIds((1, 2, 3))])
def test_a_call_that_has_to_be_is_all_of_the_answer(plain: LlamaEngine, sampling: Sampling, prompt):
    stream = Stream(
        plain, prompt, max_tokens=150, sampling=sampling, tools=TOOLS, must_call=True, parallel_calls=False
    ).run()
    assert len(calls(stream.text)) == 1
    assert stream.text.lstrip().startswith("<tool_call>")
    assert stream.text.endswith("</tool_call>")
    assert stream.ended


def test_a_text_that_is_continued_comes_before_a_call_with_all_of_its_marks():
    source = "{# >>>${recipient} #}{% if tools %}{% endif %}{{ messages[-1].content }}|>>>"
    made = load(
        Config(n_ctx=N_CTX, parallel=2, threads=1, weights="as-is"), lambda _fraction: True, chat_template=source
    )
    turns = (ChatTurn("user", "Is it warm in Rome?"), ChatTurn("assistant", "I'll ask: "))
    fields = {"max_tokens": 60, "tools": TOOLS, "parallel_calls": False}
    called = Stream(made, turns, must_call=True, **fields).run()
    assert called.ended
    assert called.text.lstrip().startswith((">>>weather\n", ">>>add\n"))
    # What a text has is free, be it that of a call.
    free = made.prepare(Generate("t", turns, **fields))
    assert isinstance(free.sampler, Sampler)
    assert free.sampler.constraint is None
    begun = made.prepare(Generate("t", turns[:1], **fields))
    assert isinstance(begun.sampler, Sampler)
    assert begun.sampler.constraint is not None
    made.close()


def say(engine: LlamaEngine, script: str, **fields) -> tuple[str, bool]:
    """The text of a model that wants to write ``script`` and then end, and whether it may; one token at a time, the
    longest that fits, so that tokens reach over the borders of tags. Where it may not it writes what is allowed."""
    prepared = engine.prepare(Generate("t", STORY, 100, tools=TOOLS, **fields))
    pieces, text = engine._model.pieces, b""
    (end, *_) = engine.end_tokens
    for _ in range(100):
        logits = np.zeros(len(pieces), np.float32)
        rest = script.encode()[len(text) :] if script.encode().startswith(text) else b""
        wanted = [token for token, piece in enumerate(pieces) if piece and rest.startswith(piece)]
        for token in wanted:
            logits[token] = 10 + len(pieces[token])
        logits[end] = 5
        token = prepared.sampler.sample(logits, Candidates(len(pieces)))
        if token in engine.end_tokens:
            return text.decode(), True
        text += pieces[token]
    return text.decode(), False


@pytest.mark.parametrize(
    "script",
    [
        "No tool helps here; <tool_cal is no tag, nor is </tool_call>.",
        CALL,
        f"Let me see.{CALL}",
        f"Let me see.\n{CALL}{CALL}\n{CALL}\n",
        CALL.replace("\n", ""),
        CALL.replace("\n", "\n\n"),
    ],
)
def test_text_and_calls_that_are_right_are_let_through(plain: LlamaEngine, script: str):
    assert say(plain, script) == (script, True)


@pytest.mark.parametrize(
    ("script", "kept"),
    [
        ('Hm.<tool_call>", and so on', "Hm.<tool_call>"),
        ("<tool_call></tool_call>", "<tool_call>"),
        ('<tool_call>\n{"name": "wealth', '<tool_call>\n{"name": "we'),
        (CALL.replace("Rome", "Roma"), '<tool_call>\n{"name": "weather", "arguments": {"city": "Rom'),
        (f"{CALL} That was it.", CALL),
        (f"{CALL}\n<tool_call>>>>", f"{CALL}\n<tool_call>"),
    ],
)
def test_a_call_that_goes_wrong_is_kept_to_the_grammar(plain: LlamaEngine, script: str, kept: str):
    text, ended = say(plain, script)
    assert text.startswith(kept)
    assert not text.startswith(script)
    assert ended
    assert calls(text)


def test_a_change_keeps_waiting_for_the_tag(plain: LlamaEngine):
    stream = Stream(plain, max_tokens=100, tools=TOOLS).run(2)
    tag = plain.answer(Tokenize("<tool_call>", begins=False, special=False)).ids
    for token in tag:
        stream.change(sampling=Sampling(logit_bias=((token, 100.0),)))
        stream.run(1)
    assert stream.tokens[2:] == list(tag)
    stream.change(sampling=Sampling(logit_bias=tuple((token, 100.0) for token in plain.end_tokens)))
    assert len(calls(stream.run().text)) == 1
    assert stream.ended


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"tools": TOOLS, "sampling": Sampling(grammar=gbnf('root ::= "a"'))},
            "tools: expected to be absent where grammar is given",
        ),
        (
            {
                "tools": TOOLS,
                "sampling": Sampling(grammar=Grammar(Syntax.JSON_SCHEMA, "{}", "guided_json")),
                "must_call": True,
            },
            "tools: expected to be absent where guided_json is given",
        ),
        ({"must_call": True}, "tools: expected at least one"),
    ],
)
def test_tools_that_contradict_the_rest_are_refused(plain: LlamaEngine, fields: dict, said: str):
    with pytest.raises(RequestError, match=said) as caught:
        Stream(plain, **fields)
    assert caught.value.fault is Fault.BAD_REQUEST


def schema_of(**properties: object) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [*properties]}


BEYOND_GRAMMARS: list[tuple[dict[str, Any], str]] = [
    (schema_of(tags={"enum": [["a"]], "uniqueItems": True}), "uniqueItems"),
    (schema_of(none={"not": {}}), "not"),
    (schema_of(x={"type": "string", "pattern": "^(?!a)"}), "tools"),
    (schema_of(x={"$ref": "https://example.com/x.json"}), "$ref"),
    (schema_of(x={"$ref": "#/$defs/none"}), "tools"),
    (schema_of(x={"type": "any"}), "type"),
    (functools.reduce(lambda inner, _: schema_of(x=inner), range(80), schema_of()), "levels"),
    ({"if": {}, "required": True}, "if"),
]


@pytest.mark.parametrize(("schema", "named"), BEYOND_GRAMMARS)
def test_one_tool_whose_schema_no_grammar_holds_locks_nobody_out(
    plain: LlamaEngine, schema: dict[str, Any], named: str, caplog: pytest.LogCaptureFixture
):
    name = f"t{len(json.dumps(schema))}"
    tools = (*TOOLS, Tool(name, "", json.dumps(schema)))
    for _ in range(2):
        plain.prepare(Generate("t", STORY, 9, tools=tools))
    assert [name in line for line in caplog.messages] == [True], caplog.messages
    # The other tools are still followed.
    stream = Stream(plain, STORY, max_tokens=150, tools=tools[:2], must_call=True, parallel_calls=False).run()
    assert len(calls(stream.text)) == 1
    with pytest.raises(RequestError, match=re.escape(named)):
        plain.prepare(Generate("t", STORY, 9, tools=(*TOOLS, Tool(name, "", json.dumps(schema), strict=True))))


def test_what_a_grammar_holds_of_a_loose_tool_is_enforced(plain: LlamaEngine):
    tags = {"type": "array", "items": {"enum": ["a"]}, "minItems": 1, "maxItems": 1, "uniqueItems": True}
    tool = Tool("tag", "", json.dumps(schema_of(tags=tags, days={"type": "string", "pattern": "^(?=1)2$"})))
    broken = {"type": "boolean", "$ref": "#/none"}
    outline = Tool("mark", "", json.dumps(schema_of(sure={"type": "boolean"}, broken=broken)))
    for one, key, values in (tool, "tags", [["a"]]), (outline, "sure", [True, False]):
        stream = Stream(plain, STORY, max_tokens=200, tools=(one,), must_call=True, parallel_calls=False)
        arguments = json.loads(stream.run().text.split("<tool_call>")[1].split("</tool_call>")[0])["arguments"]
        assert arguments[key] in values


def test_the_tags_of_calls_are_shown_though_they_are_control_tokens(plain: LlamaEngine, monkeypatch):
    (token,) = plain.answer(Tokenize("<repo_name>")).ids[-1:]
    assert plain._model.pieces[token] == b""
    monkeypatch.setattr(plain._model, "pieces", list(plain._model.pieces))
    plain._model.show(ToolForm(("<repo_name>", Slot.NAME, Slot.ARGUMENTS)))
    assert plain._model.pieces[token] == b"<repo_name>"


# -- prompts of tokens, and questions about them -----------------------------------------------------------------------


def test_a_prompt_of_tokens_is_used_as_it_is(plain: LlamaEngine):
    ids = tuple(plain.answer(Tokenize(STORY)).ids)
    assert plain.prepare(Generate("t", TokenIds(ids))).tokens == ids
    assert Stream(plain, TokenIds(ids), max_tokens=5).run().tokens == Stream(plain, max_tokens=5).run().tokens


def test_a_prompt_of_texts_and_tokens_has_one_after_another(plain: LlamaEngine):
    first, second = (
        tuple(plain.answer(Tokenize(text, begins=False, special=False)).ids) for text in ("Once upon", " a time")
    )
    for parts in ((TokenIds(first), " a time"), ("Once upon", TokenIds(second))):
        assert tuple(plain.prepare(Generate("t", MixedText(parts))).tokens) == first + second
    with pytest.raises(RequestError, match=r"^prompt\[0\]: expected a token id"):
        plain.prepare(Generate("t", MixedText(("Once", TokenIds((2**30,))))))


@pytest.mark.parametrize("wrong", [-1, 49152, 2**40])
def test_token_ids_beyond_the_vocabulary_are_refused(pooled: LlamaEngine, wrong: int):
    expected = f"expected a token id from 0 to 49151, got {wrong}"
    for call in (
        lambda: pooled.prepare(Generate("t", TokenIds((1, 2, wrong)))),
        lambda: pooled.prepare(Generate("t", "Once"), generated=(1, 2, wrong)),
        lambda: pooled.answer(Detokenize((1, 2, wrong))),
        lambda: pooled.embed(Embed((TokenIds((1, 2, wrong)),)), no_pause),
    ):
        with pytest.raises(RequestError, match=rf"^(prompt|generated|tokens|input\[0\])\[2\]: {expected}$") as caught:
            call()
        assert caught.value.fault is Fault.BAD_REQUEST


def test_an_empty_text_without_a_start_token_has_an_empty_answer(plain: LlamaEngine):
    prepared = plain.prepare(Generate("t", "", max_tokens=5))
    assert (list(prepared.tokens), prepared.max_tokens) == ([], 0)


def test_an_empty_prompt_of_tokens_is_refused(plain: LlamaEngine):
    with pytest.raises(RequestError, match="prompt: expected at least one token"):
        plain.prepare(Generate("t", TokenIds(())))


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("text", ["", "Hello, wörld 🙂", "<|im_start|>user\n"])
def test_tokens_and_text_are_each_others_answer(plain: LlamaEngine, text: str, special: bool):
    tokenized = plain.answer(Tokenize(text, special=special))
    assert isinstance(tokenized, Tokenized)
    assert b"".join(tokenized.pieces).decode() == text
    assert plain.answer(Detokenize(tuple(tokenized.ids))) == Detokenized(text)


def test_control_tokens_are_plain_text_unless_asked_for(plain: LlamaEngine):
    lengths = [len(plain.answer(Tokenize("<|im_start|>", special=special)).ids) for special in (True, False)]
    assert lengths[0] == 1 < lengths[1]


def test_a_part_of_a_character_is_replaced(plain: LlamaEngine):
    ids = plain.answer(Tokenize("🙂", begins=False, special=False)).ids
    assert len(ids) > 1
    assert plain.answer(Detokenize(tuple(ids[:1]))) == Detokenized("\ufffd")


def test_the_model_is_described(plain: LlamaEngine):
    info = plain.info
    assert (info.name, info.architecture, info.quantization) == (plain.name, "llama", "Q4_1")
    assert (info.context_tokens, info.training_tokens) == (N_CTX, 8192)
    assert (info.vocabulary, info.embedding_length) == (49152, 576)
    assert (info.bos, info.eos) == ("<|im_start|>", "<|im_end|>")
    assert 130e6 < info.parameters < 140e6
    assert 90e6 < info.size_bytes < 100e6
    assert info.chat_template is not None
    assert "<|im_start|>" in info.chat_template


# -- embeddings ------------------------------------------------------------------------------------------------------


def test_vectors_are_of_unit_length_and_closer_for_what_is_alike(pooled: LlamaEngine):
    texts = ("The cat sleeps on the sofa.", "A kitten naps on the couch.", "Quarterly revenue rose by nine percent.")
    answer = pooled.embed(Embed((*texts, texts[0])), no_pause)
    assert answer.prompt_tokens == sum(len(pooled.answer(Tokenize(text)).ids) for text in (*texts, texts[0]))
    vectors = np.array(answer.vectors)
    assert vectors.shape == (4, pooled.info.embedding_length)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    assert np.allclose(vectors[0], vectors[3], atol=1e-3)
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2] + 0.05
    ids = TokenIds(tuple(pooled.answer(Tokenize(texts[1])).ids))
    assert np.allclose(pooled.embed(Embed((ids,)), no_pause).vectors, vectors[1], atol=1e-3)


def test_raw_vectors_are_the_same_before_their_length_is_taken_away(pooled: LlamaEngine):
    texts = ("The cat sleeps on the sofa.", "A kitten naps on the couch.")
    raw, unit = (np.array(pooled.embed(Embed(texts, raw=raw), no_pause).vectors) for raw in (True, False))
    lengths = np.linalg.norm(raw, axis=1, keepdims=True)
    assert (abs(lengths - 1) > 0.1).all()
    assert np.allclose(raw / lengths, unit, atol=1e-3)


def test_embeddings_between_ticks_leave_the_streams_as_they_are(plain: LlamaEngine, pooled: LlamaEngine):
    alone = Stream(plain, max_tokens=24, logprobs=2).run()
    stream = Stream(pooled, max_tokens=24, logprobs=2)
    for _ in range(3):
        stream.run(8)
        pooled.embed(Embed(("Something else.",)), no_pause)
    assert stream.tokens == alone.tokens
    assert stream.logprobs == alone.logprobs


def test_embeddings_take_no_room_from_the_streams(pooled: LlamaEngine):
    text = Stream(pooled, max_tokens=8).run().text
    stream = Stream(pooled, max_tokens=8).run(4)
    filler = Run(1, 0, [1] * (N_CTX - 30), None)
    pooled.run(Tick([Release(1)], [filler]))
    alone = pooled.embed(Embed((TokenIds((5,) * 40),)), no_pause)
    assert stream.run().text == text
    pooled.run(Tick(CLEAR, []))
    assert pooled.embed(Embed((TokenIds((5,) * 40),)), no_pause) == alone


def test_streams_go_on_while_texts_are_computed(plain: LlamaEngine, pooled: LlamaEngine):
    alone = Stream(plain, max_tokens=24, logprobs=2).run()
    texts = Embed((TokenIds(tuple(range(100, 600))), TokenIds((7, 8, 9)), TokenIds((10, 11))))
    vectors = pooled.embed(texts, no_pause).vectors
    stream = Stream(pooled, max_tokens=24, logprobs=2)
    between: list[int] = []

    def tick() -> None:
        between.append(1)
        if len(between) <= 12:
            stream.run(1)

    assert pooled.embed(texts, tick).vectors == vectors
    assert len(between) > 12
    stream.run()
    assert stream.tokens == alone.tokens
    assert stream.logprobs == alone.logprobs


def test_what_a_pause_raises_ends_the_embedding_and_harms_no_other(pooled: LlamaEngine):
    texts = Embed((TokenIds(tuple(range(100, 600))),))
    vectors = pooled.embed(texts, no_pause).vectors

    def fail() -> None:
        raise EngineFailure("told to")

    with pytest.raises(EngineFailure):
        pooled.embed(texts, fail)
    assert pooled.embed(texts, no_pause).vectors == vectors


def test_texts_have_the_same_vectors_together_as_alone(pooled: LlamaEngine):
    texts = [TokenIds(tuple(range(start, start + length))) for start, length in ((9, 1), (50, 300), (400, 3), (7, 300))]
    # More than sequences, and long ones beside short ones.
    which = [0, 1, 2, 3, *[0, 2] * 40, 3, 1]
    together = np.array(pooled.embed(Embed(tuple(texts[one] for one in which)), no_pause).vectors)
    alone = np.array([pooled.embed(Embed((text,)), no_pause).vectors[0] for text in texts])
    likeness = (together * alone[which]).sum(axis=1)
    assert likeness.min() > 0.999


@pytest.mark.parametrize(
    ("inputs", "fault", "said"),
    [
        (("fine", ""), Fault.BAD_REQUEST, "^input: expected at least one token, got none$"),
        ((TokenIds((1,) * 513),), Fault.CONTEXT_EXCEEDED, "^input: expected at most 512 tokens, got 513$"),
    ],
)
def test_inputs_without_tokens_or_with_too_many_are_refused(pooled: LlamaEngine, inputs, fault: Fault, said: str):
    with pytest.raises(RequestError, match=said) as caught:
        pooled.embed(Embed(inputs), no_pause)
    assert caught.value.fault is fault


def test_a_model_that_does_not_pool_says_so(plain: LlamaEngine):
    with pytest.raises(RequestError, match="makes no embeddings; load an embedding model, or choose --pooling mean"):
        plain.embed(Embed(("Hello",)), no_pause)


def test_a_model_that_chats_has_the_same_room_where_it_embeds_too(plain: LlamaEngine):
    made = engine(pooling="last")
    assert made.capacity == plain.capacity
    assert made.capacity.divisions
    vectors = made.embed(Embed(("Hello",)), no_pause).vectors
    made.run(Tick([Divide(0)], []))
    assert made.embed(Embed(("Hello",)), no_pause).vectors == vectors
    assert Stream(made, max_tokens=8).run().text == Stream(plain, max_tokens=8).run().text
    made.close()


# -- a context and batches of any size ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings", [{"n_ctx": 64}, {"n_ctx": 64, "parallel": 200}, {"n_batch": 8, "parallel": 8}], ids=str
)
def test_a_whole_batch_is_computed_whatever_the_settings(settings: dict):
    """llama.cpp ends the process where a batch is longer, or there are more sequences, than it made room for."""
    made = engine(**({"n_ubatch": 8} | settings))
    rows = min(made.capacity.batch_tokens, made.capacity.cells)
    assert made.run(Tick([], [Run(0, 0, [5] * rows, None)])).outcome is Outcome.DONE
    made.close()


# -- guesses -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("right", [0, 1, 3, 4])
@pytest.mark.parametrize("logprobs", [None, 1])
def test_guesses_that_are_right_are_taken_and_nothing_is_left_of_the_others(
    plain: LlamaEngine, right: int, logprobs: int | None
):
    alone = Stream(plain, max_tokens=12).run()
    stream = Stream(plain, max_tokens=12).run(1)
    (wrong,) = plain.answer(Tokenize("@", begins=False, special=False)).ids
    draft_tokens = [*alone.tokens[1 : 1 + right], *[wrong] * (4 - right)]
    start = len(stream.prepared.tokens)
    run = Run(0, start, [alone.tokens[0], *draft_tokens], stream.prepared.sampler, logprobs, len(draft_tokens))
    result = plain.run(Tick([], [run]))
    assert result.tokens == [alone.tokens[1 : 2 + right]]
    assert len(result.logprobs.get(0, ())) == (0 if logprobs is None else right + 1)
    assert llama_cpp.llama_memory_seq_pos_max(plain._model.memory, 0) == start + right
    last = result.tokens[0][-1]
    result = plain.run(Tick([], [Run(0, start + right + 1, [last], stream.prepared.sampler)]))
    assert result.tokens == [[alone.tokens[2 + right]]]


def test_nothing_is_taken_behind_the_end_of_an_answer(plain: LlamaEngine):
    """Though all guesses are right: the end is sampled where a bias makes it."""
    (end, *_) = plain.end_tokens
    stream = Stream(plain, sampling=Sampling(logit_bias=((end, 100.0),)))
    tokens = [*stream.prepared.tokens, end, end]
    assert plain.run(Tick([], [Run(0, 0, tokens, stream.prepared.sampler, None, 2)])).tokens == [[end]]


def test_prompts_and_streams_of_one_tick_say_what_each_says_alone():
    """In parts of their own, where the rows of a tick take several decodes."""
    made = engine(parallel=3, n_ctx=3 * 256)
    assert made.capacity.divisions == [(3, 256)]
    prompts = [STORY, "The sea is", "A bird in the hand is worth two in the bush, and"]
    alone = []
    for text in prompts:
        stream = Stream(made, text, max_tokens=8).run()
        alone.append(stream.tokens)
        made.run(Tick([Release(0)], []))
    answers: list[list[int]] = [[], [], []]
    prepared = [made.prepare(Generate("t", text, 8)) for text in prompts]
    for tick in range(10):
        # Each begins one tick after the one before.
        runs = []
        for slot, (one, answer) in enumerate(zip(prepared, answers, strict=True)):
            if slot <= tick and len(answer) < 8:
                start = len(one.tokens) + len(answer) - 1 if answer else 0
                runs.append(Run(slot, start, answer[-1:] or one.tokens, one.sampler))
        result = made.run(Tick([], runs))
        for run, tokens in zip(runs, result.tokens, strict=True):
            answers[run.slot] += tokens
    made.close()
    assert answers == alone


def test_requests_are_prepared_while_the_cells_are_divided(plain: LlamaEngine, monkeypatch: pytest.MonkeyPatch):
    """On another thread, while there is no context."""
    monkeypatch.setattr(plain._model, "context", None)
    assert plain.prepare(Generate("t", STORY, 4)).max_tokens == 4


@pytest.mark.parametrize("fails", [False, True])
def test_one_context_is_made_and_divided_if_that_is_possible(fails: bool, monkeypatch: pytest.MonkeyPatch, caplog):
    made: list[bool] = []
    init = llama_cpp.llama_init_from_model

    def counted(native, params):
        made.append(not params.kv_unified)
        return None if fails and not params.kv_unified else init(native, params)

    monkeypatch.setattr(llama_cpp, "llama_init_from_model", counted)
    loaded = engine(n_ctx=1024)
    assert made == ([True, False] if fails else [True])
    assert loaded.capacity.divisions == ([] if fails else [(2, 512)])
    assert loaded.capacity.cells == 1024
    assert ("could not be divided into 2 parts" in caplog.text) == fails
    loaded.close()


@pytest.mark.parametrize(
    ("gpu", "layers", "share"), [(False, -1, 0), (True, -1, 31), (True, 0, 0), (True, 10, 10), (True, 9999, 31)]
)
def test_the_share_of_the_weights_in_a_gpus_memory_is_that_of_its_layers(
    plain: LlamaEngine, monkeypatch: pytest.MonkeyPatch, gpu: bool, layers: int, share: int
):
    monkeypatch.setattr(llama_cpp, "llama_supports_gpu_offload", lambda: gpu)
    monkeypatch.setattr(plain._model, "_config", Config(n_gpu_layers=layers))
    info = plain._model.info(1)
    assert info.gpu_bytes == info.size_bytes * share // 31
