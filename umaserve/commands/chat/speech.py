"""The WAV file for spoken answers; it is created or overwritten only when there is sound."""

from __future__ import annotations

import contextlib
import os
import stat
import wave
from types import TracebackType

from umaserve.commands.chat.media import FileError
from umaserve.wire.pcm import SAMPLE_RATE


class SpeechFile:
    """Mono, 16 bit. An existing file at ``path`` keeps its content until the first sound. Raises ``FileError`` where
    the path isn't writable, before a question is sent."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._is_new = not os.path.lexists(path)
        self._wav: wave.Wave_write | None = None
        try:
            # Not open(): "w" truncates the file, and "a" can't seek back to the header.
            self._file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666), "wb")
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "no such file"
            raise FileError(f"--speak {path}: {reason}: name a file that you may write") from None

    def __enter__(self) -> SpeechFile:
        return self

    def __exit__(self, _type: type[BaseException] | None, _error: object, _traceback: TracebackType | None) -> None:
        with self._file:
            if self._wav is not None:
                self._wav.close()
            elif self._is_new:
                # An empty file would look like an answer.
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self._path)

    def write(self, pcm: bytes) -> None:
        """Append 16-bit samples. Raises OSError, for example where the disk is full."""
        if self._wav is None:
            if stat.S_ISREG(os.fstat(self._file.fileno()).st_mode):
                self._file.truncate(0)
            self._wav = wave.open(self._file)  # noqa: SIM115
            self._wav.setnchannels(1)
            self._wav.setsampwidth(2)
            self._wav.setframerate(SAMPLE_RATE)
        self._wav.writeframes(pcm)
