"""The real model drafts for itself: what it guesses is what it would say, whatever its context held before."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import llama_cpp
import numpy as np
import pytest

from umaserve.core.errors import ModelError
from umaserve.engine.llama import drafting
from umaserve.engine.llama.batch import Batch
from umaserve.engine.llama.drafting import Drafter
from umaserve.engine.llama.model import Model, find
from umaserve.sessions.engine_api import Draft, Run
from umaserve.settings.daemon import Config

CONFIG = Config(draft_model=find(""), n_ctx=256, parallel=4, n_batch=64, n_ubatch=64, threads=2)
STORIES = (
    "Once upon a time, in a small village by the sea,",
    "The capital of France is",
    "1, 2, 3, 4, 5, 6,",
    "def add(a, b):\n    return",
)
LONG = "The old lighthouse keeper climbed the winding stairs every evening to light the lamp. " * 8


def progress(_fraction: float) -> bool:
    return True


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    config = replace(CONFIG, n_batch=CONFIG.n_ctx, n_ubatch=CONFIG.n_ctx, threads=1)
    made = Model(config.draft_model, config, progress)
    yield made
    made.free()


@pytest.fixture(scope="module")
def shared(model: Model) -> Iterator[Drafter]:
    made = Drafter(CONFIG, model, progress)
    yield made
    made.free()


@pytest.fixture
def drafter(shared: Drafter, monkeypatch: pytest.MonkeyPatch) -> Drafter:
    monkeypatch.setattr(drafting, "CATCHING_UP", CONFIG.n_batch)
    for slot in range(CONFIG.parallel):
        shared.forget(slot)
    return shared


def greedy(model: Model, sequence: Sequence[int], most: int) -> list[int]:
    """The likeliest token after ``sequence``, and so on, from the start of an empty context."""
    batch = Batch(CONFIG.n_ctx)
    llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(model.context), False)
    tokens, computed = list(sequence), 0
    while len(tokens) < len(sequence) + most:
        batch.fill([Run(0, computed, tokens[computed:], object())])
        assert llama_cpp.llama_decode(model.context, batch.native) == 0
        computed = len(tokens)
        native = llama_cpp.llama_get_logits_ith(model.context, -1)
        token = int(np.ctypeslib.as_array(native, (model.n_vocab,)).argmax())
        if token in model.end_tokens:
            break
        tokens.append(token)
    return tokens[len(sequence) :]


def draft(drafter: Drafter, *wanted: tuple[int, Sequence[int], int], threads: int = 1) -> list[list[int]]:
    """Guesses for each slot, sequence and number; between their runs are others, which want none."""
    runs = [Run(slot // 2 if slot % 2 else 9, 0, [0], None) for slot in range(2 * CONFIG.parallel)]
    drafts = []
    for slot, sequence, most in wanted:
        runs[2 * slot] = Run(slot, len(sequence) - 1, sequence[-1:], object())
        drafts.append(Draft(2 * slot, sequence, most))
    return drafter.draft(drafts, runs, threads)


def test_the_guesses_are_what_the_model_would_say(drafter: Drafter, model: Model):
    sequences = [model.tokenize(text) for text in STORIES]
    most = [5, 1, 8, 3]
    draft_tokens = draft(drafter, *zip((2, 0, 3, 1), sequences, most, strict=True))
    assert draft_tokens == [greedy(model, *one) for one in zip(sequences, most, strict=True)]
    assert [len(one) for one in draft_tokens] == most


def test_nothing_wanted_is_nothing_guessed(drafter: Drafter, model: Model):
    assert draft(drafter) == []
    assert draft(drafter, (0, model.tokenize(STORIES[0]), 0), (1, [], 3)) == [[], []]


@pytest.mark.parametrize("right", [0, 1, 4])
def test_guesses_go_on_from_whatever_was_sampled_instead(drafter: Drafter, model: Model, right: int):
    tokens = model.tokenize(STORIES[0])
    (draft_tokens,) = draft(drafter, (1, tokens, 4))
    (wrong,) = model.tokenize("!")
    after = [*tokens, *draft_tokens[:right], wrong]
    assert draft(drafter, (1, after, 4)) == [greedy(model, after, 4)]


@pytest.mark.parametrize("change", ["longer", "the same", "shorter", "another", "another beginning alike"])
def test_what_a_slot_held_before_changes_no_guess(drafter: Drafter, model: Model, change: str):
    tokens = model.tokenize(STORIES[0])
    (draft_tokens,) = draft(drafter, (1, tokens, 4))
    following = {
        "longer": [*tokens, *draft_tokens, *greedy(model, [*tokens, *draft_tokens], 3)],
        "the same": tokens,
        "shorter": tokens[:4],
        "another": model.tokenize(STORIES[1]),
        "another beginning alike": [*tokens[:5], *model.tokenize(STORIES[1])],
    }[change]
    assert draft(drafter, (1, following, 4)) == [greedy(model, following, 4)]


def test_only_what_is_new_is_computed(drafter: Drafter, model: Model, monkeypatch: pytest.MonkeyPatch):
    computed = []
    decode = llama_cpp.llama_decode
    monkeypatch.setattr(
        llama_cpp, "llama_decode", lambda context, batch: (computed.append(batch.n_tokens), decode(context, batch))[1]
    )
    first, second = (model.tokenize(text) for text in STORIES[:2])
    (draft_tokens, _) = draft(drafter, (0, first, 3), (1, second, 1))
    assert computed == [len(first) + len(second), 1, 1]
    computed.clear()
    draft(drafter, (0, [*first, *draft_tokens, first[0]], 2))
    assert computed == [2, 1]
    computed.clear()
    draft(drafter, (0, [*first, draft_tokens[0], first[0], first[1]], 1))
    assert computed == [2]


def test_an_answer_that_ends_has_no_guesses_behind_its_end(drafter: Drafter, model: Model):
    chat = "<|im_start|>user\nSay only: yes<|im_end|>\n<|im_start|>assistant\n"
    tokens, other = model.tokenize(chat), model.tokenize(STORIES[0])
    expected = greedy(model, tokens, 12)
    assert 0 < len(expected) < 12
    assert draft(drafter, (0, tokens, 12), (1, other, 12)) == [expected, greedy(model, other, 12)]


def test_a_long_prompt_is_computed_a_batch_in_each_call_and_holds_nobody_up(drafter: Drafter, model: Model):
    long, short = (model.tokenize(LONG) * 2)[:130], model.tokenize(STORIES[0])
    expected = greedy(model, short, 2)
    for _ in range(2):
        assert draft(drafter, (0, long, 3), (1, short, 2)) == [[], expected]
    assert draft(drafter, (0, long, 3), (1, short, 2)) == [greedy(model, long, 3), expected]


def test_a_slot_that_is_forgotten_begins_anew(drafter: Drafter, model: Model):
    tokens = model.tokenize(LONG)[:70]
    assert draft(drafter, (0, tokens, 3)) == [[]]
    drafter.forget(1)
    assert draft(drafter, (0, tokens, 3)) == [greedy(model, tokens, 3)]
    drafter.forget(0)
    drafter.forget(0)
    assert draft(drafter, (0, tokens, 3)) == [[]]


Crowd = tuple[list[list[int]], list[list[int]]]


@pytest.fixture(scope="module")
def crowd(model: Model) -> Crowd:
    """Prompts of which two fit into the context at once, not three, and three guesses for each."""
    prompts = [[*model.tokenize(text), *model.tokenize(LONG)][:90] for text in STORIES[:3]]
    return prompts, [greedy(model, prompt, 3) for prompt in prompts]


def filled(drafter: Drafter, slot: int, tokens: Sequence[int]) -> list[int]:
    """The guesses for a prompt that takes two calls to compute."""
    assert draft(drafter, (slot, tokens, 3)) == [[]]
    (draft_tokens,) = draft(drafter, (slot, tokens, 3))
    return draft_tokens


def test_when_the_cache_is_full_the_slots_used_longest_ago_are_forgotten(drafter: Drafter, crowd: Crowd):
    prompts, expected = crowd
    assert [filled(drafter, slot, prompts[slot]) for slot in (0, 1)] == expected[:2]
    assert draft(drafter, (0, prompts[0], 3)) == expected[:1]
    assert filled(drafter, 2, prompts[2]) == expected[2]
    assert draft(drafter, (0, prompts[0], 3)) == expected[:1]
    assert filled(drafter, 1, prompts[1]) == expected[1]


def test_of_more_than_fits_at_once_some_are_guessed_in_every_call(drafter: Drafter, crowd: Crowd):
    prompts, expected = crowd
    wanted = [(slot, prompt, 3) for slot, prompt in enumerate(prompts)]
    calls = [draft(drafter, *wanted) for _ in range(6)]
    assert calls[-2:] == [[*expected[:2], []]] * 2


def test_a_sequence_longer_than_the_context_has_no_guesses(drafter: Drafter, model: Model):
    fits = (model.tokenize(LONG) * 3)[:250]
    for _ in range(4):
        draft_tokens = draft(drafter, (0, fits, 7))
    assert [len(one) for one in draft_tokens] == [7]
    assert draft(drafter, (0, fits, 8)) == [[]]
    assert draft(drafter, (0, fits, 7)) == draft_tokens


@pytest.mark.parametrize("failing", [0, 1])
def test_a_failed_decode_costs_guesses_and_nothing_else(
    drafter: Drafter, model: Model, monkeypatch: pytest.MonkeyPatch, failing: int
):
    tokens = model.tokenize(STORIES[0])
    expected = greedy(model, tokens, 3)
    draft(drafter, (1, tokens, 3))
    decode = llama_cpp.llama_decode
    codes = [None] * failing + [-2]
    with monkeypatch.context() as patch:
        patch.setattr(
            llama_cpp, "llama_decode", lambda *args: decode(*args) if (code := codes.pop(0)) is None else code
        )
        assert draft(drafter, (0, tokens, 3)) == [expected[:failing]]
    assert draft(drafter, (0, tokens, 3), (1, tokens, 3)) == [expected, expected]


@pytest.mark.parametrize("threads", [1, 2])
def test_it_computes_with_the_threads_of_the_tick(
    drafter: Drafter, model: Model, monkeypatch: pytest.MonkeyPatch, threads: int
):
    used = []
    decode = llama_cpp.llama_decode

    def counted(context: object, batch: object) -> int:
        used.append((llama_cpp.llama_n_threads(context), llama_cpp.llama_n_threads_batch(context)))
        return decode(context, batch)

    monkeypatch.setattr(llama_cpp, "llama_decode", counted)
    draft(drafter, (0, model.tokenize(STORIES[1]), 2), threads=threads)
    assert used == [(threads, threads)] * 2


# -- models that can't draft -----------------------------------------------------------------------------------------


def fewer_tokens(main: Model) -> None:
    main.n_vocab -= 1


def another_piece(main: Model) -> None:
    main.pieces = [*main.pieces[:1000], b"other", *main.pieces[1001:]]


def another_end(main: Model) -> None:
    main.end_tokens = main.end_tokens | {1000}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (fewer_tokens, "its vocabulary has 49152 tokens, that of .* 49151; choose"),
        (another_piece, "its token 1000 is .*, in .* b'other'; choose"),
        (another_end, "other tokens end its answers"),
    ],
)
def test_a_model_of_another_vocabulary_is_refused(model: Model, change: Callable[[Model], None], expected: str):
    main = copy.copy(model)
    change(main)
    with pytest.raises(ModelError, match=f"^draft model {CONFIG.draft_model}: {expected}"):
        Drafter(CONFIG, main, progress)


@pytest.mark.parametrize("kind", ["llama_model_is_recurrent", "llama_model_is_hybrid"])
def test_a_model_that_cannot_take_tokens_back_is_refused(model: Model, monkeypatch: pytest.MonkeyPatch, kind: str):
    monkeypatch.setattr(llama_cpp, kind, lambda _native: True)
    with pytest.raises(ModelError, match="can't take tokens back"):
        Drafter(CONFIG, model, progress)


def test_a_file_that_is_missing_is_refused(model: Model):
    with pytest.raises(ModelError, match="No such file"):
        Drafter(replace(CONFIG, draft_model="/nowhere.gguf"), model, progress)
