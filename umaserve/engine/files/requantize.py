"""The program that ``weights`` runs to copy a model with its weights converted to another type.

Arguments: the paths of the model and of the copy, the type ("Q8_0", or "F32" for comparisons), and the number of
threads. It is a program of its own, since on some damaged or unusual files llama.cpp's converter aborts the process.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Sequence

import llama_cpp

from umaserve.engine.llama import backends, llama_log
from umaserve.system.program import begin

_TYPES = {"Q8_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0, "F32": llama_cpp.LLAMA_FTYPE_ALL_F32}
_NICENESS = 10
_BUFFER_BYTES = 256 << 20
"""Most bytes for a tensor in conversion; llama.cpp's own limit, 8 GiB, is more than small boxes have."""


def main(arguments: Sequence[str]) -> int:
    """Run the program; returns the exit status. Errors are on standard error."""
    source, copy, to, threads = arguments
    begin(nice=_NICENESS)
    os.umask(0o077)
    backends.load()
    llama_log.print_errors()
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = _TYPES[to]
    params.allow_requantize = True
    params.nthread = int(threads)
    params.max_buf_size = _BUFFER_BYTES
    if llama_cpp.llama_model_quantize(source.encode(), copy.encode(), ctypes.byref(params)):
        return 1
    # Here and not in the daemon, which could not end meanwhile.
    with open(copy, "rb+") as file:
        os.fsync(file.fileno())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
