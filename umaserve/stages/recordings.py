"""Recordings of ``/ws/chat`` conversations on disk: request, answer, and speech."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import logging
import math
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import orjson

from umaserve.core.errors import ConfigError
from umaserve.settings.sources import printable
from umaserve.system.threads import JobThread
from umaserve.wire.pcm import WAV_HEADER_BYTES, pcm16, wav_header

log = logging.getLogger(__name__)

MAX_WAITING_BYTES = 256 << 20
"""Most bytes queued for writing: two messages of the default maximum size."""
OVERHEAD_BYTES = 16 << 10
"""Disk space counted per recording beside its content: the directory, and the unused rest of each last block."""
TIDY_S = 3600.0
"""Seconds between calls of ``Recordings.tidy``."""

REQUEST, ANSWER, AUDIO = "request.json", "answer.json", "answer.wav"
_FILES = frozenset((REQUEST, ANSWER, AUDIO))
_NAME = re.compile(r"chat_[0-9a-f]{12}")
_UNFINISHED = re.compile(r"\.chat_[0-9a-f]{12}\.part")

Failed = Callable[[BaseException], None]
Write = Callable[[Callable[[], None], int, Failed], bool]


class Recordings:
    """The recordings in ``directory``, written by a thread of their own; disabled if ``directory`` is empty.

    Each recording is a directory, named by its id, that appears once it is complete. The oldest are removed when all
    together are larger than ``max_bytes``, or after ``max_age_s`` seconds unless that is 0. Incomplete ones may take up
    to ``max_bytes`` more, since nothing is removed in favour of a recording that may fail. Raises ``ConfigError`` if
    the directory can't be written to, or another daemon records into it.
    """

    def __init__(
        self,
        directory: str,
        max_bytes: int,
        max_age_s: float,
        wake: Callable[[], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._clock = clock
        self._waiting_bytes = self._jobs = 0
        self._thread: JobThread | None = None
        if directory:
            self._shelf = _RecordingFolder(directory, max_bytes, max_age_s, clock)
            self._thread = JobThread("recordings", wake)
            self._write(self._shelf.read, 0, functools.partial(_tell, directory))

    @property
    def threads(self) -> list[JobThread]:
        """Threads of its own, to be watched."""
        return [] if self._thread is None else [self._thread]

    def begin(self, payload: bytes) -> Recording | None:
        """A new recording of the request in ``payload``, which is JSON without the API key.

        ``None`` if recording is disabled, or too much is queued for writing.
        """
        if self._thread is None:
            return None
        recording = Recording("chat_" + secrets.token_hex(6), self._shelf, self._write, self._clock())
        recording.request(payload)
        return None if recording.id is None else recording

    def tidy(self) -> None:
        """Remove recordings older than ``max_age_s``."""
        if self._thread is not None:
            self._write(self._shelf.tidy, 0, functools.partial(_tell, "removing old ones"))

    @property
    def idle(self) -> bool:
        """Whether no write is queued or in flight."""
        return not self._jobs

    def collect(self) -> None:
        """Run the callbacks of finished writes, on the event loop's thread."""
        if self._thread is not None:
            self._thread.collect()

    def stop(self, timeout: float) -> bool:
        """Write what is queued; returns whether that ended within ``timeout`` seconds."""
        if self._thread is not None:
            if not self._thread.stop(timeout):
                return False
            self._thread.collect()
            self._thread = None
            self._shelf.close()
        return True

    def _write(self, job: Callable[[], None], size: int, failed: Failed) -> bool:
        """Queue ``job``, which holds ``size`` bytes; returns whether there was room for it."""
        if self._thread is None:  # Stopped.
            return False
        if self._waiting_bytes + size > MAX_WAITING_BYTES:
            log.warning("recordings: dropped one, since %d MiB wait to be written", self._waiting_bytes >> 20)
            return False

        def done(result: object) -> None:
            self._waiting_bytes -= size
            self._jobs -= 1
            if isinstance(result, BaseException):
                failed(result)

        self._waiting_bytes += size
        self._jobs += 1
        self._thread.submit(job, done)
        return True


def _tell(what: str, error: BaseException) -> None:
    # Any other exception is a bug, so log its traceback.
    log.error("recordings: %s: %s", what, error, exc_info=None if isinstance(error, OSError) else error)


class Recording:
    """A conversation that is being recorded, until ``end`` or ``drop``."""

    def __init__(self, name: str, shelf: _RecordingFolder, write: Write, now: float) -> None:
        self._name = name
        self._shelf = shelf
        self._write = write
        self._started = datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds")
        self._lost = False
        self._over = False

    @property
    def id(self) -> str | None:
        """The recording's id; ``None`` once a write has failed. A failure after ``end`` is only logged, since the
        client has its id."""
        return None if self._lost else self._name

    def request(self, payload: bytes) -> None:
        """Write the request. Called by ``Recordings.begin``."""
        self._do(functools.partial(self._shelf.begin, self._name, payload), len(payload))

    def heard(self, pcm: bytes) -> None:
        """Append speech: mono little-endian float32 samples at 24 kHz."""
        self._do(functools.partial(self._shelf.hear, self._name, pcm), len(pcm))

    def end(self, text: str, values: Mapping[str, Any]) -> None:
        """Write the answer and complete the recording. ``values``: further JSON values, such as usage and timing."""
        answer = orjson.dumps({"id": self._name, "time": self._started, "text": text, **values})
        self._do(functools.partial(self._shelf.finish, self._name, answer), len(answer))
        self._over = True

    def drop(self) -> None:
        """Discard the recording, unless it has ended."""
        if not self._over:
            self._over = True
            self._write(functools.partial(self._shelf.discard, self._name), 0, self._fail)

    def _do(self, job: Callable[[], None], size: int) -> None:
        if not (self._lost or self._over) and not self._write(job, size, self._fail):
            self.drop()
            self._lost = True

    def _fail(self, error: BaseException) -> None:
        # Logged once: later writes of this recording fail too.
        if not self._lost:
            self._lost = True
            _tell(f"dropped {self._name}", error)


class _RecordingFolder:
    """The directory on disk. Used only by the writing thread, except for the constructor.

    Entries that don't have a recording's name, are links, or hold files other than a recording's are left alone.
    """

    def __init__(self, directory: str, max_bytes: int, max_age_s: float, clock: Callable[[], float]) -> None:
        self._max_bytes = max_bytes
        self._max_age_s = max_age_s
        self._clock = clock
        self._kept: dict[str, tuple[float, int]] = {}
        """Time and size in bytes of each complete recording, oldest first."""
        self._unfinished: dict[str, int] = {}
        """Size in bytes of each incomplete recording."""
        self._used = 0
        """Bytes of all complete recordings."""
        try:
            self._fd = _open_directory(directory)
        except OSError as error:
            # flock reports a lock that another process holds as EWOULDBLOCK.
            why = "another daemon records into it" if isinstance(error, BlockingIOError) else error.strerror
            advice = "choose a folder of this daemon's own that it can write to, with --recordings"
            raise ConfigError(f"recordings {printable(directory)}: {why}: {advice}") from error

    def close(self) -> None:
        os.close(self._fd)

    # -- what is there -------------------------------------------------------------------------------------------

    def read(self) -> None:
        """Find the complete recordings, and remove those that an interrupted daemon left incomplete."""
        with os.scandir(self._fd) as entries:
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        found = {}
        for name in names:
            try:
                if _UNFINISHED.fullmatch(name):
                    self._remove(name)
                elif _NAME.fullmatch(name) and (recorded := self._look(name)) is not None:
                    found[name] = recorded
            except OSError as error:
                log.warning("recordings: skipped %s: %s", name, error.strerror)
        self._kept = dict(sorted(found.items(), key=lambda item: item[1]))
        self._used = sum(size for _time, size in found.values())
        self.tidy()

    def tidy(self) -> None:
        """Remove recordings that are too old, then the oldest ones until the rest fits ``max_bytes``."""
        before = self._clock() - self._max_age_s if self._max_age_s else -math.inf
        while self._kept and (self._used > self._max_bytes or next(iter(self._kept.values()))[0] < before):
            self._remove_oldest()

    def _remove_oldest(self) -> None:
        name = next(iter(self._kept))
        self._used -= self._kept.pop(name)[1]
        try:
            # Renamed first, so that an interrupted removal leaves no partial recording.
            if self._look(name) is not None:
                os.rename(name, _unfinished(name), src_dir_fd=self._fd, dst_dir_fd=self._fd)
                self._remove(_unfinished(name))
        except FileNotFoundError:
            log.info("recordings: %s was removed by another program", name)
        except OSError as error:
            log.warning("recordings: %s could not be removed: %s", name, error.strerror)

    def _remove(self, name: str) -> None:
        if self._look(name) is None:
            return
        with self._opened(name) as folder:
            for file in os.listdir(folder):
                os.unlink(file, dir_fd=folder)
        os.rmdir(name, dir_fd=self._fd)

    def _look(self, name: str) -> tuple[float, int] | None:
        """Modification time and size in bytes of a directory; ``None`` if it holds files other than a recording's."""
        size = OVERHEAD_BYTES
        with self._opened(name) as folder:
            for file in os.listdir(folder):
                status = os.stat(file, dir_fd=folder, follow_symlinks=False)
                if file not in _FILES or not stat.S_ISREG(status.st_mode):
                    log.warning("recordings: skipped %s, which contains %s", name, printable(file))
                    return None
                size += status.st_size
            return os.fstat(folder).st_mtime, size

    # -- a new one -----------------------------------------------------------------------------------------------

    def begin(self, name: str, payload: bytes) -> None:
        self._unfinished[name] = 0
        with self._whole_or_not_at_all(name):
            self._reserve(name, OVERHEAD_BYTES + len(payload))
            os.mkdir(_unfinished(name), 0o700, dir_fd=self._fd)
            self._append(name, REQUEST, payload)

    def hear(self, name: str, pcm: bytes) -> None:
        with self._whole_or_not_at_all(name):
            sound = pcm16(pcm)
            self._reserve(name, len(sound))
            self._append(name, AUDIO, sound, begin=bytes(WAV_HEADER_BYTES))

    def finish(self, name: str, answer: bytes) -> None:
        with self._whole_or_not_at_all(name):
            self._reserve(name, len(answer))
            self._append(name, ANSWER, answer)
            with self._opened(_unfinished(name)) as folder:
                for file in os.listdir(folder):
                    _complete(file, folder)
            os.rename(_unfinished(name), name, src_dir_fd=self._fd, dst_dir_fd=self._fd)
            size = self._unfinished.pop(name)
            self._kept[name] = (self._clock(), size)
            self._used += size
        # Last, so that a recording that fails doesn't remove others.
        self.tidy()

    def discard(self, name: str) -> None:
        self._unfinished.pop(name, None)
        with contextlib.suppress(FileNotFoundError):  # Its directory was not created yet.
            self._remove(_unfinished(name))

    @contextlib.contextmanager
    def _whole_or_not_at_all(self, name: str) -> Iterator[None]:
        try:
            if name not in self._unfinished:
                raise OSError(errno.ECANCELED, "a part of it could not be written")
            yield
        except BaseException:
            # What can't be removed now is removed at the next start of the daemon.
            with contextlib.suppress(OSError):
                self.discard(name)
            raise

    def _append(self, name: str, file: str, data: bytes, begin: bytes = b"") -> None:
        """Append ``data``, whose size is reserved, to a recording's file; a new file begins with ``begin``."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        with (
            self._opened(_unfinished(name)) as folder,
            open(os.open(file, flags, 0o600, dir_fd=folder), "ab") as opened,
        ):
            if not opened.tell():
                opened.write(begin)
            opened.write(data)

    def _reserve(self, name: str, size: int) -> None:
        if sum(self._unfinished.values()) + size > self._max_bytes:
            raise OSError(errno.EFBIG, "larger than recordings_bytes allows, with those that are being recorded")
        self._unfinished[name] += size

    @contextlib.contextmanager
    def _opened(self, name: str) -> Iterator[int]:
        fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._fd)
        try:
            yield fd
        finally:
            os.close(fd)


def _open_directory(directory: str) -> int:
    with contextlib.suppress(FileExistsError):
        os.mkdir(directory, 0o700)
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # Exclusive: another daemon's incomplete recordings would be removed as left by an interrupted one.
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        trial = _unfinished("chat_" + secrets.token_hex(6))
        os.mkdir(trial, 0o700, dir_fd=fd)
        os.rmdir(trial, dir_fd=fd)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _unfinished(name: str) -> str:
    return f".{name}.part"


def _complete(file: str, folder: int) -> None:
    """Write a WAV file's header, now that its length is known, and sync the file to disk."""
    fd = os.open(file, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        if file == AUDIO:
            os.pwrite(fd, wav_header(os.fstat(fd).st_size - WAV_HEADER_BYTES), 0)
        os.fsync(fd)
    finally:
        os.close(fd)
