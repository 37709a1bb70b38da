"""Tiny models of many architectures: each answers in a crowd as it does alone, and computes no token twice."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import llama_cpp
import numpy as np
import pytest
from engine_world import EngineWorld, no_pause
from gguf import GGUFWriter
from llama_server import LlamaServer
from tiny_models import FULL_ATTENTION, N_CTX, RECURRENT, SLIDING_WINDOW, tiny_model

from umaserve.core.errors import ModelError, RequestError
from umaserve.core.queries import Embed
from umaserve.core.requests import TokenIds
from umaserve.dialects.llama_server.props import props
from umaserve.engine import capacity
from umaserve.engine.llama import backends
from umaserve.engine.llama.batch import Batch
from umaserve.engine.llama.cells import MARGIN, saved_bytes
from umaserve.engine.llama.model import KEPT_SEQUENCES, KEPT_STATES, Model
from umaserve.kvcache.checkpoints import BEFORE_END
from umaserve.scheduler.policy import policy
from umaserve.sessions.engine_api import Run
from umaserve.sessions.speculation import Repetition
from umaserve.settings.daemon import Config

LENGTHS = (70, 13, 150, 40)
_RANDOM = random.Random(5)
PROMPTS = [[_RANDOM.randrange(3, 69) for _ in range(length)] for length in LENGTHS]
NEXT_TURN = [5, 6, 7, 8, 9, 10, 11]
UNCUT = SLIDING_WINDOW | RECURRENT
KEEPING_STATES = ("bailingmoe3", "deepseek4", "nemotron_h", "qwen35")
"""Some with recurrent states of which llama.cpp keeps earlier ones."""
SOME_UNCUT = ("deepseek4", "gemma3", "gpt-oss", "granitehybrid", "lfm2", "mamba", "qwen35", "rwkv7")

Make = Callable[..., EngineWorld]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    directory = tmp_path_factory.mktemp("models")

    def model(architecture: str) -> str:
        path = directory / f"{architecture}.gguf"
        return str(path) if path.exists() else tiny_model(path, architecture)

    return model


@pytest.fixture
def world(models: Callable[[str], str]) -> Iterator[Make]:
    made = []

    def make(architecture: str, **settings: object) -> EngineWorld:
        # Other types of cells and other attention round otherwise by where a sequence lies.
        exact = {"kv_type": "f32", "flash_attn": "off", "host_cache_bytes": 16 << 20}
        made.append(EngineWorld(models(architecture), **(exact | settings)))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.mark.parametrize("architecture", FULL_ATTENTION | UNCUT)
def test_a_crowd_gets_what_each_gets_alone_and_what_is_known_is_reused(
    world: Make, caplog: pytest.LogCaptureFixture, architecture: str
):
    plain, crowded = world(architecture), world(architecture)
    alone = [plain.answer(prompt) for prompt in PROMPTS]
    crowd = [crowded.ask(prompt) for prompt in PROMPTS]
    crowded.finish()
    assert [answer.tokens for answer in crowd] == [answer.tokens for answer in alone]
    assert all(len(answer.tokens) == 12 and answer.reused == 0 for answer in alone)
    longest, tokens = PROMPTS[2], list(alone[2].tokens)
    again = plain.answer(longest)
    assert again.tokens == tokens
    assert again.reused == len(longest) - (BEFORE_END if architecture in UNCUT else 1)
    following = [*longest, *tokens, *NEXT_TURN]
    turn = plain.answer(following)
    # All but the answer's last token, which nobody has computed.
    assert turn.reused == len(longest) + len(tokens) - 1
    assert turn.tokens == world(architecture).answer(following).tokens
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


@pytest.mark.skipif("LLAMA_SERVER" not in os.environ, reason="LLAMA_SERVER names no llama-server to compare with")
@pytest.mark.parametrize("architecture", FULL_ATTENTION | UNCUT)
def test_the_answers_are_llama_servers_own(
    world: Make, models: Callable[[str], str], tmp_path: Path, architecture: str
):
    server = LlamaServer(os.environ["LLAMA_SERVER"], models(architecture), tmp_path / "log")
    try:
        alone = [server.answer(prompt)[0] for prompt in PROMPTS]
        with ThreadPoolExecutor(len(PROMPTS)) as together:
            crowd = list(together.map(lambda prompt: server.answer(prompt, reuse=False)[0], PROMPTS))
        again = server.answer(PROMPTS[2])
        following = [*PROMPTS[2], *again[0], *NEXT_TURN]
        turn = server.answer(following)
    finally:
        server.close()
    plain, crowded = world(architecture), world(architecture)
    assert [plain.answer(prompt).tokens for prompt in PROMPTS] == alone
    asked = [crowded.ask(prompt) for prompt in PROMPTS]
    crowded.finish()
    assert [answer.tokens for answer in asked] == crowd
    mine = plain.answer(PROMPTS[2])
    assert mine.tokens == again[0]
    assert mine.reused >= again[1] - BEFORE_END
    mine = plain.answer(following)
    assert (mine.tokens, mine.reused >= turn[1]) == (turn[0], True)


# -- sequences that can't be cut ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", SOME_UNCUT)
def test_a_system_prompt_is_reused_from_the_third_conversation_on(world: Make, architecture: str):
    plain = world(architecture)
    asked = [[*PROMPTS[2], *[letter] * 30] for letter in (20, 30, 40, 50)]
    answers = [plain.answer(prompt) for prompt in asked]
    assert [answer.reused for answer in answers] == [0, 0, 150, 150]
    assert [answer.tokens for answer in answers] == [world(architecture).answer(prompt).tokens for prompt in asked]


@pytest.mark.parametrize("architecture", SOME_UNCUT)
def test_the_same_prompt_at_the_same_time_is_computed_once(world: Make, architecture: str):
    plain = world(architecture)
    answers = [plain.ask(PROMPTS[2]) for _ in range(4)]
    plain.finish()
    assert sorted(answer.reused for answer in answers) == [0, *[len(PROMPTS[2]) - BEFORE_END] * 3]
    assert len({tuple(answer.tokens) for answer in answers}) == 1


@pytest.mark.parametrize("architecture", SOME_UNCUT)
def test_who_is_preempted_continues_without_computing_again(world: Make, architecture: str):
    crowded = world(architecture, n_ctx=512)
    for prompt in PROMPTS * 5:
        crowded.answer(prompt, 4)  # So short an answer is expected again.
    expected = [world(architecture).answer(prompt, 200).tokens for prompt in PROMPTS]
    answers = [crowded.ask(prompt, 200) for prompt in PROMPTS]
    crowded.finish()
    metrics = crowded.scheduler.metrics
    assert metrics.preemptions > 0
    # The token that was sampled last is computed in any case.
    assert metrics.recomputed_tokens <= metrics.preemptions
    assert [answer.tokens for answer in answers] == expected


@pytest.mark.parametrize("architecture", ["deepseek4", "gemma3", "qwen35"])
def test_a_saved_sequence_of_any_length_takes_hardly_less_than_its_place_has(
    models: Callable[[str], str], architecture: str
):
    model, batch = Model(models(architecture), Config(n_ctx=N_CTX, threads=1), lambda _fraction: True), Batch(2)
    place = saved_bytes(model, batch)
    unused = []
    for length in range(1, 300):
        batch.fill([Run(0, length - 1, [length % 60 + 3], None)])
        assert llama_cpp.llama_decode(model.context, batch.native) == 0
        size = llama_cpp.llama_state_seq_get_size(model.context, 0) + 2 * MARGIN
        unused.append((place.of(length) - size) / size)
    model.free()
    assert 0 <= min(unused) <= max(unused) < 0.02


@pytest.mark.parametrize("architecture", ["exaone4", "gemma3", "llama4", *KEEPING_STATES])
def test_draft_tokens_leave_what_can_not_be_cut_as_it_was(
    world: Make, architecture: str, monkeypatch: pytest.MonkeyPatch
):
    # Otherwise as many as this box's times justify, which may be none.
    monkeypatch.setattr(policy, "_draft_tokens", lambda _snapshot, streams, _target: policy._likeliest(streams))
    prompt = PROMPTS[1] * 6
    expected = world(architecture, speculation=False).answer(prompt, 120).tokens

    def every_fourth_wrong(repetition: Repetition, limit: int) -> list[int]:
        # What repeats itself depends on how the processor rounds.
        first = len(repetition._answer)
        return [token ^ (place % 4 == 3) for place, token in enumerate(expected[first : first + limit], first)]

    monkeypatch.setattr(Repetition, "draft_tokens", every_fourth_wrong)
    drafting = world(architecture)
    answer = drafting.answer(prompt, 120)
    metrics = drafting.scheduler.metrics
    assert metrics.draft_tokens > metrics.draft_tokens_accepted > 0
    assert answer.tokens == expected
    monkeypatch.undo()
    following = [*prompt, *answer.tokens, *NEXT_TURN]
    turn = drafting.answer(following)
    assert (turn.reused, turn.tokens) == (len(prompt) + 119, world(architecture).answer(following).tokens)


def test_earlier_states_are_not_kept_where_they_take_too_much(world: Make, monkeypatch: pytest.MonkeyPatch):
    assert world("qwen35").engine.capacity.max_draft_tokens == KEPT_STATES
    monkeypatch.setattr(capacity, "MAX_KEPT_STATES_BYTES", 1000)
    without = world("qwen35").engine
    assert without.capacity.max_draft_tokens == 0
    assert without.info.lacks[-1].startswith(
        "draft tokens are off: the states for rolling back rejected ones would take"
    )


@pytest.mark.parametrize("architecture", RECURRENT)
def test_there_are_no_more_recurrent_states_than_slots(world: Make, architecture: str):
    assert world(architecture).engine.capacity.sequences == 4


def test_what_can_be_cut_has_sequences_to_keep(world: Make):
    assert world("llama").engine.capacity.sequences == 4 + KEPT_SEQUENCES


@pytest.mark.parametrize(
    ("architecture", "divided"),
    [("llama", True), ("gemma3", True), ("mamba", False), ("deepseek32", False), ("minimax-m3", False)],
)
def test_cells_are_divided_where_a_sequence_can_be_moved_between_parts(world: Make, architecture: str, divided: bool):
    assert bool(world(architecture).engine.capacity.divisions) == divided


@pytest.mark.parametrize("architecture", ["exaone4", "gemma3", "gpt-oss", "llama4"])
def test_who_outgrows_its_part_goes_on_in_cells_of_all_and_so_do_the_others(
    world: Make, architecture: str, monkeypatch: pytest.MonkeyPatch
):
    crowded = world(architecture, n_ctx=1024)
    assert crowded.engine.capacity.divisions[0] == (4, 256)
    expected = [world(architecture, n_ctx=1024).answer(prompt, 120).tokens for prompt in PROMPTS]
    divided: list[int] = []
    divide = Model.divide
    monkeypatch.setattr(Model, "divide", lambda model, parts: (divided.append(parts), divide(model, parts)))
    answers = [crowded.ask(prompt, 120) for prompt in PROMPTS]
    crowded.finish()
    assert divided
    assert [answer.tokens for answer in answers] == expected


# -- what a model can't do ---------------------------------------------------------------------------------------------


def test_what_a_model_lacks_is_said_once_in_the_log_and_in_props(world: Make, caplog: pytest.LogCaptureFixture):
    assert world("llama").engine.info.lacks == []
    window = world("gemma3").engine.info.lacks
    assert [sentence.partition(":")[0] for sentence in window] == ["cached prefixes are reused only up to a checkpoint"]
    caplog.clear()
    info = world("mamba", host_cache_bytes=0).engine.info
    assert [
        record.getMessage()
        for record in caplog.records
        if record.name != backends.log.name and record.levelname == "WARNING"
    ] == info.lacks
    assert json.loads(props(info))["lacks"] == [
        "cached prefixes are not reused: the model's recurrent state can't be truncated, and --host-cache-bytes is 0",
        "draft tokens are off: the model's recurrent state can't roll back rejected ones",
    ]


def test_a_draft_model_is_not_loaded_for_a_model_that_takes_no_draft_token_back(
    world: Make, models: Callable[[str], str]
):
    engine = world("mamba", draft_model=models("llama")).engine
    assert not engine.capacity.drafts
    assert "and the draft model is not loaded" in engine.info.lacks[1]


@pytest.mark.parametrize(("architecture", "draft"), [("gemma3", "gemma3"), ("llama", "gemma3"), ("gemma3", "llama")])
def test_a_draft_model_may_have_a_sliding_window(
    world: Make, models: Callable[[str], str], architecture: str, draft: str
):
    drafting = world(architecture, draft_model=models(draft), host_cache_bytes=0)
    # Kept sequences have the first slots, so the last of these have slots beyond those of the draft model alone.
    answers = [drafting.answer([*prompt, letter], 30) for letter in range(3, 7) for prompt in PROMPTS]
    assert drafting.scheduler.metrics.draft_tokens > 0
    alone = world(architecture, speculation=False)
    expected = [alone.answer([*prompt, letter], 30).tokens for letter in range(3, 7) for prompt in PROMPTS]
    assert [answer.tokens for answer in answers] == expected


@pytest.mark.parametrize(
    ("architecture", "kind"),
    [("t5", "an encoder-decoder"), *((name, "a diffusion") for name in ("dream", "llada", "llada-moe", "rnd1"))],
)
def test_what_does_not_go_on_with_a_text_is_refused_by_its_kind(world: Make, architecture: str, kind: str):
    with pytest.raises(ModelError, match=rf"\.gguf: {kind} model \({architecture}\), which .*: choose a decoder-only"):
        world(architecture)


@pytest.mark.parametrize(
    ("kind", "advice"),
    [("adapter", "a LoRA adapter: give it with --lora"), ("mmproj", "a projector: give it with --mmproj")],
)
def test_a_file_of_another_kind_is_refused_with_where_it_belongs(tmp_path: Path, kind: str, advice: str):
    writer = GGUFWriter(tmp_path / "other.gguf", "llama")
    writer.add_type(kind)
    writer.add_tensor("some", np.zeros(4, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelError, match=f"other.gguf: {advice}"):
        EngineWorld(str(tmp_path / "other.gguf"))


def test_a_vocabulary_without_weights_is_refused(tmp_path: Path):
    writer = GGUFWriter(tmp_path / "vocabulary.gguf", "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list(["a", "b"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelError, match="it has no weights, only a vocabulary"):
        EngineWorld(str(tmp_path / "vocabulary.gguf"))


# -- embeddings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ["llama", "gemma3", "lfm2", "mamba"])
def test_a_long_text_whose_last_token_counts_is_computed_in_parts(world: Make, architecture: str):
    whole, parts = (
        world(architecture, pooling="last", n_batch=n, n_ubatch=n, speculation=False).engine for n in (256, 32)
    )
    query = Embed((TokenIds(PROMPTS[2]), TokenIds(PROMPTS[1])))
    pairs = zip(whole.embed(query, no_pause).vectors, parts.embed(query, no_pause).vectors, strict=True)
    assert all(np.allclose(one, other, atol=1e-5) for one, other in pairs)


@pytest.mark.parametrize(("architecture", "pooling"), [("llama", "mean"), ("bert", "model"), ("bert", "last")])
def test_a_text_that_must_be_computed_at_once_is_refused_with_what_to_set(world: Make, architecture: str, pooling: str):
    engine = world(architecture, pooling=pooling, n_batch=32, n_ubatch=32).engine
    with pytest.raises(RequestError, match=r"at most 32 tokens, got 150: .* more --n-batch and --n-ubatch"):
        engine.embed(Embed((TokenIds(PROMPTS[2]),)), no_pause)


@pytest.mark.parametrize(("kind", "divisions"), [("longrope", [(2, 512)]), ("yarn", [(4, 256), (2, 512)])])
def test_parts_lie_on_the_same_side_of_the_original_context(
    tmp_path: Path, kind: str, divisions: list[tuple[int, int]]
):
    """Else llama.cpp would take other rotary factors in parts than in shared cells."""
    scaling = {"rope__scaling__type": kind, "rope__scaling__original_context_length": 400}
    plain = EngineWorld(tiny_model(tmp_path / "model.gguf", "phi3", **scaling), n_ctx=1024, parallel=4)
    try:
        assert plain.engine.capacity.divisions == divisions
    finally:
        plain.close()


def test_a_model_that_takes_one_type_of_k_and_v_only_names_the_settings(models: Callable[[str], str]) -> None:
    config = Config(n_ctx=256, parallel=1, threads=1, kv_type_k="f32")
    with pytest.raises(ModelError, match="with K as f32 and V as f16: set --kv-type-k and --kv-type-v to one type"):
        Model(models("deepseek2"), config, lambda _fraction: True)
    Model(models("llama"), config, lambda _fraction: True).free()
