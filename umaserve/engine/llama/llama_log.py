"""Where llama.cpp's log goes: into the daemon's log, or the errors of a program of its own to standard error."""

from __future__ import annotations

import ctypes
import logging
import sys

import llama_cpp

log = logging.getLogger(__name__)

ERROR_LEVEL = 4
"""GGML_LOG_LEVEL_ERROR in ggml.h."""
_LEVELS = {3: logging.DEBUG, ERROR_LEVEL: logging.WARNING}


@llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]
def log_line(level: int, text: bytes, _user_data: object) -> None:
    # llama.cpp's INFO is logged as DEBUG: it prints some hundred lines for each model.
    log.log(_LEVELS.get(level, logging.DEBUG), "%s", text.decode(errors="replace").rstrip())


@llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]
def _print_error(level: int, text: bytes, _user_data: object) -> None:
    if level == ERROR_LEVEL:
        sys.stderr.buffer.write(text)
        sys.stderr.flush()


def log_all() -> None:
    llama_cpp.llama_log_set(log_line, ctypes.c_void_p())


def print_errors() -> None:
    llama_cpp.llama_log_set(_print_error, ctypes.c_void_p())
