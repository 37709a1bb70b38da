"""The request for what is said in a recording."""

from __future__ import annotations

import pytest

from umaserve.core.errors import Fault, RequestError
from umaserve.core.events import ModelInfo
from umaserve.core.requests import Attachment, Generate, Sound
from umaserve.dialects.parameters import RequestLimits
from umaserve.dialects.transcription import transcription

LIMITS = RequestLimits(max_prompt_bytes=64, max_tokens=512)
SOUND = Sound(memoryview(b"RIFF"), "file")


def model(architecture: str) -> ModelInfo:
    return ModelInfo("m", architecture, "Q8_0", 1, 1, 2048, 2048, 10, 8, None, "<s>", "</s>", hears=True)


def asked(architecture: str = "llama", **wanted: object) -> Generate:
    return transcription(SOUND, "t-1", LIMITS, model(architecture), **wanted)


def test_the_recording_comes_first_then_what_to_do() -> None:
    (turn,) = asked().prompt
    assert (turn.role, turn.attachments) == ("user", (Attachment(0, SOUND),))
    assert "word for word" in turn.content
    assert asked().enable_thinking is False
    assert asked().splits_thoughts
    assert asked().max_tokens == 512
    assert asked().sampling.temperature == 0
    assert asked(temperature=0.5).sampling.temperature == 0.5


def test_language_and_prompt_are_told_and_a_translation_is_another_task() -> None:
    (turn,) = asked(language="de", prompt="Umaserve, GGUF").prompt
    first, language, before = turn.content.split("\n")
    assert first == asked().prompt[0].content
    assert language.endswith(": de.")
    assert before.endswith(": Umaserve, GGUF")
    (translated,) = asked(translates=True).prompt
    assert "into English" in translated.content
    assert translated.attachments == (Attachment(0, SOUND),)


def test_a_model_that_loads_is_asked_as_most_are() -> None:
    assert transcription(SOUND, "t-1", LIMITS, None).prompt == asked().prompt


def test_lfm2_is_asked_in_the_words_that_it_was_trained_on() -> None:
    system, user = asked("lfm2", language="de").prompt
    assert (system.role, system.content) == ("system", "Perform ASR.")
    assert (user.role, user.content, user.attachments) == ("user", "", (Attachment(0, SOUND),))
    (translated,) = asked("lfm2", translates=True).prompt
    assert "into English" in translated.content


def test_prompt_and_language_count_against_the_longest_prompt() -> None:
    asked(prompt="x" * 62, language="de")
    with pytest.raises(RequestError) as refused:
        asked(prompt="x" * 63, language="de")
    assert refused.value.fault is Fault.PROMPT_TOO_LARGE
