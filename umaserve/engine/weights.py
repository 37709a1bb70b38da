"""Which file of a model's weights this processor computes fastest: the model's own, or a converted copy.

llama.cpp has fast matrix kernels for some formats of weights only. With the others, a decode of 64 tokens takes almost
64 times as long as one of a single token, which prompts and many streams pay for. Such weights are converted to Q8_0
once, without a loss worth naming (`python -m bench.weights` measures it), if the copy proves faster on this box.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import llama_cpp
import orjson

from umaserve.engine import backends, gguf, requantize
from umaserve.engine.converted_copy import ConvertedCopy, folder_of
from umaserve.engine.row_times import Comparison
from umaserve.errors import ModelError
from umaserve.settings.daemon import Config
from umaserve.system import program
from umaserve.system.cores import processor, usable_cores
from umaserve.system.memory import available_bytes

log = logging.getLogger(__name__)

SLOW_TYPES = {llama_cpp.GGML_TYPE_Q4_1: "Q4_1", llama_cpp.GGML_TYPE_Q5_1: "Q5_1"}
"""Types of tensors without matrix kernels on x86 and ARM. Where a build has some after all, the measurement tells."""
ROWS = (1, 64)
"""Tokens of the two decodes that are compared: one stream's, and a prompt's or many streams'."""
MAX_LOSS = 0.05
"""Of one stream's speed. The copy is larger, so it can be slower where memory is the limit."""
MIN_GAIN = 0.2
"""Of the speed of many rows, for which the copy's disk space and memory are worth it."""

MAX_DOUBT = 0.03
"""A verdict by measurements that are less certain must be beyond their doubt."""

_Q8_0_BYTES = 34 / 32
"""Bytes of a weight in Q8_0."""
_CONVERTING = 0.9
"""The conversion's share of the time; the rest is the measurement."""
_SLOWEST_BYTES_S = 4 << 20
_MEASURING_S = 1800.0
_MAX_MEMORY_SHARE = 0.75
_MAX_DISK_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Weights:
    """The file to load."""

    path: str
    converted_from: str = ""
    """Where the file is a converted copy, the type that most of the model's own weights have."""


def choose(path: str, config: Config, progress: Callable[[float], bool], available: int | None = None) -> Weights:
    """The file to load for the model at ``path``: that one, or a converted copy, which is made if need be.

    Never fails: what goes wrong is logged, and the model's own file chosen. ``progress`` is called with 0.0 to 1.0
    while a copy is made and measured, which can take minutes, and stops that by returning ``False``. ``available``: the
    bytes of memory that it may take, where not all that the box has.
    """
    as_is = Weights(path)
    on_gpu = config.n_gpu_layers != 0 and backends.have_gpu()
    if config.weights == "as-is" or on_gpu or config.rpc:
        return as_is
    try:
        contents = gguf.check(path)
    except ModelError:
        return as_is  # loading it says why
    slow = slow_type(contents)
    if slow is None:
        return as_is
    try:
        copy = ConvertedCopy(folder_of(config.weights_cache, os.environ), path, _box(config), _converter())
        wanted = _verdict(copy, config)
        if wanted is None:
            _check_failure(copy)
            wanted = _made(copy, path, slow, contents, config, progress, available)
        if not wanted:
            return as_is
        _check_memory(os.path.getsize(copy.path), available)
    except program.Cancelled:
        return as_is
    except (OSError, ModelError, program.ProgramError) as error:
        log.warning(
            "the %s weights are loaded as they are, with slower prompts than if converted to Q8_0: %s. Correct that, "
            "give --weights-cache another folder, or set --weights as-is",
            slow,
            error,
        )
        return as_is
    log.info("the weights are loaded from a converted copy", extra={"fields": {"copy": str(copy.path), "was": slow}})
    return Weights(str(copy.path), slow)


def slow_type(contents: gguf.Contents) -> str | None:
    """The name of the type that most weights have, if it is a slow one. A model in several files is left alone."""
    slow = {kind: contents.elements.get(kind, 0) for kind in SLOW_TYPES}
    if contents.parts > 1 or 2 * sum(slow.values()) < sum(contents.elements.values()):
        return None
    return SLOW_TYPES[max(slow, key=slow.__getitem__)] if sum(slow.values()) else None


def is_faster(one: Comparison, many: Comparison) -> bool | None:
    """Whether a copy is worth loading, by the decodes of ``ROWS`` tokens with the model and with the copy; ``None``
    where the box was too busy to tell."""
    enough = [_at_least(one, 1 - MAX_LOSS), _at_least(many, 1 + MIN_GAIN)]
    if False in enough:
        return False
    return None if None in enough else True


def _at_least(found: Comparison, least: float) -> bool | None:
    if found.doubt > MAX_DOUBT and abs(found.speedup - least) < found.doubt:
        return None
    return found.speedup >= least


def copy_bytes(contents: gguf.Contents, file_bytes: int) -> int:
    """At most how large the converted copy of a file of ``file_bytes`` becomes."""
    grown = sum(
        max(0, round(elements * _Q8_0_BYTES) - gguf.tensor_bytes(kind, elements))
        for kind, elements in contents.elements.items()
    )
    return file_bytes + grown


def _verdict(copy: ConvertedCopy, config: Config) -> bool | None:
    """Whether to load the copy; ``None`` where it must be made or measured first."""
    if config.weights == "converted":
        return copy.exists() or None
    return copy.is_faster()


def _box(config: Config) -> Mapping[str, str | int]:
    """What the speeds depend on, beside the file."""
    threads = config.threads or usable_cores()
    return {
        "processor": processor(),
        "llama_cpp": llama_cpp.__version__,
        "kernels": backends.kernels(),
        "threads": threads,
        "threads_batch": config.threads_batch or threads,
    }


def _converter() -> Mapping[str, str | int]:
    """What it depends on whether a file can be converted."""
    program_bytes = Path(requantize.__file__).read_bytes()
    return {"llama_cpp": llama_cpp.__version__, "program": hashlib.sha256(program_bytes).hexdigest()}


def _made(
    copy: ConvertedCopy,
    path: str,
    slow: str,
    contents: gguf.Contents,
    config: Config,
    progress: Callable[[float], bool],
    available: int | None,
) -> bool:
    """Make the copy. Unless it is wanted in any case, measure it, and keep it if it is faster. Returns whether to load
    it. Another daemon may have done so first."""
    threads = config.threads or usable_cores()
    threads_batch = config.threads_batch or threads
    file_bytes = os.path.getsize(path)
    most = copy_bytes(contents, file_bytes)
    with copy.locked(lambda: progress(0.0)):
        found = _verdict(copy, config)
        if found is not None:
            return found
        _check_failure(copy)
        _check_memory(file_bytes + most, available)
        if not copy.exists():
            log.info("llama.cpp has no fast kernels for %s weights: converting a copy to Q8_0, once", slow)
            _check_disk(copy, most)
            _convert(copy, path, most, threads_batch, progress)
        if config.weights == "converted":
            return True
        measured = program.run(
            "umaserve.engine.row_times",
            *(str(threads), str(threads_batch), ",".join(map(str, ROWS)), path, str(copy.path)),
            wanted=lambda: progress(_CONVERTING),
            max_s=_MEASURING_S,
        )
        return _decided(copy, *(Comparison(*values) for values in orjson.loads(measured)))


def _convert(copy: ConvertedCopy, path: str, most: int, threads: int, progress: Callable[[float], bool]) -> None:
    """Make the copy, of at most ``most`` bytes, or record why it can't be made."""
    try:
        program.run(
            "umaserve.engine.requantize",
            *(path, str(copy.part), "Q8_0", str(threads)),
            wanted=lambda: progress(_CONVERTING * min(1.0, _size(copy) / most)),
            max_s=60 + most / _SLOWEST_BYTES_S,
        )
        gguf.check(str(copy.part))
        copy.adopt()
    except program.ProgramStopped:
        raise
    except (ModelError, program.ProgramError) as error:
        copy.fail(str(error))
        _check_failure(copy)
    finally:
        copy.part.unlink(missing_ok=True)


def _check_failure(copy: ConvertedCopy) -> None:
    """Raise ``ModelError`` if the copy could not be made, now or at an earlier start."""
    why = copy.failure()
    if why is not None:
        raise ModelError(
            f"converting them failed ({why}), and is not tried again until {copy.record} is removed, or the model, "
            "llama.cpp or the converter changes"
        )


def _decided(copy: ConvertedCopy, one: Comparison, many: Comparison) -> bool:
    """Keep the copy or remove it, by what was measured; returns whether to load it."""
    faster = is_faster(one, many)
    why = ", ".join(
        f"{n} token{'s' * (n > 1)}: {1000 * found.first_s:.1f} ms, as Q8_0 {1000 * found.second_s:.1f} ms "
        f"({found.speedup:.0%} +-{found.doubt:.0%} of the speed)"
        for n, found in zip(ROWS, (one, many), strict=True)
    )
    if faster is None:
        log.info("the box is too busy to measure which weights are faster, so the next start does (%s)", why)
        return False
    copy.decide(faster, why)
    log.info("the converted weights are %s (%s)", "faster" if faster else "not faster, and removed", why)
    return faster


def _size(copy: ConvertedCopy) -> int:
    return copy.part.stat().st_size if copy.part.exists() else 0


def _check_disk(copy: ConvertedCopy, wanted: int) -> None:
    free = shutil.disk_usage(copy.folder).free
    if wanted > free * _MAX_DISK_SHARE:
        problem = f"the copy takes up to {wanted >> 20} MiB, more than half of the {free >> 20} MiB that are free"
        raise OSError(errno.ENOSPC, problem, str(copy.folder))


def _check_memory(wanted: int, available: int | None) -> None:
    available = available_bytes() if available is None else available
    if wanted > available * _MAX_MEMORY_SHARE:
        raise OSError(errno.ENOMEM, f"that takes {wanted >> 20} MiB of memory, and {available >> 20} MiB are available")
