"""journald, as the log's reader: each record with its priority, and its fields under names that journalctl finds."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping
from typing import TextIO

SOCKET = "/run/systemd/journal/socket"
"""Socket where journald takes fields."""
_IDENTIFIER = "umaserve"
_PRIORITIES = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
"""Priorities of syslog(3), by the least level of Python's records; 7 below."""


def is_journal(stream: TextIO, environment: Mapping[str, str]) -> bool:
    """Whether journald reads what is written there (systemd.exec(5), JOURNAL_STREAM)."""
    try:
        about = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False  # It is closed, or no file.
    return environment.get("JOURNAL_STREAM") == f"{about.st_dev}:{about.st_ino}"


class JournalHandler(logging.Handler):
    """Sends records with their fields, as journald's native protocol has them: ``model`` is ``UMASERVE_MODEL`` there.
    ``lines`` gets those that journald does not take so: they are too large, or it is busy or not to be seen from
    here."""

    def __init__(self, path: str, lines: logging.Handler) -> None:
        super().__init__()
        self._path = path
        self._lines = lines
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            message = self.format(record)
        except Exception:
            # As the other handlers of logging: a mistake in a line is shown, and harms nobody.
            self.handleError(record)
            return
        fields = getattr(record, "fields", {})
        told = {
            "MESSAGE": message,
            "PRIORITY": _priority(record.levelno),
            "SYSLOG_IDENTIFIER": _IDENTIFIER,
            "UMASERVE_LOGGER": record.name,
            **{f"UMASERVE_{name.upper()}": value for name, value in fields.items() if value is not None},
        }
        try:
            # By its path each time: after a restart of journald another socket is there.
            self._socket.sendto(b"".join(_field(name, str(value)) for name, value in told.items()), self._path)
        except OSError:
            self._lines.handle(record)

    def close(self) -> None:
        self._socket.close()
        super().close()


class LineFormatter(logging.Formatter):
    """The lines of ``form``, each after its priority, which journald takes off again (sd-daemon(3))."""

    def __init__(self, form: logging.Formatter) -> None:
        super().__init__()
        self._form = form

    def format(self, record: logging.LogRecord) -> str:
        priority = _priority(record.levelno)
        return "\n".join(f"<{priority}>{line}" for line in self._form.format(record).split("\n"))


def _priority(level: int) -> int:
    return next((number for least, number in _PRIORITIES if level >= least), 7)


def _field(name: str, text: str) -> bytes:
    """A value with line breaks has its length before it, in 8 bytes: it can't forge a field."""
    value = text.encode(errors="backslashreplace")
    if b"\n" in value:
        return name.encode() + b"\n" + len(value).to_bytes(8, "little") + value + b"\n"
    return name.encode() + b"=" + value + b"\n"
