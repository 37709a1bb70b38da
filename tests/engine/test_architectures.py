"""Tiny models of many architectures: each answers in a crowd as it does alone, and computes no token twice."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from engine_world import EngineWorld
from llama_server import LlamaServer
from tiny_models import FULL_ATTENTION, RECURRENT, SLIDING_WINDOW, tiny_model

from umaserve.engine.model import KEPT_SEQUENCES
from umaserve.serving.slots import BEFORE_END

LENGTHS = (70, 13, 150, 40)
_RANDOM = random.Random(5)
PROMPTS = [[_RANDOM.randrange(3, 69) for _ in range(length)] for length in LENGTHS]
NEXT_TURN = [5, 6, 7, 8, 9, 10, 11]
UNCUT = SLIDING_WINDOW | RECURRENT
SOME_UNCUT = ("gemma3", "gpt-oss", "granitehybrid", "lfm2", "mamba", "qwen35", "rwkv7")

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
        exact = {"kv_type": "f32", "flash_attn": "off"}
        made.append(EngineWorld(models(architecture), **(exact | settings)))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.mark.parametrize("architecture", FULL_ATTENTION | UNCUT)
def test_a_crowd_gets_what_each_gets_alone_and_what_is_known_is_reused(world: Make, architecture: str):
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


@pytest.mark.parametrize("architecture", ["exaone4", "gemma3", "llama4"])
def test_draft_tokens_leave_a_sliding_window_as_it_was(world: Make, architecture: str):
    prompt = PROMPTS[1] * 6
    expected = world(architecture, speculation=False).answer(prompt, 120).tokens
    drafting = world(architecture)
    answer = drafting.answer(prompt, 120)
    metrics = drafting.scheduler.metrics
    assert metrics.draft_tokens > metrics.draft_tokens_accepted > 0
    assert answer.tokens == expected
    following = [*prompt, *answer.tokens, *NEXT_TURN]
    turn = drafting.answer(following)
    assert (turn.reused, turn.tokens) == (len(prompt) + 119, world(architecture).answer(following).tokens)


@pytest.mark.parametrize("architecture", RECURRENT)
def test_there_are_no_more_recurrent_states_than_slots(world: Make, architecture: str):
    assert world(architecture).engine.capacity.sequences == 4


def test_what_can_be_cut_has_sequences_to_keep(world: Make):
    assert world("llama").engine.capacity.sequences == 4 + KEPT_SEQUENCES
