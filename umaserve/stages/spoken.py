"""Answers that are spoken while they are generated: the voice's thread, and a stage between session and connection."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import TypeVar

from umaserve.core.errors import Fault, RequestError
from umaserve.core.events import Finished, Output, Spoken, Token, VoiceInfo
from umaserve.core.requests import Speaking
from umaserve.media import sound_encoder
from umaserve.media.sound_encoder import SoundEncoder
from umaserve.sessions.engine_api import JobQueue
from umaserve.sessions.session import Sink
from umaserve.speech.reference import Reference
from umaserve.speech.speaker import Speaker
from umaserve.speech.voice import SAMPLE_RATE, BadReference, Samples, SpeechError, Voice
from umaserve.system.threads import Done, JobThread, LengthyJob, YieldPoint

log = logging.getLogger(__name__)

T = TypeVar("T")

NICE = 10
"""Niceness of the voice's own thread: llama.cpp's threads wait for each other at barriers, so taking a core from one of
them stalls all. The voice is ten times faster than real time anyway."""
MAX_SPEAKING_S = 120.0
"""Most seconds between two pauses on the voice's own thread: one sentence, or decoding one recording."""
MAX_PART_BYTES = 4 * 2 * SAMPLE_RATE
"""Most bytes in one ``Spoken``: two seconds of float32, in base64 a quarter of the 1 MiB that WebSocket clients accept
per message by default."""

ENCODED_AT_ONCE = SAMPLE_RATE // 4
"""Samples encoded between two pauses: 4 to 9 ms on one core. No tick can run meanwhile if the voice uses the compute
thread."""


class Speech:
    """The daemon's voice and its thread; empty where the daemon has no voice."""

    def __init__(self, voice: Voice | None, wake: Callable[[], None], compute: JobThread | None = None) -> None:
        """``compute``: the compute thread, for a voice that llama.cpp computes; its owner collects and stops it.
        Without it the voice gets a thread of its own. ``wake``: wakes the event loop when a job is done."""
        self._voice = voice
        self._own: JobThread | None = None
        if voice is not None and compute is None:
            self._own = JobThread("speech", wake, nice=NICE, max_s=MAX_SPEAKING_S)
        self._thread = compute or self._own
        self._answers: set[SpokenAnswer] = set()
        self._seconds = 0.0
        """Duration of the speech of all ended answers."""

    @property
    def voice(self) -> VoiceInfo | None:
        if self._voice is None:
            return None
        return VoiceInfo(self._voice.languages, self._voice.clones, sound_encoder.formats(), name=self._voice.name)

    @property
    def threads(self) -> list[JobThread]:
        """The voice's own thread, if it has one, for the watchdog."""
        return [] if self._own is None else [self._own]

    @property
    def idle(self) -> bool:
        """Whether no answer is being spoken."""
        return not self._answers

    def answer(self, deliver: Sink, speaking: Speaking) -> SpokenAnswer:
        """A new stage that speaks one answer."""
        assert self._voice is not None
        assert self._thread is not None
        answer = SpokenAnswer(self._voice, self._thread, deliver, self._over, speaking)
        self._answers.add(answer)
        return answer

    def _over(self, answer: SpokenAnswer) -> None:
        if answer in self._answers:
            self._answers.remove(answer)
            self._seconds += answer.samples / SAMPLE_RATE

    def snapshot(self) -> dict[str, int | float | str]:
        """The metrics of speech."""
        seconds = self._seconds + sum(answer.samples for answer in self._answers) / SAMPLE_RATE
        return {"spoken_answers": len(self._answers), "speech_seconds_total": round(seconds, 3)}

    def check_room(self, limit: int) -> None:
        """Raises ``RequestError`` if ``limit`` answers are already being spoken."""
        if len(self._answers) >= limit:
            problem = f"{limit} texts are being spoken already; try again later"
            raise RequestError(Fault.MEMORY_PRESSURE, "request", problem, retry_after_s=1)

    def submit(self, job: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        """Run a short job on the voice's thread, in order of submission."""
        assert self._thread is not None
        self._thread.submit(job, done)

    def fail_all(self, error: RequestError) -> None:
        """Fail all answers, at the end of the drain timeout."""
        for answer in list(self._answers):
            answer.take(error)

    def collect(self) -> None:
        """Run the callbacks of finished jobs, on the event loop's thread."""
        if self._own is not None:
            self._own.collect()

    def stop(self, timeout: float) -> bool:
        """Wait for the sentence in flight; returns whether it ended within ``timeout`` seconds."""
        return self._own is None or self._own.stop(timeout)


class SpokenAnswer:
    """A session's sink that forwards all outputs to ``deliver``, adds ``Spoken`` outputs, and delays ``Finished`` until
    all text is spoken. Thoughts are never spoken.
    """

    def __init__(
        self,
        voice: Voice,
        thread: JobQueue,
        deliver: Sink,
        over: Callable[[SpokenAnswer], None],
        speaking: Speaking,
    ) -> None:
        """``over``: called at the end, whatever ends it. A bad reference recording fails the answer."""
        self.samples = 0
        """Samples delivered so far."""
        self._thread = thread
        self._deliver = deliver
        self._over = over
        self._format = speaking.sound_format
        self._encoder: SoundEncoder | None = None
        """Created with the first sentence."""
        self._speaker = Speaker(
            voice, speaking.language, self._submit_unless_held, self._encode, self._on_spoken, self._on_ended
        )
        if (speaker := speaking.speaker) is not None:
            assert speaker.sample_rate is not None, "a speaker in a file"
            reference = Reference(speaker.data, speaker.field, speaker.sample_rate)
            # A short job: lengthy ones queue behind other answers' sentences.
            self._speaker.clone(reference, lambda job, done: thread.submit(job, functools.partial(self._guarded, done)))
        self._finished: Finished | None = None
        self._held = self._abandoned = False
        self._waiting: Callable[[], None] | None = None

    def take(self, output: Output | RequestError) -> None:
        """The sink."""
        self._guarded(self._take, output)

    def _guarded(self, act: Callable[[T], None], value: T) -> None:
        """A mistake of ours in one answer's speech ends that answer."""
        try:
            act(value)
        except Exception:
            log.exception("speaking failed")
            self._on_ended(SpeechError("tts: the server failed on the answer's speech"))

    def _take(self, output: Output | RequestError) -> None:
        match output:
            case Token():
                self._deliver(output)
                self._speaker.push(output.said)
            case Finished():
                self._finished = output
                self._speaker.finish()
            case RequestError():
                self.abandon()
                self._deliver(output)
            case _:
                self._deliver(output)

    def hold(self) -> None:
        """Backpressure: the reader is behind. No further sentence is started."""
        self._held = True

    def release(self) -> None:
        """The reader has caught up."""
        self._held = False
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting()

    def abandon(self) -> None:
        """The client is gone: deliver nothing more."""
        self._waiting = None
        self._abandoned = True
        self._speaker.abandon()
        self._over(self)

    def _submit_unless_held(self, job: LengthyJob, done: Done) -> None:
        # At most one waits here: the speaker has one job in flight at a time.
        guarded = functools.partial(self._guarded, done)
        if self._held:
            self._waiting = functools.partial(self._thread.submit_lengthy, job, guarded)
        else:
            self._thread.submit_lengthy(job, guarded)

    def _encode(self, samples: Samples, pause: YieldPoint) -> bytes:
        """The sentence in the answer's format. Runs on the voice's thread."""
        if self._format is None:
            return samples.astype("<f4").tobytes()
        if self._encoder is None:
            # Created here, off the event loop: the first one imports PyAV, which takes 100 ms.
            self._encoder = SoundEncoder(self._format, SAMPLE_RATE)
        sound = []
        for start in range(0, len(samples), ENCODED_AT_ONCE):
            if start:
                pause()
            sound.append(self._encoder.encode(samples[start : start + ENCODED_AT_ONCE]))
        return b"".join(sound)

    def _on_spoken(self, sound: bytes, n_samples: int, sentence: str) -> None:
        self.samples += n_samples
        for start in range(0, len(sound), MAX_PART_BYTES):
            self._deliver(Spoken(sound[start : start + MAX_PART_BYTES], "" if start else sentence))

    def _on_ended(self, error: SpeechError | None) -> None:
        if error is not None:
            log.warning("an answer has ended: it could not be spoken: %s", error)
            self.abandon()
            fault = Fault.BAD_REQUEST if isinstance(error, BadReference) else Fault.DECODE_FAILED
            self._deliver(RequestError.of_text(fault, str(error)))
        else:
            assert self._finished is not None
            if self._encoder is not None:
                # A frame or two: less than 5 ms.
                self._on_spoken(self._encoder.finish(), 0, "")
            # Delivering the file's end may have abandoned the answer.
            if not self._abandoned:
                self._over(self)
                self._deliver(self._finished)
