"""Loads the model in a process of its own first: some damaged or unusual files end or hang llama.cpp, each in another
place (layers without heads, experts that are not there, a vocabulary without a newline), and no check of the header
knows them all.

As a program it does that with the file that its argument names, without reading the weights: that takes half a second.
"""

from __future__ import annotations

import ctypes
import os
import string
import sys
from collections.abc import Callable, Sequence

import llama_cpp

from umaserve.engine import gguf, llama_log
from umaserve.errors import ModelError
from umaserve.system import program

MAX_S = 120.0
"""The header of a large model on a slow disk takes some seconds."""
_CELLS = 256
_ROWS = 32
_TEXT = string.printable + "é \U0001f600"


def check(path: str, wanted: Callable[[], bool]) -> None:
    """Raise ``ModelError`` if llama.cpp ends the process at the model at ``path``, or hangs. What it refuses in an
    orderly way is left to the loading itself, which says more. Blocks while it is ``wanted``."""
    gguf.check(path)
    try:
        program.run("umaserve.engine.rehearsal", path, wanted=wanted, max_s=MAX_S)
    except (program.Cancelled, OSError):
        return  # Loading stops too; and where no process can be started, there is none to try it in.
    except program.ProgramError as error:
        raise ModelError(
            f"model {path}: llama.cpp can't take it, and would end this process: it is damaged, of an unusual form or "
            f"made for another version; download or convert it again ({error})"
        ) from error


def main(arguments: Sequence[str]) -> int:
    """Returns 0 also for a file that llama.cpp refuses."""
    (path,) = arguments
    program.begin()
    # ggml would have a debugger print where it ends.
    os.environ["GGML_NO_BACKTRACE"] = "1"
    llama_log.print_errors()
    llama_cpp.llama_backend_init()
    params = llama_cpp.llama_model_default_params()
    # An empty list: no device but the processor, whose repacking would read the weights.
    no_devices = (ctypes.c_void_p * 1)()
    params.devices = ctypes.cast(no_devices, ctypes.c_void_p)
    params.use_extra_bufts = False
    native = llama_cpp.llama_model_load_from_file(path.encode(), params)
    if not native:
        return 0
    of_context = llama_cpp.llama_context_default_params()
    of_context.n_ctx, of_context.n_batch, of_context.n_ubatch = _CELLS, _ROWS, _ROWS
    llama_cpp.llama_init_from_model(native, of_context)
    data = _TEXT.encode()
    tokens = (ctypes.c_int32 * (len(data) + 8))()
    vocabulary = llama_cpp.llama_model_get_vocab(native)
    for special in (True, False):
        llama_cpp.llama_tokenize(vocabulary, data, len(data), tokens, len(tokens), special, special)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
