"""Which way this processor computes a model's weights fastest: from its own file, repacked or mapped as they are, or
from a converted copy.

llama.cpp has fast matrix kernels for some formats of weights only. With the others, a decode of 64 tokens takes almost
64 times as long as one of a single token, which prompts and many streams pay for. Such weights are converted to Q8_0
once, without a loss worth naming (figures in docs/results/reasons.md), if the copy proves faster on this box.

For other formats it has two kinds of such kernels: for weights that it has repacked into memory of its own, and tiled
ones for weights that stay mapped. It always repacks; which kind is faster depends on the processor.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import math
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import llama_cpp
import orjson

from umaserve.core.errors import ModelError
from umaserve.engine.files import gguf, requantize
from umaserve.engine.files.converted_copy import ConvertedCopy, folder_of
from umaserve.engine.files.row_times import Comparison
from umaserve.engine.llama import backends
from umaserve.settings.daemon import Config
from umaserve.system import program
from umaserve.system.cores import processor, usable_cores
from umaserve.system.memory import available_bytes
from umaserve.system.openmp import VARIABLES

log = logging.getLogger(__name__)

SLOW_TYPES = {llama_cpp.GGML_TYPE_Q4_1: "Q4_1", llama_cpp.GGML_TYPE_Q5_1: "Q5_1"}
"""Types of tensors without matrix kernels on x86 and ARM. Where a build has some after all, the measurement tells."""
TILED_TYPES = (
    *(llama_cpp.GGML_TYPE_Q2_K, llama_cpp.GGML_TYPE_Q4_K, llama_cpp.GGML_TYPE_Q5_K, llama_cpp.GGML_TYPE_Q6_K),
    llama_cpp.GGML_TYPE_IQ4_XS,
)
"""Types that llama.cpp can repack for some processors, and has tiled kernels for on x86."""
ROWS = (1, 8, 64, 256)
"""Tokens of the decodes that are compared: one stream's, and those of several streams and of prompts."""
MAX_LOSS = 0.05
"""Largest loss of speed, as a share, of a request alone whose answer is as long as its prompt. The copy is larger, so
each token of the answer can take longer where memory is the limit."""
MIN_GAIN = {"converted": 0.2, "mapped": 0.05}
"""Least gain in the speed of many rows (the geometric mean), as a share. A copy must be worth its disk space and
memory."""
MAX_MAPPED_BYTES = 4 << 30
"""Most bytes of a file that is measured repacked and mapped. With more, loading it twice would take minutes on a slow
disk."""

MAX_DOUBT = 0.03
"""Largest doubt that needs no margin: a verdict by measurements that are less certain must be beyond their doubt."""

_Q8_0_BYTES = 34 / 32
"""Bytes of a weight in Q8_0."""
_CONVERTING = 0.9
"""The conversion's share of the time; the rest is the measurement."""
_MEASURING = 0.3
"""The share of the time where nothing is converted; loading takes the rest."""
_SLOWEST_BYTES_S = 4 << 20
_MEASURING_S = 1800.0
_MAX_MEMORY_SHARE = 0.75
_MAX_DISK_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Weights:
    """The file to load, and how."""

    path: str
    converted_from: str = ""
    """Type that most of the model's own weights have, where the file is a converted copy; else empty."""
    repacked: bool = True
    """Whether llama.cpp may repack them; else they stay mapped from the file."""
    why: str = field(default="", compare=False)
    """Report of what was measured; empty where nothing was."""
    other: str = field(default="", compare=False)
    """Value of the setting ``weights`` that may be faster, where the file is the model's own; empty: none."""


def choose(path: str, config: Config, progress: Callable[[float], bool], available: int | None = None) -> Weights:
    """Choose what to load for the model at ``path``: that file, or a converted copy, which is made if need be.

    Never fails: what goes wrong is logged, and the model's own file chosen. ``progress`` is called with 0.0 to 1.0
    while a copy is made and weights are measured, which can take minutes, and stops that by returning ``False``.
    ``available``: the bytes of memory that it may take, where not all that the box has.
    """
    if config.weights == "mapped":
        return Weights(path, repacked=False)
    as_is = Weights(path)
    on_gpu = config.n_gpu_layers != 0 and backends.have_gpu()
    if config.weights == "as-is" or on_gpu or config.rpc:
        return as_is
    try:
        contents = gguf.check(path)
    except ModelError:
        return as_is  # loading it says why
    other = alternative(path, contents)
    if not other or config.weights not in ("fast", other):
        return as_is
    as_is = Weights(path, other=other)
    slow = slow_type(contents) or ""
    try:
        copy = ConvertedCopy(folder_of(config.weights_cache, os.environ), path, _box(config), _converter())
        found = _verdict(copy, config)
        if found is None:
            _check_failure(copy)
            found = _found(copy, path, slow, contents, config, progress, available)
        chosen, why = found
        if chosen != "converted":
            return Weights(path, repacked=chosen != "mapped", why=why, other=other)
        _check_memory(os.path.getsize(copy.path), available)
    except program.Cancelled:
        return as_is
    except (OSError, ModelError, program.ProgramError) as error:
        if not slow:
            log.info("mapped and repacked weights could not be compared: %s", error)
            return as_is
        log.warning(
            "the %s weights are not converted to Q8_0, which makes prefill slower: %s. Correct this, choose another"
            " folder with --weights-cache, or set --weights as-is",
            slow,
            error,
        )
        return as_is
    log.info("loading the weights from a converted copy", extra={"fields": {"copy": str(copy.path), "was": slow}})
    return Weights(str(copy.path), slow, why=why)


def alternative(path: str, contents: gguf.Contents) -> str:
    """The value of the setting ``weights`` that may be faster than "as-is" for such a file; empty: there is none."""
    if slow_type(contents) is not None:
        return "converted"
    tiled = sum(contents.elements.get(kind, 0) for kind in TILED_TYPES)
    is_tiled = contents.parts == 1 and 2 * tiled >= sum(contents.elements.values()) > 0
    return "mapped" if is_tiled and os.path.getsize(path) <= MAX_MAPPED_BYTES and backends.may_repack() else ""


def slow_type(contents: gguf.Contents) -> str | None:
    """The name of the type that most weights have, if it is a slow one. A model in several files is left alone."""
    slow = {kind: contents.elements.get(kind, 0) for kind in SLOW_TYPES}
    if contents.parts > 1 or 2 * sum(slow.values()) < sum(contents.elements.values()):
        return None
    return SLOW_TYPES[max(slow, key=slow.__getitem__)] if sum(slow.values()) else None


def is_faster(found: Sequence[Comparison], min_gain: float) -> bool | None:
    """Whether the second way is worth taking, by decodes of ``ROWS`` tokens in both, at least two of them; ``None``
    where the box was too busy to tell."""
    one, *many = found
    gain = math.prod(each.speedup for each in many) ** (1 / len(many))
    doubt = gain * math.hypot(*(each.doubt / each.speedup for each in many)) / len(many)
    enough = [_at_least(*_alone(one, many[-1], ROWS[len(many)]), 1 - MAX_LOSS), _at_least(gain, doubt, 1 + min_gain)]
    if False in enough:
        return False
    return None if None in enough else True


def _alone(one: Comparison, prompt: Comparison, rows: int) -> tuple[float, float]:
    """How many times as fast the second way is for a request alone whose answer is as long as its prompt, which is
    computed in decodes of ``rows`` tokens, and how far that may be off."""
    seconds = one.first_s, prompt.first_s / rows
    seconds_with_second = one.first_s / one.speedup, prompt.first_s / rows / prompt.speedup
    speedup = sum(seconds) / sum(seconds_with_second)
    doubts = one.doubt / one.speedup, prompt.doubt / prompt.speedup
    weighted = [each_s * doubt for each_s, doubt in zip(seconds_with_second, doubts, strict=True)]
    return speedup, speedup * math.hypot(*weighted) / sum(seconds_with_second)


def _at_least(speedup: float, doubt: float, least: float) -> bool | None:
    if doubt > MAX_DOUBT and abs(speedup - least) < doubt:
        return None
    return speedup >= least


def copy_bytes(contents: gguf.Contents, file_bytes: int) -> int:
    """Most bytes that the converted copy of a file of ``file_bytes`` may have."""
    grown = sum(
        max(0, round(elements * _Q8_0_BYTES) - gguf.tensor_bytes(kind, elements))
        for kind, elements in contents.elements.items()
    )
    return file_bytes + grown


def _verdict(copy: ConvertedCopy, config: Config) -> tuple[str, str] | None:
    """Verdict as ``ConvertedCopy.chosen``, or as the operator wants it."""
    if config.weights == "converted":
        return ("converted", "") if copy.exists() else None
    return copy.chosen()


def _box(config: Config) -> Mapping[str, object]:
    """Facts that the speeds depend on, beside the file."""
    threads = config.threads or usable_cores()
    return {
        "processor": processor(),
        "llama_cpp": llama_cpp.__version__,
        "kernels": backends.kernels(),
        "build": backends.build(),
        "threads": threads,
        "threads_batch": config.threads_batch or threads,
        "barriers": {name: os.environ.get(name) for name in VARIABLES},
    }


def _converter() -> Mapping[str, str | int]:
    """Facts that decide whether a file can be converted."""
    program_bytes = Path(requantize.__file__).read_bytes()
    return {"llama_cpp": llama_cpp.__version__, "program": hashlib.sha256(program_bytes).hexdigest()}


def _found(
    copy: ConvertedCopy,
    path: str,
    slow: str,
    contents: gguf.Contents,
    config: Config,
    progress: Callable[[float], bool],
    available: int | None,
) -> tuple[str, str]:
    """Make the copy of ``slow`` weights, if they are, and measure what to load. Returns the verdict, which another
    daemon may have found first. A copy that the operator wants in any case is not measured."""
    threads = config.threads or usable_cores()
    threads_batch = config.threads_batch or threads
    file_bytes = os.path.getsize(path)
    most = copy_bytes(contents, file_bytes) if slow else file_bytes
    with copy.locked(lambda: progress(0.0)):
        found = _verdict(copy, config)
        if found is not None:
            return found
        _check_failure(copy)
        _check_memory(file_bytes + most, available)
        if not slow:
            log.info("measuring once whether mapped weights are faster than repacked ones")
        elif not copy.exists():
            log.info("llama.cpp has no fast kernels for %s weights: converting a copy to Q8_0, once", slow)
            _check_disk(copy, most)
            _convert(copy, path, most, threads_batch, progress)
        if config.weights == "converted":
            return "converted", ""
        rows = ",".join(map(str, ROWS))
        measured = program.run(
            "umaserve.engine.files.row_times",
            *(str(threads), str(threads_batch), rows, path),
            *((str(copy.path), "repacked") if slow else (path, "mapped")),
            wanted=lambda: progress(_CONVERTING if slow else _MEASURING),
            max_s=_MEASURING_S,
        )
        return _decided(copy, [Comparison(*values) for values in orjson.loads(measured)], bool(slow))


def _convert(copy: ConvertedCopy, path: str, most: int, threads: int, progress: Callable[[float], bool]) -> None:
    """Make the copy, of at most ``most`` bytes, or record why it can't be made."""
    try:
        program.run(
            "umaserve.engine.files.requantize",
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


def _decided(copy: ConvertedCopy, found: Sequence[Comparison], is_copy: bool) -> tuple[str, str]:
    """Keep the verdict, by what was measured of the copy or of mapped weights, and return it."""
    other, name = ("converted", "Q8_0") if is_copy else ("mapped", "mapped")
    why = ", ".join(
        f"{n} token{'s' * (n > 1)}: {1000 * each.first_s:.1f} ms, {name} {1000 * each.second_s:.1f} ms "
        f"({each.speedup:.0%} +-{each.doubt:.0%} of the speed)"
        for n, each in zip(ROWS, found, strict=False)
    )
    faster = is_faster(found, MIN_GAIN[other])
    if faster is None:
        log.info(
            "this machine is too busy to measure which weights are faster: the next start measures again (%s)", why
        )
        return "as-is", why
    chosen = other if faster else "as-is"
    copy.decide(chosen, why)
    log.info(
        "measured: the %s weights are %s (%s)",
        other,
        "faster, and are used" if faster else "not faster, and are not used",
        why,
    )
    return chosen, why


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
        raise OSError(
            errno.ENOMEM, f"converting takes {wanted >> 20} MiB of memory, and {available >> 20} MiB are available"
        )
