"""The program that renders chat templates, which come with models from anywhere: a hostile one ends only this process.

Its arguments are the descriptor of its socket and the seconds after which one rendering has it killed; it has at most
``MAX_BYTES`` of memory.
"""

from __future__ import annotations

import json
import signal
import socket
import struct
import sys
from datetime import datetime
from io import BufferedRWPair
from typing import Any

import jinja2

from umaserve.engine.template.template_sandbox import FAILURES, STEPS, NoTools, Sandbox
from umaserve.system import program

MAX_BYTES = 2 << 30
"""Most bytes of address space. Two texts of the longest that a template may make take half of it."""
MAX_TEMPLATES = 16
"""Most compiled templates that are kept: a model has two."""

_LENGTH = struct.Struct("!Q")


def send(stream: BufferedRWPair, message: dict[str, Any]) -> None:
    data = json.dumps(message).encode()
    stream.write(_LENGTH.pack(len(data)))
    stream.write(data)
    stream.flush()


def receive(stream: BufferedRWPair) -> dict[str, Any] | None:
    """The next message; ``None`` at the end of the stream."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    data = stream.read(length)
    if len(data) < length:
        return None
    message: dict[str, Any] = json.loads(data)
    return message


class Templates:
    """Compiles each template once."""

    def __init__(self) -> None:
        self._today = datetime.min
        self._sandbox = Sandbox(lambda: self._today)
        self._compiled: dict[str, jinja2.Template] = {}

    def answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Answer to one request: ``text``, or why there is none: ``too_long``, or a ``failure``, in which line."""
        try:
            self._today = datetime.fromisoformat(asked["today"])
            template = self._template(asked["source"])
            return {"text": ""} if asked["values"] is None else _rendered(template, asked)
        except (*FAILURES, SyntaxError, MemoryError) as error:
            if isinstance(error, jinja2.TemplateSyntaxError):
                return {"failure": error.message or "", "line": error.lineno}
            return {"failure": str(error) or type(error).__name__}

    def _template(self, source: str) -> jinja2.Template:
        template = self._compiled.get(source)
        if template is None:
            if len(self._compiled) >= MAX_TEMPLATES:
                self._compiled.clear()
            template = self._compiled[source] = self._sandbox.template(source)
        return template


def _rendered(template: jinja2.Template, asked: dict[str, Any]) -> dict[str, Any]:
    values = {**asked["values"], STEPS: [asked["steps"]]}
    if values["tools"] is None:
        values["tools"] = NoTools(name="tools")
    parts, length = [], 0
    for part in template.generate(values):
        parts.append(part)
        length += len(part)
        if length > asked["limit"]:
            return {"too_long": True}
    return {"text": "".join(parts)}


def main() -> None:
    program.confine(MAX_BYTES)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    templates = Templates()
    descriptor, max_s = sys.argv[1:]
    with socket.socket(fileno=int(descriptor)) as end, end.makefile("rwb") as stream:
        while (asked := receive(stream)) is not None:
            # The kernel ends this process, whatever it is in the middle of.
            signal.setitimer(signal.ITIMER_REAL, float(max_s))
            answer = templates.answer(asked)
            signal.setitimer(signal.ITIMER_REAL, 0)
            send(stream, answer)


if __name__ == "__main__":
    main()
