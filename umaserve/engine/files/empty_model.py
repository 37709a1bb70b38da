"""The program that measures what memory a model takes, without taking it; ``needs`` runs it.

Arguments: the file, the settings that matter as a JSON object, and for a draft model the sequences of the model that it
drafts for, else 0. Its output is a JSON object: ``Needs``.

llama.cpp then makes all tensors without their memory, and logs what they would take. Only its log tells, in lines that
another version may write in another way.
"""

from __future__ import annotations

import dataclasses
import logging
import re
import sys
from collections.abc import Iterable, Sequence

import orjson

from umaserve.core.errors import ModelError
from umaserve.engine.llama import backends, llama_log
from umaserve.engine.llama.model import Model
from umaserve.engine.loading import is_parted
from umaserve.engine.needs import AMPLE_SHARE, Needs
from umaserve.settings.daemon import Config
from umaserve.system import program
from umaserve.system.memory import resident_bytes

_CELLS = re.compile(r"^\w+: size = +([0-9.]+) MiB \(")
"""Line with the size of one of the model's caches, in MiB: K and V, recurrent states."""
_BUFFER = re.compile(r"^\w+: +(\S+) +(?:compute|output) buffer size = +([0-9.]+) MiB")


class Lines(logging.Handler):
    """Keeps what llama.cpp logs."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def measured(path: str, config: Config, sequences: int) -> Needs:
    """Measure what memory a model takes. Raises ``ModelError`` also where llama.cpp's log says nothing of memory."""
    lines = Lines()
    llama_log.log.addHandler(lines)
    llama_log.log.setLevel(logging.DEBUG)
    llama_log.log.propagate = False
    before = resident_bytes()
    parted = is_parted(config) and not sequences
    model = Model(path, config, lambda _fraction: True, parted=parted, sequences=sequences, empty=True)
    vocabulary = resident_bytes() - before
    info = model.info(0)
    of_box = 1.0 - info.gpu_bytes / max(1, info.size_bytes)
    cells = cell_bytes(lines.lines)
    return Needs(
        weights=round(info.size_bytes * of_box),
        cells=round(cells * of_box),
        computing=buffer_bytes(lines.lines),
        vocabulary=vocabulary,
        n_ctx=model.n_ctx,
        n_seq_max=model.n_seq_max,
        gpu_cells=round(cells * (1.0 - of_box)),
        gpu_room=max(0, round(backends.free_gpu_bytes() * AMPLE_SHARE) - info.gpu_bytes),
    )


def cell_bytes(lines: Iterable[str]) -> int:
    """Bytes of all caches in llama.cpp's log; a model without a memory has none."""
    return round(sum(float(found[1]) for line in lines if (found := _CELLS.match(line))) * 2**20)


def buffer_bytes(lines: Sequence[str]) -> int:
    """Bytes of the buffers that llama.cpp computes in, in the box's memory. Raises ``ModelError`` where there is
    none."""
    latest = {line.partition("=")[0]: found for line in lines if (found := _BUFFER.match(line))}
    sizes = [float(found[2]) for found in latest.values() if found[1] == "CPU" or found[1].endswith("_Host")]
    if not sizes:
        raise ModelError("llama.cpp's log doesn't say what memory it computes in")
    return round(sum(sizes) * 2**20)


def main(arguments: Sequence[str]) -> int:
    """Run the program; returns the exit status. Errors are on standard error."""
    path, settings, sequences = arguments
    program.begin()
    try:
        needs = measured(path, Config(**orjson.loads(settings)), int(sequences))
    except ModelError as error:
        print(error, file=sys.stderr)
        return 1
    sys.stdout.buffer.write(orjson.dumps(dataclasses.asdict(needs)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
