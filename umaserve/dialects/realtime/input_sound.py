"""The sound that a client sends bit by bit, until a turn's part of it becomes an item."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from umaserve.core.errors import Fault, RequestError
from umaserve.dialects.realtime.levels import Levels, Likeness, Loudness
from umaserve.dialects.realtime.settings import SessionSettings
from umaserve.dialects.realtime.sound_formats import SoundFormat
from umaserve.dialects.realtime.speech_model import SpeechModel
from umaserve.dialects.realtime.turns import Sign, TurnDetector
from umaserve.wire.fields import out_of_range

MAX_BYTES = 16 << 20
"""Bytes that wait for a commit."""
LEAST_MS = 100
"""The shortest sound that may be committed, as in OpenAI's service."""
MAX_PAUSED_MS = 30_000
"""The longest speech whose pauses are told: in each of them, all of it would be encoded again."""


@dataclass(frozen=True, slots=True)
class Began:
    """Speech begins, at this time of all sound so far."""

    at_ms: int


@dataclass(frozen=True, slots=True)
class Paused:
    """Speech pauses, and may have ended: its ``sound`` so far, with what belongs to it before."""

    sound: bytes


@dataclass(frozen=True, slots=True)
class WentOn:
    """Speech goes on after a pause."""


@dataclass(frozen=True, slots=True)
class Ended:
    """Speech has ended: its ``sound``, with what belongs to it before."""

    at_ms: int
    sound: bytes
    paused_at: int
    """Bytes of it that were there in the pause that was the end."""


@dataclass(frozen=True, slots=True)
class Detect:
    """Speech has to be looked for: ``levels`` has to be called away from the loop, and then
    ``RealtimeSession.detected``, before the client's next event."""

    levels: Callable[[], list[float]]
    event_id: str | None
    """The id of the event with the sound."""


Heard = Began | Paused | WentOn | Ended


class InputSound:
    """The buffer of a session's input. Times are in milliseconds from the session's first sound on. Without a
    ``model`` speech is what is loud."""

    def __init__(self, settings: SessionSettings, model: SpeechModel | None, begin_ms: int = 0) -> None:
        self.settings = settings
        self._model = model
        self._of = settings.input
        self._begin(begin_ms)

    def _begin(self, begin_ms: int) -> None:
        self._buffer = bytearray()
        self._begin_ms = begin_ms
        self._dropped = 0
        """Bytes from ``begin_ms`` on that are in the buffer no more."""
        self._paused_at: int | None = None
        """Where speech pauses in the buffer, if it does."""
        turns, rate = self.settings.turns, self._of.rate
        self._levels: Levels | None = None
        if turns is None:
            self._detector = None
            return
        if self._model is None:
            self._levels = Loudness(rate, turns.threshold)
        else:
            self._levels = Likeness(rate, turns.threshold, self._model)
        self._detector = TurnDetector(self._levels, turns.silence_ms)

    def use(self, settings: SessionSettings) -> None:
        """Go on with other settings. Where they change how sound is read, what waits is dropped."""
        before, self.settings = self.settings, settings
        if (before.input, before.turns) != (settings.input, settings.turns):
            begin_ms = self.end_ms
            self._of = settings.input
            self._begin(begin_ms)

    @property
    def n_bytes(self) -> int:
        return len(self._buffer)

    @property
    def end_ms(self) -> int:
        """The time of the last sample."""
        return self._begin_ms + self._of.ms(self._dropped + len(self._buffer))

    def append(self, sound: bytes) -> Callable[[], list[float]] | None:
        """Take the next sound; raises ``RequestError`` if there is too much. Returns a function that tells its levels,
        which are for ``hear``, and changes nothing else; ``None`` where nobody asks for turns."""
        if len(self._buffer) + len(sound) > MAX_BYTES:
            raise out_of_range("audio", f"at most {MAX_BYTES} bytes before a commit", "more")
        self._buffer += sound
        return None if self._levels is None else functools.partial(_levels_of, self._levels, self._of, sound)

    def hear(self, levels: Iterable[float]) -> Iterator[Heard]:
        """What the sound says that was taken last, by its levels."""
        detector, turns = self._detector, self.settings.turns
        assert detector is not None
        assert turns is not None
        for change in detector.push(levels):
            match change.sign:
                case Sign.BEGINS:
                    begin_ms = max(self._of.ms(self._dropped), change.at_ms - turns.prefix_padding_ms)
                    self._drop_until(begin_ms)
                    yield Began(self._begin_ms + begin_ms)
                case Sign.PAUSES:
                    self._paused_at = self._place(change.at_ms)
                    if self._of.ms(self._paused_at) <= MAX_PAUSED_MS:
                        yield Paused(bytes(self._buffer[: self._paused_at]))
                case Sign.GOES_ON:
                    self._paused_at = None
                    yield WentOn()
                case Sign.ENDS:
                    speech, paused_at = self._taken(change.at_ms), self._paused_at
                    self._paused_at = None
                    yield Ended(self._begin_ms + change.at_ms, speech, len(speech) if paused_at is None else paused_at)
        if not detector.speaking:
            # All that may still belong to speech: the frames that have not been enough, and what comes before them.
            self._drop_until(detector.at_ms - turns.prefix_padding_ms - detector.start_ms)

    def commit(self) -> bytes:
        """All sound that waits; raises ``RequestError`` where that is nearly none."""
        ms = self._of.ms(len(self._buffer))
        if ms < LEAST_MS:
            problem = f"expected at least {LEAST_MS} ms of sound, got {ms} ms"
            raise RequestError(Fault.BAD_REQUEST, "input_audio_buffer", problem)
        sound = bytes(self._buffer)
        self.clear()
        return sound

    def clear(self) -> None:
        """Drop what waits. Speech that is going on begins anew."""
        self._begin(self.end_ms)

    def _place(self, at_ms: int) -> int:
        """Where a time is in the buffer."""
        return max(0, self._of.bytes_of(at_ms) - self._dropped)

    def _drop_until(self, at_ms: int) -> None:
        n = min(self._place(max(0, at_ms)), len(self._buffer))
        del self._buffer[:n]
        self._dropped += n

    def _taken(self, end_ms: int) -> bytes:
        n = self._place(end_ms)
        sound = bytes(self._buffer[:n])
        self._drop_until(end_ms)
        return sound


def _levels_of(levels: Levels, of: SoundFormat, sound: bytes) -> list[float]:
    return levels.push(of.samples(sound))
