"""Runs each decoding by ffmpeg in a child process with limits: a bad file can crash or exhaust only that process."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from typing import Any, BinaryIO

import orjson

from umaserve.media.errors import MediaError
from umaserve.system.child import nameless_file

MAX_MEMORY_BYTES = 2 << 30
"""Limit on the address space, including the libraries. 4K video of 10 bits takes less than half of it."""
MAX_CPU_S = 90
"""Limit on CPU time. Half an hour of 1080p takes a fifth: 18 s for 100 MB of H.264 with a key frame every 8 s."""
MAX_SECONDS = 300
"""Timeout. All other requests with media wait meanwhile. Beside compute threads, which have priority, the child gets a
tenth of a core at worst."""
MAX_ANSWER_BYTES = 768 << 20
NONSENSE = "can't be decoded: its decoder has sent an invalid answer"

_FILE = "umaserve-media"
_MAX_HEAD_BYTES = 1 << 16
# -P: import from this process's sys.path, not from the working directory.
_PROGRAM = ("-P", "-m", "umaserve.media.decoder")


def decoded(data: bytes | memoryview, *task: str) -> tuple[dict[str, Any], list[bytes]]:
    """Decode a file with ``umaserve.media.decoder``: returns the head, which is unchecked JSON, and the binary parts,
    of at most ``MAX_ANSWER_BYTES`` together. Blocks. Raises ``MediaError``.

    The child's output is one line of JSON, whose ``parts`` has the length of each part in bytes, followed by the parts.
    Input and output are files rather than pipes, so that neither process blocks on the other.
    """
    limits = [str(limit) for limit in (MAX_MEMORY_BYTES, MAX_CPU_S, MAX_ANSWER_BYTES)]
    try:
        with nameless_file(_FILE) as question, nameless_file(_FILE) as answer:
            question.write(data)
            question.seek(0)
            ended = subprocess.run(
                [sys.executable, *_PROGRAM, *limits, *task],
                stdin=question,
                stdout=answer,
                stderr=subprocess.DEVNULL,
                env=_environment(),
                timeout=MAX_SECONDS,
                # Ctrl-C must reach only the daemon, which drains first.
                start_new_session=True,
            )
            if ended.returncode:
                raise MediaError(f"can't be decoded: {_end(ended.returncode)}")
            return _received(answer)
    except subprocess.TimeoutExpired:
        raise MediaError(f"can't be decoded: it takes longer than {MAX_SECONDS} s") from None
    except OSError as error:
        raise MediaError(f"can't be decoded: no decoder can be started: {error.strerror}") from error


def _environment() -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "PYTHONHOME") if name in os.environ}
    # OpenBLAS would start unused threads, whose memory counts against the limit.
    return {**kept, "PYTHONPATH": os.pathsep.join(sys.path), "OPENBLAS_NUM_THREADS": "1"}


def _end(status: int) -> str:
    match -status:
        case signal.SIGXCPU:
            return f"it takes more than {MAX_CPU_S} s of computing"
        case signal.SIGKILL:
            return "its decoder was killed, probably since memory was short"
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
