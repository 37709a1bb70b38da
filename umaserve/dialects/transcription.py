"""Asks a model that hears for what is said in a recording."""

from __future__ import annotations

from umaserve.core.errors import Fault, RequestError
from umaserve.core.events import Finished, FinishReason, ModelInfo
from umaserve.core.requests import Attachment, Audio, ChatTurn, Generate, Sampling, Sound, SoundLimit
from umaserve.dialects.parameters import RequestLimits, check_prompt_bytes, within_cap

_TRANSCRIBE = "Transcribe the speech in this recording word for word. Answer with the transcript only."
_TRANSLATE = "Translate the speech in this recording into English. Answer with the translation only."
_LFM2_TRANSCRIBES = "Perform ASR."
"""The system message with which LFM2-Audio was trained to transcribe the user's recording, which stands alone."""
_LIMIT = SoundLimit(least=64, each_second=32)
"""A transcript that gets longer repeats itself: nobody says more than some eight syllables in a second, and a
vocabulary that was not made for a script takes up to four tokens for one. Whisper has room for 15 tokens a second."""


def transcription(
    sound: Sound | Audio,
    new_id: str,
    limits: RequestLimits,
    model: ModelInfo | None,
    *,
    language: str = "",
    prompt: str = "",
    temperature: float = 0.0,
    translates: bool = False,
) -> Generate:
    """The request for the text of what is said in ``sound``, or with ``translates`` for its translation into English.

    ``model``: the loaded one, if it is loaded. ``language``: that of the speech, as a code or a name; empty: the model
    finds it out. ``prompt``: text that comes before, or names and words that may occur; it counts against the longest
    prompt, so this raises ``RequestError``. The answer's text is ``Token.said``, with white space around it.

    A model that doesn't hear, a sound that can't be decoded, and one that the context doesn't hold end the request with
    a ``RequestError`` that names ``sound.field``. A model that repeats itself without end is stopped where no speech of
    the sound's length could go on. ``check_end`` tells whether the answer lacks what was said.
    """
    check_prompt_bytes(len(prompt.encode()) + len(language.encode()), limits)
    if model is not None and model.architecture.startswith("lfm2") and not translates:
        turns: tuple[ChatTurn, ...] = (ChatTurn("system", _LFM2_TRANSCRIBES), _heard("", sound))
    else:
        instructions = [_TRANSLATE if translates else _TRANSCRIBE]
        instructions += [f"The language of the speech: {language}."] if language else []
        instructions += [f"What came before it, or may occur in it: {prompt}"] if prompt else []
        turns = (_heard("\n".join(instructions), sound),)
    return Generate(
        new_id,
        turns,
        max_tokens=within_cap(None, limits),
        sound_limit=_LIMIT,
        sampling=Sampling(temperature=temperature, top_p=1.0),
        enable_thinking=False,
        splits_thoughts=True,
    )


def check_end(end: Finished, field: str) -> None:
    """Raises ``RequestError`` for a transcript that lacks its end, of the sound in ``field``. One that was stopped
    because it got longer than speech can be has all that was said."""
    usage = end.usage
    said = usage.completion_tokens - usage.reasoning_tokens
    if end.reason is FinishReason.LENGTH and said < _LIMIT.tokens(usage.sound_s):
        took = f"the recording took {usage.prompt_tokens} tokens, and the transcript {usage.completion_tokens}"
        advice = "send a shorter one, or raise the server's --n-ctx or --max-tokens"
        raise RequestError(
            Fault.CONTEXT_EXCEEDED,
            field,
            f"its transcript reached the limit of an answer and is truncated: {took}: {advice}",
        )
    if end.reason is FinishReason.CONTENT_FILTER:
        raise RequestError(Fault.CONTENT_FILTERED, field, "the server's content filter stopped its transcript")


def _heard(text: str, sound: Sound | Audio) -> ChatTurn:
    """The user's turn: the recording first, as most models that hear were trained."""
    return ChatTurn("user", text, attachments=(Attachment(0, sound),))
