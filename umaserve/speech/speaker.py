"""The speech of one answer: text goes to the voice sentence by sentence, and sound comes back in order."""

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
Spoken = Callable[[bytes, int, str], None]
Ended = Callable[[SpeechError | None], None]


class _Abandoned(Exception):
    """The speech was abandoned: ends the voice's call."""


class State(enum.Enum):
    """The state of one answer's speech."""

    LISTENING = "listening"
    """No job is in flight; more text may come."""
    WORKING = "working"
    """A job is in flight: speaking a sentence, or decoding the reference recording. More text may come."""
    DRAINING = "draining"
    """A job is in flight, and the text is complete."""
    ENDED = "ended"
    """No callback is called any more."""


class Event(enum.Enum):
    """What moves a speaker."""

    JOB = "job"
    """A job was submitted."""
    ALL_DONE = "all done"
    """The job in flight is done, and no sentence waits."""
    TEXT_COMPLETE = "text complete"
    STOP = "stop"
    """The speech failed or was abandoned."""


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
    """Speaks one answer. All of it but the voice and ``encode`` runs on the event loop's thread.

    ``language``: as of ``Voice.speak``. ``submit``: runs a job on the voice's thread. ``encode``: called on that thread
    with the samples of each sentence in order, and with a pause as of ``Voice.speak``; returns bytes. ``spoken``:
    called with these bytes, the number of samples and the sentence, once per sentence. ``ended``: called once, last:
    from within ``finish`` if nothing is left to say, or with an error at any time, after which further text is dropped.
    One job is in flight at a time, so that concurrent answers take turns. Queues at most the answer's text.
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

    def clone(self, reference: Reference, submit: SubmitDecoding) -> None:
        """Speak with the voice of a reference recording. Called before any text; only for voices that clone.

        ``submit`` runs the decoding at once, so that a bad recording fails the answer before it begins. Sentences, and
        the end, wait for it.
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
        """The next piece of the answer's text, which may be cut anywhere."""
        assert self._state is not State.DRAINING, "text after the end"
        if self._has_ended():
            return
        self._waiting.extend(self._sentences.push(text))
        if self._state is State.LISTENING:
            self._start_next()

    def finish(self) -> None:
        """The text is complete: speak the rest, then call ``ended``."""
        assert self._state is not State.DRAINING, "a second end"
        if self._has_ended():
            return
        self._waiting.extend(self._sentences.finish())
        if self._state is State.LISTENING:
            self._start_next()
        if self._move(Event.TEXT_COMPLETE) is State.ENDED:
            self._ended(None)

    def abandon(self) -> None:
        """Call no callback any more, and drop the queue. A sentence in flight ends at the voice's next pause."""
        self._move(Event.STOP)
        self._waiting.clear()

    def _move(self, event: Event) -> State:
        self._state = TRANSITIONS[self._state, event]
        return self._state

    def _has_ended(self) -> bool:
        return self._state is State.ENDED

    def _start_next(self) -> None:
        """Submit the next sentence, if one waits. Only when no job is in flight."""
        if self._waiting:
            sentence = self._waiting.popleft()
            self._move(Event.JOB)
            self._submit(lambda pause: self._speak(sentence, pause), self._done)

    def _go_on(self) -> None:
        """The job in flight is done: submit the next sentence, or change state."""
        if self._waiting:
            self._start_next()
            return
        if self._move(Event.ALL_DONE) is State.ENDED:
            self._ended(None)

    def _speak(self, sentence: str, pause: YieldPoint) -> tuple[bytes, int, str]:
        """The encoded sentence, its number of samples, and itself; empty if abandoned. Runs on the voice's thread."""

        def pause_if_wanted() -> None:
            pause()
            if self._has_ended():
                raise _Abandoned

        if self._has_ended():
            return b"", 0, ""
        try:
            samples = self._voice.speak(sentence, self._speaker, self._language, pause_if_wanted)
            return self._encode(samples, pause_if_wanted), len(samples), sentence
        except _Abandoned:
            return b"", 0, ""

    def _done(self, result: tuple[bytes, int, str] | BaseException) -> None:
        if self._has_ended():
            return
        if isinstance(result, BaseException):
            self._fail(result)
            return
        if self._waiting:
            # The voice works on it while this one is written to the client.
            self._start_next()
            self._hand_on(*result)
        else:
            self._hand_on(*result)
            # The callback may have abandoned the speech.
            if not self._has_ended():
                self._go_on()

    def _hand_on(self, sound: bytes, n_samples: int, sentence: str) -> None:
        if n_samples:
            self._spoken(sound, n_samples, sentence)

    def _fail(self, error: BaseException) -> None:
        self.abandon()
        self._ended(_for_client(error))


def _for_client(error: BaseException) -> SpeechError:
    if isinstance(error, SpeechError):
        return error
    log.error("the voice failed", exc_info=error)
    return SpeechError("tts: the voice failed on this text; see the daemon's log")
