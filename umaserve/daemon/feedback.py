"""The clients' feedback, as JSON lines in a file of bounded size and age."""

from __future__ import annotations

import errno
import logging
import os
import re
import stat
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson

from umaserve.core.commands import Feedback
from umaserve.core.errors import ConfigError, Fault, RequestError
from umaserve.sessions.caller import Caller

log = logging.getLogger(__name__)

MAX_BYTES = 16 << 20
MAX_AGE = timedelta(days=30)

# No pipe is waited for, no link followed, no terminal taken over.
_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_TIME = re.compile(rb'\{"time":"([^"]{1,40})"')


class FeedbackLog:
    """One record a line, each with its ``time`` in UTC first.

    Before a record that would make the file longer than ``MAX_BYTES``, or that comes ``MAX_AGE`` after the first one,
    the file is renamed to PATH.1, in the place of the one before, and begun anew. Others may move it away, too.
    """

    def __init__(self, path: str) -> None:
        """Raises ``ConfigError`` for a file that can't be appended to or holds something else."""
        self._path = path
        try:
            self._fd = _open(path)
        except OSError as error:
            raise ConfigError(
                f"feedback log {path}: {error.strerror}: choose a regular file, not a link, that this user may write,"
                " with --feedback-log"
            ) from error

    def keep(self, feedback: Feedback, caller: Caller) -> None:
        """Append feedback of ``caller``; raises ``RequestError`` where it can't be written."""
        try:
            self.append({"peer": caller.peer, "key": caller.key, **feedback.values}, datetime.now(UTC))
        except OSError as error:
            log.error("feedback could not be written: %s", error)
            raise RequestError(Fault.DECODE_FAILED, "feedback", "the server could not store it; see its log") from None

    def append(self, values: Mapping[str, Any], now: datetime) -> None:
        """Write down ``values``, without a ``time``, whole or not at all. Raises ``OSError``: a full disk, say."""
        assert now.tzinfo is not None
        assert "time" not in values
        stamp = now.astimezone(UTC).isoformat(timespec="milliseconds")
        line = orjson.dumps({"time": stamp, **values}) + b"\n"
        if len(line) > MAX_BYTES:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), self._path)
        if self._moved():
            self._reopen()
        begun = _first_time(self._fd)
        size = os.fstat(self._fd).st_size
        if size + len(line) > MAX_BYTES or (begun is not None and now - begun >= MAX_AGE):
            os.rename(self._path, f"{self._path}.1")
            self._reopen()
            size = os.fstat(self._fd).st_size
        if os.write(self._fd, line) < len(line):
            os.ftruncate(self._fd, size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._path)

    def close(self) -> None:
        os.close(self._fd)

    def _moved(self) -> bool:
        try:
            return not os.path.samestat(os.lstat(self._path), os.fstat(self._fd))
        except FileNotFoundError:
            return True

    def _reopen(self) -> None:
        # Where the new one can't be opened, the old one stays for the next try.
        fd = _open(self._path)
        os.close(self._fd)
        self._fd = fd


def _open(path: str) -> int:
    fd = os.open(path, _FLAGS, 0o600)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        _first_time(fd)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _first_time(fd: int) -> datetime | None:
    """The time of the first record; ``None`` in an empty file. Raises ``OSError`` for one that holds no records."""
    start = os.pread(fd, 64, 0)
    if not start:
        return None
    match = _TIME.match(start)
    try:
        time = None if match is None else datetime.fromisoformat(match[1].decode())
    except ValueError:
        time = None
    if time is None or time.tzinfo is None:
        raise OSError(errno.EINVAL, "its first line is not a feedback record")
    return time
