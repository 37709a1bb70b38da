"""The log: one line per record, as text for people or as JSON for programs; journald gets the fields too."""

from __future__ import annotations

import datetime
import logging
import os
import random
import sys
from typing import Any

import orjson

from umaserve.system import journal
from umaserve.system.terminal import escaped

requests = logging.getLogger("umaserve.requests")
"""Logger for the lines about single requests, of which there may be far too many to keep."""


class TextFormatter(logging.Formatter):
    """``time level message name=value …``, a traceback on the lines below; ``bare``: without time and level."""

    def __init__(self, *, bare: bool = False) -> None:
        super().__init__("%(message)s" if bare else "%(asctime)s %(levelname)-7s %(message)s", "%Y-%m-%dT%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        return escaped(super().format(record))

    def formatMessage(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {name}={_plain(value)}" for name, value in _fields(record).items() if value is not None)
        return super().formatMessage(record) + fields


class JsonFormatter(logging.Formatter):
    """One JSON object: ``time``, ``level``, ``logger``, ``message``, the record's fields, ``traceback``."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.datetime.fromtimestamp(record.created, datetime.UTC).isoformat(timespec="milliseconds")
        values: dict[str, Any] = {
            "time": time,
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            values["traceback"] = self.formatException(record.exc_info)
        return escaped(orjson.dumps(values, default=str).decode())


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields: dict[str, Any] = getattr(record, "fields", {})
    return fields


def _plain(value: object) -> str:
    # A value chosen by a client, such as an id, must not forge a line or a field.
    text = str(value)
    return text if text.isascii() and text.isprintable() and " " not in text and text else orjson.dumps(text).decode()


def configure(level: str, form: str, **about: str) -> None:
    """Log records of ``level`` and above to standard error; ``form`` is "text" or "json". ``about``: fields of all."""

    def described(record: logging.LogRecord) -> bool:
        record.__dict__["fields"] = {**_fields(record), **about}
        return True

    to_journal = journal.is_journal(sys.stderr, os.environ)
    formatter = JsonFormatter() if form == "json" else TextFormatter(bare=to_journal)
    handler: logging.Handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(journal.LineFormatter(formatter) if to_journal else formatter)
    if to_journal:
        handler = journal.JournalHandler(journal.SOCKET, handler)
        handler.setFormatter(formatter)
    handler.addFilter(described)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def sample_requests(share: float) -> None:
    """Log this share of the lines about single requests, from 0 to 1, chosen at random."""
    requests.filters = [lambda _record: random.random() < share]
