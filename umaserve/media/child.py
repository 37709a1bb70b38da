"""A process of its own for each file that ffmpeg decodes: what a client's file crashes or fills is that alone."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from typing import Any, BinaryIO

import orjson

from umaserve.media.errors import MediaError

MAX_MEMORY_BYTES = 2 << 30
"""Of address space, the libraries' included; 4K of 10 bits takes less than half of it."""
MAX_CPU_S = 90
"""Five times what half an hour of 1080p takes: 18 s of one core for 100 MB of H.264 with a key picture each 8 s."""
MAX_SECONDS = 300
"""All who sent media wait for it meanwhile. Beside threads that compute, which it makes way for, it gets a tenth of a
core at worst."""
MAX_ANSWER_BYTES = 768 << 20
NONSENSE = "can't be decoded: its decoder answered with nonsense"

_MAX_HEAD_BYTES = 1 << 16
# Not from the working directory (-P), but from where this process has its own modules.
_PROGRAM = ("-P", "-m", "umaserve.media.decoder")


def decoded(data: bytes, *task: str) -> tuple[dict[str, Any], list[bytes]]:
    """What ``umaserve.media.decoder`` makes of a file: the head, of which nothing is checked yet, and its parts, of at
    most ``MAX_ANSWER_BYTES`` together. Blocks; raises ``MediaError``.

    The answer is a line of JSON, which says in ``parts`` how many bytes each of them has, and the parts. Both files are
    in memory, so that neither process waits for the other while one writes.
    """
    limits = [str(limit) for limit in (MAX_MEMORY_BYTES, MAX_CPU_S, MAX_ANSWER_BYTES)]
    try:
        with _file() as question, _file() as answer:
            question.write(data)
            question.seek(0)
            ended = subprocess.run(
                [sys.executable, *_PROGRAM, *limits, *task],
                stdin=question,
                stdout=answer,
                stderr=subprocess.DEVNULL,
                env=_environment(),
                timeout=MAX_SECONDS,
                # Ctrl-C is for the daemon, which lets its requests end first.
                start_new_session=True,
            )
            if ended.returncode:
                raise MediaError(f"can't be decoded: {_end(ended.returncode)}")
            return _received(answer)
    except subprocess.TimeoutExpired:
        raise MediaError(f"can't be decoded: it takes longer than {MAX_SECONDS} s") from None
    except OSError as error:
        raise MediaError(f"can't be decoded: no decoder can be started: {error.strerror}") from error


def _file() -> BinaryIO:
    return open(os.memfd_create("umaserve-media"), "w+b")


def _environment() -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "PYTHONHOME") if name in os.environ}
    # Threads that nothing here uses, each with its own memory, would count against the limit.
    return {**kept, "PYTHONPATH": os.pathsep.join(sys.path), "OPENBLAS_NUM_THREADS": "1"}


def _end(status: int) -> str:
    match -status:
        case signal.SIGXCPU:
            return f"it takes more than {MAX_CPU_S} s of computing"
        case signal.SIGKILL:
            return "its decoder was killed, as it happens where memory is short"
        case number if number > 0:
            return f"it crashes its decoder ({signal.strsignal(number)})"
    return f"its decoder failed (status {status})"


def _received(answer: BinaryIO) -> tuple[dict[str, Any], list[bytes]]:
    size = answer.seek(0, io.SEEK_END)
    answer.seek(0)
    try:
        head = orjson.loads(answer.readline(_MAX_HEAD_BYTES))
    except orjson.JSONDecodeError:
        raise MediaError(NONSENSE) from None
    match head:
        case {"error": str(message)}:
            raise MediaError(message)
        case {"parts": list(lengths)} if all(type(length) is int and length >= 0 for length in lengths):
            if answer.tell() + sum(lengths) == size <= MAX_ANSWER_BYTES:
                return head, [answer.read(length) for length in lengths]
    raise MediaError(NONSENSE)
