"""Has chat templates rendered in a process of their own, which hostile ones end, and starts it when it is needed."""

from __future__ import annotations

import atexit
import contextlib
import logging
import signal
import socket
import subprocess
import threading
from collections.abc import Mapping
from datetime import datetime
from io import BufferedRWPair
from typing import Any

import jinja2

from umaserve.engine.template.template_program import receive, send
from umaserve.system import program

log = logging.getLogger(__name__)

MAX_S = 10.0
"""Most seconds for one rendering. A million steps of a template take less than two."""

_PROGRAM = "umaserve.engine.template.template_program"


class TooSlow(Exception):
    """Raised where the rendering took too long."""


class TooLong(Exception):
    """Raised where the text is longer than it may be."""


class Renderer:
    """One process for all templates. Safe from any thread; one rendering at a time."""

    def __init__(self, max_s: float = MAX_S) -> None:
        """``max_s``: seconds that one rendering may take."""
        self._max_s = max_s
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._stream: BufferedRWPair | None = None

    def start(self) -> None:
        """Start the process, unless it runs. Raises ``OSError``."""
        with self._lock:
            self._started()

    def rendered(
        self, source: str, values: Mapping[str, Any] | None, today: datetime, limit: int = 0, steps: int = 0
    ) -> str:
        """The text that the template ``source`` makes of ``values``, which are as JSON has them; ``None``: it is only
        compiled. ``limit`` is in characters; ``steps`` as in ``template_sandbox``. Blocks.

        Raises ``TooSlow``, ``TooLong``, ``jinja2.TemplateError`` for all that goes wrong in the template,
        ``jinja2.TemplateSyntaxError`` where it can't be compiled, and ``OSError`` where no process can be started.
        """
        asked = {
            "source": source,
            "values": None if values is None else dict(values),
            "today": today.isoformat(),
            "limit": limit,
            "steps": steps,
        }
        with self._lock:
            answer = self._asked(self._started(), asked)
        match answer:
            case {"text": str(text)}:
                return text
            case {"too_long": True}:
                raise TooLong
            case {"failure": str(failure), "line": int(line)}:
                raise jinja2.TemplateSyntaxError(failure, line)
            case {"failure": str(failure)}:
                raise jinja2.TemplateError(failure)
        raise jinja2.TemplateError("the process that renders it has sent an invalid answer")

    def close(self) -> None:
        """End the process, if it runs."""
        with self._lock:
            self._end()

    def _started(self) -> BufferedRWPair:
        if self._stream is None:
            ours, theirs = socket.socketpair()
            with ours, theirs:
                self._process = program.start(
                    _PROGRAM, str(theirs.fileno()), str(self._max_s), pass_fds=[theirs.fileno()]
                )
                self._stream = ours.makefile("rwb")
        return self._stream

    def _asked(self, stream: BufferedRWPair, asked: dict[str, Any]) -> dict[str, Any]:
        answer = None
        try:
            send(stream, asked)
            answer = receive(stream)
        except ValueError as error:
            # What is no JSON, and so was not sent, or is none though it was received.
            self._end()
            raise jinja2.TemplateError(str(error)) from None
        except OSError:
            log.debug("the process that renders chat templates has ended")
        if answer is not None:
            return answer
        status = self._end()
        if status == -signal.SIGALRM:
            log.warning("a chat template took longer than %g s for one prompt", self._max_s)
            raise TooSlow(f"it takes longer than {self._max_s:g} s")
        raise jinja2.TemplateError(f"its rendering {program.end(status)}")

    def _end(self) -> int:
        """End the process, if it runs; returns the exit status."""
        process, stream = self._process, self._stream
        self._process = self._stream = None
        if process is None or stream is None:
            return 0
        with contextlib.suppress(OSError):
            stream.close()
        # It ends by itself, as its stream does, unless it is in the middle of something.
        try:
            return process.wait(1.0)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()


RENDERER = Renderer()
"""Renderer of this process."""
atexit.register(RENDERER.close)
