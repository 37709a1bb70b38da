"""One answer's speech: its text goes to the voice sentence by sentence, and the audio comes back in order."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

from umaserve.speech.reference import Reference
from umaserve.speech.sentences import Sentences
from umaserve.speech.voice import Samples, SpeechError, Voice
from umaserve.system.threads import Done, LengthyJob, YieldPoint

log = logging.getLogger(__name__)

Submit = Callable[[LengthyJob, Done], None]
SubmitDecoding = Callable[[Callable[[], Samples], Done], None]
Spoken = Callable[[bytes], None]
Ended = Callable[[SpeechError | None], None]


class _Abandoned(Exception):
    """Nobody listens any more."""


class Speaker:
    """Everything but the voice runs on the loop's thread.

    ``language`` is as ``Voice`` has it. ``spoken`` gets a sentence's audio: mono samples at ``SAMPLE_RATE``,
    little-endian float32. ``ended`` is called once and last: from within ``finish`` where nothing is left to say, and
    with an error even while text still comes, which is dropped then. One sentence is in work at a time, so that
    answers that are spoken at once take turns; the text that waits is at most the answer's.
    """

    def __init__(self, voice: Voice, language: str, submit: Submit, spoken: Spoken, ended: Ended) -> None:
        self._voice = voice
        self._language = language
        self._speaker: Samples | None = None
        self._submit = submit
        self._spoken = spoken
        self._ended = ended
        self._sentences = Sentences()
        self._waiting: deque[str] = deque()
        self._in_work = False
        self._finishing = False
        self._over = False

    def become(self, reference: Reference, submit: SubmitDecoding) -> None:
        """Before all else: speak as the one of that recording, where the voice clones.

        It is decoded now, as ``submit`` has it, so that one that can't be used ends an answer before it begins. All
        that is to be said waits for that, and so does the end.
        """
        self._in_work = True
        submit(reference.samples, self._decoded)

    def _decoded(self, result: Samples | BaseException) -> None:
        self._in_work = False
        if self._over:
            return
        if isinstance(result, BaseException):
            self._end(_for_client(result))
        else:
            self._speaker = result
            self._next()

    def push(self, text: str) -> None:
        """More of the answer's text, cut anywhere."""
        assert not self._finishing, "text after the end"
        if not self._over:
            self._waiting.extend(self._sentences.push(text))
            self._next()

    def finish(self) -> None:
        """No more text comes: the rest is spoken, then ``ended`` is called."""
        assert not self._finishing, "a second end"
        self._finishing = True
        if not self._over:
            self._waiting.extend(self._sentences.finish())
            self._next()

    def abandon(self) -> None:
        """Call nothing any more, and drop what is queued; the sentence that is being spoken ends at the voice's next
        pause."""
        self._over = True
        self._waiting.clear()

    def _next(self) -> None:
        if self._in_work:
            return
        if self._waiting:
            sentence = self._waiting.popleft()
            self._in_work = True
            self._submit(lambda pause: self._speak(sentence, pause), self._done)
        elif self._finishing:
            self._end(None)

    def _speak(self, sentence: str, pause: YieldPoint) -> bytes:
        """On the thread that speaks. While others were spoken, or ticks were run, the client may have gone."""

        def pause_if_wanted() -> None:
            pause()
            if self._over:
                raise _Abandoned

        if self._over:
            return b""
        try:
            samples = self._voice.speak(sentence, self._speaker, self._language, pause_if_wanted)
            return samples.astype("<f4").tobytes()
        except _Abandoned:
            return b""

    def _done(self, result: bytes | BaseException) -> None:
        self._in_work = False
        if self._over:
            return
        if isinstance(result, BaseException):
            self._end(_for_client(result))
            return
        # The next one is spoken while this one is written.
        if self._waiting:
            self._next()
        if result:
            self._spoken(result)
        if not self._over and not self._in_work:
            self._next()

    def _end(self, error: SpeechError | None) -> None:
        self.abandon()
        self._ended(error)


def _for_client(error: BaseException) -> SpeechError:
    if isinstance(error, SpeechError):
        return error
    log.error("the voice failed", exc_info=error)
    return SpeechError("tts: the voice failed on this text; the daemon's log says more")
