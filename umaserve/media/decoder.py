"""The program of the child process that ``child`` starts: decodes the file on standard input, with few privileges.

Arguments: the limits of memory in bytes, CPU time in seconds and output in bytes; then the task, which is ``sound``, or
``film`` and ``stack_frames``.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Sequence
from typing import Any, BinaryIO

import orjson

from umaserve.media import film_decoder, sound_decoder
from umaserve.media.errors import MediaError, needed
from umaserve.system import child

_NICENESS = 10


def main(arguments: Sequence[str]) -> None:
    memory_bytes, cpu_s, answer_bytes = (int(limit) for limit in arguments[:3])
    head: dict[str, Any] = {}
    parts: list[memoryview] = []
    try:
        with needed():
            import av  # noqa: F401
        _give_up_rights(memory_bytes, cpu_s, answer_bytes)
        head, parts = _answer(sys.stdin.buffer, arguments[3:])
    except MediaError as error:
        head = {"error": str(error)}
    except MemoryError:
        head = {"error": f"can't be decoded: it takes more than {memory_bytes >> 20} MiB of memory"}
    _write({**head, "parts": [len(part) for part in parts]}, parts)


def _give_up_rights(memory_bytes: int, cpu_s: int, answer_bytes: int) -> None:
    child.end_with_parent()
    os.nice(_NICENESS)
    child.prefer_oom_kill()
    limits = {
        resource.RLIMIT_CPU: cpu_s,
        resource.RLIMIT_FSIZE: answer_bytes,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NPROC: 0,
        # Enough for PyAV's late imports.
        resource.RLIMIT_NOFILE: 16,
    }
    if child.memory_can_be_limited():
        limits[resource.RLIMIT_AS] = memory_bytes
    for limit, most in limits.items():
        _, hard = resource.getrlimit(limit)
        if hard != resource.RLIM_INFINITY:
            most = min(most, hard)
        # SIGXCPU comes at the soft limit of CPU time, SIGKILL at the hard limit.
        resource.setrlimit(limit, (most, most + 1 if limit == resource.RLIMIT_CPU and most != hard else most))


def _answer(file: BinaryIO, task: Sequence[str]) -> tuple[dict[str, Any], list[memoryview]]:
    if task[0] == "sound":
        samples, rate = sound_decoder.decode(file)
        return {"rate": rate}, [samples.data.cast("B")]
    film = film_decoder.decode(file, int(task[1]))
    frames = [[frame.time_s, [[picture.width, picture.height] for picture in frame.pictures]] for frame in film.frames]
    parts = [memoryview(picture.rgb) for frame in film.frames for picture in frame.pictures]
    if film.samples is not None:
        parts.append(film.samples.data.cast("B"))
    return {"frames": frames, "rate": film.rate}, parts


def _write(head: dict[str, Any], parts: Sequence[memoryview]) -> None:
    out = sys.stdout.buffer
    out.write(orjson.dumps(head) + b"\n")
    for part in parts:
        out.write(part)
    out.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
    # Skips the libraries' cleanup at exit, which the process's end makes unnecessary.
    os._exit(0)
