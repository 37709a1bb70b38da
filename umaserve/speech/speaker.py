"""One answer's speech: its text goes to the voice sentence by sentence, and the audio comes back in order."""

from __future__ import annotations

import enum
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
Encode = Callable[[Samples, YieldPoint], bytes]
Spoken = Callable[[bytes, int], None]
Ended = Callable[[SpeechError | None], None]


class _Abandoned(Exception):
    """Nobody listens any more."""


class State(enum.Enum):
    """What becomes of one answer's speech."""

    LISTENING = "listening"
    """Nothing is in work; more text may come."""
    WORKING = "working"
    """A job is in work: a sentence is spoken, or the reference recording decoded. More text may come."""
    DRAINING = "draining"
    """A job is in work, and the text is complete."""
    ENDED = "ended"
    """Nothing is called any more."""


class Event(enum.Enum):
    """What moves a speaker."""

    JOB = "job"
    """A job was submitted."""
    ALL_DONE = "all done"
    """The job has come back, and nothing else waits."""
    TEXT_COMPLETE = "text complete"
    STOP = "stop"
    """The speech failed, or nobody listens any more."""


TRANSITIONS: dict[tuple[State, Event], State] = {
    (State.LISTENING, Event.JOB): State.WORKING,
    (State.LISTENING, Event.TEXT_COMPLETE): State.ENDED,
    (State.LISTENING, Event.STOP): State.ENDED,
    (State.WORKING, Event.JOB): State.WORKING,
    (State.WORKING, Event.ALL_DONE): State.LISTENING,
    (State.WORKING, Event.TEXT_COMPLETE): State.DRAINING,
    (State.WORKING, Event.STOP): State.ENDED,
    (State.DRAINING, Event.JOB): State.DRAINING,
    (State.DRAINING, Event.ALL_DONE): State.ENDED,
    (State.DRAINING, Event.STOP): State.ENDED,
    (State.ENDED, Event.STOP): State.ENDED,
}


class Speaker:
    """Everything but the voice and ``encode`` runs on the loop's thread.

    ``language`` is as ``Voice`` has it. ``encode``, on the thread that speaks, gets the samples of one sentence after
    another, and a pause as ``Voice.speak`` does. ``spoken`` gets what it made of a sentence, and the number of the
    sentence's samples. ``ended`` is called once and last: from within ``finish`` where nothing is left to say, and with
    an error even while text still comes, which is dropped then. One job is in work at a time, so that answers that are
    spoken at once take turns; the text that waits is at most the answer's.
    """

    def __init__(
        self, voice: Voice, language: str, submit: Submit, encode: Encode, spoken: Spoken, ended: Ended
    ) -> None:
        self._voice = voice
        self._language = language
        self._encode = encode
        self._speaker: Samples | None = None
        self._submit = submit
        self._spoken = spoken
        self._ended = ended
        self._sentences = Sentences()
        self._waiting: deque[str] = deque()
        self._state = State.LISTENING

    @property
    def state(self) -> State:
        return self._state

    def become(self, reference: Reference, submit: SubmitDecoding) -> None:
        """Before all else: speak with the voice of that recording, where the daemon's voice clones.

        It is decoded at once, by a job for ``submit``, so that a recording that can't be used ends an answer before it
        begins. Sentences, and the end, wait for it.
        """
        assert self._state is State.LISTENING, "a second job"
        self._move(Event.JOB)
        submit(reference.samples, self._decoded)

    def _decoded(self, result: Samples | BaseException) -> None:
        if self._has_ended():
            return
        if isinstance(result, BaseException):
            self._fail(result)
        else:
            self._speaker = result
            self._go_on()

    def push(self, text: str) -> None:
        """More of the answer's text, cut anywhere."""
        assert self._state is not State.DRAINING, "text after the end"
        if self._has_ended():
            return
        self._waiting.extend(self._sentences.push(text))
        if self._state is State.LISTENING:
            self._start_next()

    def finish(self) -> None:
        """No more text comes: the rest is spoken, then ``ended`` is called."""
        assert self._state is not State.DRAINING, "a second end"
        if self._has_ended():
            return
        self._waiting.extend(self._sentences.finish())
        if self._state is State.LISTENING:
            self._start_next()
        if self._move(Event.TEXT_COMPLETE) is State.ENDED:
            self._ended(None)

    def abandon(self) -> None:
        """Call nothing any more, and drop what is queued; the sentence that is being spoken ends at the voice's next
        pause."""
        self._move(Event.STOP)
        self._waiting.clear()

    def _move(self, event: Event) -> State:
        self._state = TRANSITIONS[self._state, event]
        return self._state

    def _has_ended(self) -> bool:
        return self._state is State.ENDED

    def _start_next(self) -> None:
        """Have the next sentence spoken, if one waits. No job may be in work."""
        if self._waiting:
            sentence = self._waiting.popleft()
            self._move(Event.JOB)
            self._submit(lambda pause: self._speak(sentence, pause), self._done)

    def _go_on(self) -> None:
        """The job has come back."""
        if self._waiting:
            self._start_next()
            return
        if self._move(Event.ALL_DONE) is State.ENDED:
            self._ended(None)

    def _speak(self, sentence: str, pause: YieldPoint) -> tuple[bytes, int]:
        """The sound, and the number of its samples. On the thread that speaks. While others were spoken, or ticks were
        run, the client may have gone."""

        def pause_if_wanted() -> None:
            pause()
            if self._has_ended():
                raise _Abandoned

        if self._has_ended():
            return b"", 0
        try:
            samples = self._voice.speak(sentence, self._speaker, self._language, pause_if_wanted)
            return self._encode(samples, pause_if_wanted), len(samples)
        except _Abandoned:
            return b"", 0

    def _done(self, result: tuple[bytes, int] | BaseException) -> None:
        if self._has_ended():
            return
        if isinstance(result, BaseException):
            self._fail(result)
            return
        if self._waiting:
            # It is spoken while this one is written.
            self._start_next()
            self._hand_on(*result)
        else:
            self._hand_on(*result)
            # Whoever got it may have had enough.
            if not self._has_ended():
                self._go_on()

    def _hand_on(self, sound: bytes, n_samples: int) -> None:
        if n_samples:
            self._spoken(sound, n_samples)

    def _fail(self, error: BaseException) -> None:
        self.abandon()
        self._ended(_for_client(error))


def _for_client(error: BaseException) -> SpeechError:
    if isinstance(error, SpeechError):
        return error
    log.error("the voice failed", exc_info=error)
    return SpeechError("tts: the voice failed on this text; the daemon's log says more")
