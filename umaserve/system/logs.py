"""The log: one line per record, as text for people or as JSON for programs."""

from __future__ import annotations

import datetime
import logging
import sys
from typing import Any

import orjson


class TextFormatter(logging.Formatter):
    """``time level message name=value …``, a traceback on the lines below."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s", "%Y-%m-%dT%H:%M:%S")

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
        return orjson.dumps(values, default=str).decode()


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields: dict[str, Any] = getattr(record, "fields", {})
    return fields


def _plain(value: object) -> str:
    # A value chosen by a client, such as an id, must not forge a line or a field.
    text = str(value)
    return text if text.isascii() and text.isprintable() and " " not in text and text else orjson.dumps(text).decode()


def configure(level: str, form: str) -> None:
    """Log records of ``level`` and above to standard error; ``form`` is "text" or "json"."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
