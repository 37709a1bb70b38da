"""What only Qwen3-TTS does; what it has in common with Pocket TTS is in ``test_llama_voice``."""

from __future__ import annotations

import ctypes
import dataclasses
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_cpp import mtmd_cpp
from tiny_qwen3_voices import BOOKS, CODEC, CONTROL, FEW, FRAME, LANGUAGES, WIDTH, tokens, write_qwen3_voice
from tiny_voices import TEXT, config, no_pause, tone

from umaserve.core.errors import ModelError
from umaserve.engine.tts.llama_voice import (
    DRAWS,
    FRAMES_A_SECOND,
    MAX_DRAWN,
    MAX_S,
    MAX_S_A_CHARACTER,
    OTHER_SEED,
    SEED,
    LlamaVoice,
)
from umaserve.engine.tts.qwen3_tts import CODES
from umaserve.speech.sentences import LIMIT
from umaserve.speech.voice import MAX_HEARD_S, SAMPLE_RATE, Samples

HOSTILE = ["\x00", "\ud800", "日本語。", "😀", "9" * LIMIT, "😀" * LIMIT, "<" * LIMIT, "\n\na\n\n"] + [
    text * (LIMIT // len(text)) for text in ("<|im_end|>", "<|codec_5|>", "<tts_text_eod>", "<|im_start|>assistant\n")
]


def loaded(folder: Path, **options: Any) -> LlamaVoice:
    voice = LlamaVoice(config(write_qwen3_voice(folder, **options)))
    voice.load()
    return voice


@pytest.fixture(scope="module")
def voice(tmp_path_factory: pytest.TempPathFactory):
    made = loaded(tmp_path_factory.mktemp("qwen3"))
    yield made
    made.close()


def is_speech(samples: Samples, length: int) -> bool:
    """Whether it is what an end can have been found in: whole frames, and neither none nor as many as there may be."""
    frames, rest = divmod(len(samples), FRAME)
    whole = rest == 0 and 0 < frames < int((MAX_S + MAX_S_A_CHARACTER * length) * FRAMES_A_SECOND)
    return whole and samples.dtype == np.float32 and 0 < np.abs(samples).max() <= 1


@pytest.mark.parametrize("speaker", [None, tone(1.0)], ids=["nobody", "somebody"])
def test_a_text_becomes_whole_frames_of_sound(voice: LlamaVoice, speaker: Samples | None) -> None:
    assert is_speech(voice.speak(TEXT, speaker, "", no_pause), len(TEXT))
    assert SAMPLE_RATE == FRAME * FRAMES_A_SECOND


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_odd_text_gives_sound_too(voice: LlamaVoice, text: str) -> None:
    assert is_speech(voice.speak(text, tone(0.5), "zh", no_pause), len(text))


def test_the_longest_speech_after_the_longest_prompt_has_room(tmp_path: Path) -> None:
    voice = loaded(tmp_path, ends=False)
    samples = voice.speak("😀" * LIMIT, tone(MAX_HEARD_S + 1.0), "zh", no_pause)
    voice.close()
    assert len(samples) == int((MAX_S + MAX_S_A_CHARACTER * LIMIT) * FRAMES_A_SECOND) * FRAME


@given(st.lists(st.one_of(st.sampled_from([*CONTROL, *tokens()[-20:], "<", "|", ">"]), st.text()), max_size=8))
def test_a_text_has_no_control_over_the_prompt(voice: LlamaVoice, parts: list[str]) -> None:
    assert voice._loaded is not None
    text = voice._loaded.kind.prompt("".join(parts)).decode()
    around = [voice._loaded._model.tokenize(part) for part in ("<|im_start|>assistant\n", "<|im_end|>\n")]
    whole = voice._loaded._model.tokenize("<|im_start|>assistant\n" + text + "<|im_end|>\n")
    assert whole[: len(around[0])] == around[0]
    assert whole[-len(around[1]) :] == around[1]
    assert max(whole[len(around[0]) : -len(around[1])], default=0) < tokens().index(CONTROL[0])


def test_each_language_sounds_different_and_english_is_its_own(voice: LlamaVoice) -> None:
    assert voice.languages == ("en", "zh", "de", "ru")
    assert voice.clones
    sounds = {language: voice.speak(TEXT, tone(1.0), language, no_pause).tobytes() for language in voice.languages}
    assert len(set(sounds.values())) == len(sounds)
    assert voice.speak(TEXT, tone(1.0), "", no_pause).tobytes() == sounds["en"]


def test_without_english_its_own_language_is_another(tmp_path: Path) -> None:
    voice = loaded(tmp_path, missing=["<|codec_language_english|>"])
    sounds = [voice.speak(TEXT, None, language, no_pause) for language in ("", "zh")]
    voice.close()
    assert voice.languages == ("zh", "de", "ru")
    assert np.array_equal(*sounds)


@pytest.mark.parametrize(
    "missing",
    [
        *[[name] for name in CONTROL if name != "<|endoftext|>"],
        *[[f"<|codec_{name}|>"] for name in CODEC],
        ["<|codec_0|>"],
        ["<|codec_2047|>"],
        [f"<|codec_language_{name}|>" for name in LANGUAGES],
    ],
    ids=lambda missing: missing[0],
)
def test_a_vocabulary_that_lacks_a_token_is_refused(tmp_path: Path, missing: list[str]) -> None:
    voice = LlamaVoice(config(write_qwen3_voice(tmp_path, missing=missing)))
    with pytest.raises(ModelError) as caught:
        voice.load()
    name = missing[0] if len(missing) == 1 else "<|codec_language_english|>, nor that of another language"
    assert f"its vocabulary lacks {name}" in str(caught.value)
    assert str(caught.value).startswith("--tts-model ")
    assert "choose a Qwen3-TTS model" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_codes_in_another_order_are_refused(tmp_path: Path) -> None:
    voice = LlamaVoice(config(write_qwen3_voice(tmp_path, swapped=("<|codec_1|>", "<|codec_2|>"))))
    with pytest.raises(ModelError, match="its codec's tokens are not in order: choose one"):
        voice.load()


@pytest.mark.parametrize(
    ("options", "problem"), [({"hears": False}, "could not load"), ({"width": 64}, "could not load")]
)
def test_files_that_do_not_fit_are_refused(tmp_path: Path, options: dict[str, Any], problem: str) -> None:
    voice = LlamaVoice(config(write_qwen3_voice(tmp_path, **options)))
    with pytest.raises(ModelError, match=f"^--tts-mmproj .*{problem}"):
        voice.load()


def test_only_codes_and_the_end_come_out_of_the_backbone(voice: LlamaVoice, monkeypatch: pytest.MonkeyPatch) -> None:
    assert voice._loaded is not None
    kind, passed = voice._loaded.kind, []
    token = kind.token
    monkeypatch.setattr(kind, "token", lambda state: passed.append(token(state)) or passed[-1])
    frames = len(voice.speak(TEXT, None, "", no_pause)) // FRAME
    first, end = (tokens().index(name) for name in ("<|codec_0|>", "<|codec_eos_token|>"))
    assert len(passed) == frames + 1
    assert passed.pop() == end
    assert all(first <= code < first + CODES for code in passed)


# What llama.cpp would abort the process at.


@pytest.mark.parametrize("seed", [SEED, OTHER_SEED])
def test_no_number_that_codes_are_drawn_by_is_as_large_as_a_rounded_sum_of_probabilities(seed: int) -> None:
    drawn = np.random.RandomState(seed).randint(0, 2**32, DRAWS, np.uint32)
    assert drawn.max() < MAX_DRAWN * 2**32
    assert int((MAX_S + MAX_S_A_CHARACTER * LIMIT) * FRAMES_A_SECOND) * 2 * BOOKS < DRAWS


def test_codes_are_drawn_by_the_numbers_of_that_generator(tmp_path: Path) -> None:
    voice = loaded(tmp_path, even=True)
    assert voice._loaded is not None
    voice._loaded._pauses.begin(no_pause)
    generator = voice._loaded._generator
    wanted = mtmd_cpp.mtmd_gen_inp_default(generator)
    wanted.embd = (ctypes.c_float * WIDTH)()
    codes: list[int] = []
    for wanted.seed in (SEED, SEED, OTHER_SEED, SEED):
        out = mtmd_cpp.mtmd_gen_out()
        assert mtmd_cpp.mtmd_gen_audio_process(generator, ctypes.byref(wanted), ctypes.byref(out)) == 0
        codes += out.codes[1 : out.n_codes]
    voice.close()
    first, other = (
        (np.random.RandomState(seed).randint(0, 2**32, 2 * BOOKS, np.uint32) >> 27) for seed in (SEED, OTHER_SEED)
    )
    assert FEW == 2**5
    assert codes == [*first, *other[:BOOKS], *first[:BOOKS]]


@pytest.mark.parametrize(
    "nan",
    ["output_norm.weight", "output.weight", "mm.a.fc.weight"]
    + [f"a.gen.code.{part}.weight" for part in ("proj_in", "blk.0.attn_k", "blk.1.attn_v", "output_norm", "head")],
)
def test_what_is_no_number_ends_the_sentence_and_not_the_process(tmp_path: Path, nan: str) -> None:
    voice = loaded(tmp_path, nan=nan)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="has computed invalid numbers"):
            voice.speak(TEXT, tone(1.0), "", no_pause)
    voice.close()


def test_what_is_no_number_is_not_heard(tmp_path: Path) -> None:
    voice = loaded(tmp_path, nan="a.gen.wav.dac.post_conv.weight")
    samples = voice.speak(TEXT, None, "", no_pause)
    voice.close()
    assert len(samples) % FRAME == 0
    assert np.isfinite(samples).all()


def test_what_is_no_number_in_one_sentence_silences_no_later_one(tmp_path: Path) -> None:
    # With flash attention llama.cpp leaves out what is masked.
    dense = dataclasses.replace(config(write_qwen3_voice(tmp_path, nan="token_embd.weight")), flash_attn="off")
    voice = LlamaVoice(dense)
    voice.load()
    before = voice.speak(TEXT, None, "", no_pause)
    with pytest.raises(RuntimeError, match="has computed invalid numbers"):
        voice.speak(f"{tokens()[0]} and a long rest of the sentence", None, "", no_pause)
    after = voice.speak(TEXT, None, "", no_pause)
    voice.close()
    assert np.array_equal(after, before)


@pytest.mark.parametrize("samples", [1, 384, 385, 1279, 1280])
def test_a_short_recording_is_filled_up(voice: LlamaVoice, samples: int) -> None:
    assert is_speech(voice.speak(TEXT, tone(1.0)[:samples], "", no_pause), len(TEXT))


def test_a_generator_with_fewer_codes_fails_at_those_that_it_lacks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    voice = loaded(tmp_path, first_codes=2)
    with caplog.at_level(logging.WARNING), pytest.raises(RuntimeError, match=r"llama\.cpp's voice failed"):
        voice.speak(TEXT, None, "", no_pause)
    voice.close()
    assert "code out of range" in caplog.text
