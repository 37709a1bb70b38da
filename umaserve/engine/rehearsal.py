"""Loads the model in a process of its own first: some damaged or unusual files end or hang llama.cpp, each in another
place (layers without heads, experts that are not there, a vocabulary without a newline, weights of a type that it can't
multiply), and no check of the header knows them all.

As a program it does that with the file that its argument names: loads it without reading the weights, which takes half
a second, and then, unless they are many, computes a few tokens.
"""

from __future__ import annotations

import ctypes
import os
import string
import sys
from collections.abc import Callable, Sequence
from typing import Any

import llama_cpp
from llama_cpp import mtmd_cpp

from umaserve.engine import gguf, llama_log
from umaserve.engine.model import POOLING
from umaserve.engine.servable import serves_text
from umaserve.errors import ModelError
from umaserve.system import program

MAX_S = 120.0
"""The header of a large model on a slow disk takes some seconds."""
MAX_COMPUTED = 4 << 30
"""Bytes of weights, which are all read. With more, a slow disk would take minutes, and memory might not keep them until
they are loaded."""
_CELLS = 256
_ROWS = 32
_TEXT = string.printable + "é \U0001f600"


def check(path: str, wanted: Callable[[], bool], pooling: str = "model") -> None:
    """Raise ``ModelError`` if llama.cpp ends the process at the model at ``path`` with this ``pooling`` of embeddings
    (as in ``Config``), or hangs. What it refuses in an orderly way is left to the loading itself, which says more.
    Blocks while it is ``wanted``."""
    gguf.check(path)
    _run("model", path, (path, pooling), "" if pooling == "model" else f" with --pooling {pooling}", wanted)


def check_projector(path: str, model: str, wanted: Callable[[], bool]) -> None:
    """The same for the projector at ``path``, with the model at ``model``. Nothing is encoded, which may take a
    minute."""
    gguf.check(path)
    _run("mmproj", path, (model, "model", path), "", wanted)


def _run(kind: str, path: str, arguments: Sequence[str], how: str, wanted: Callable[[], bool]) -> None:
    try:
        program.run("umaserve.engine.rehearsal", *arguments, wanted=wanted, max_s=MAX_S)
    except (program.Cancelled, OSError):
        return  # Loading stops too; and where no process can be started, there is none to try it in.
    except program.ProgramError as error:
        raise ModelError(
            f"{kind} {path}: llama.cpp can't take it{how}, and would end this process: it is damaged, of an unusual "
            f"form or made for another version; download or convert it again ({error})"
        ) from error


def main(arguments: Sequence[str]) -> int:
    """Returns 0 also for a file that llama.cpp refuses."""
    path, pooling, *projectors = arguments
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
    for projector in projectors:
        of_projector = mtmd_cpp.mtmd_context_params_default()
        of_projector.use_gpu = of_projector.print_timings = False
        of_projector.n_threads = 1
        mtmd_cpp.mtmd_init_from_file(projector.encode(), native, of_projector)
        return 0
    of_context = llama_cpp.llama_context_default_params()
    of_context.n_ctx, of_context.n_batch, of_context.n_ubatch = _CELLS, _ROWS, _ROWS
    of_context.pooling_type = POOLING[pooling]
    of_context.n_threads = of_context.n_threads_batch = 1
    context = llama_cpp.llama_init_from_model(native, of_context)
    data = _TEXT.encode()
    tokens = (ctypes.c_int32 * (len(data) + 8))()
    vocabulary = llama_cpp.llama_model_get_vocab(native)
    for special in (True, False):
        llama_cpp.llama_tokenize(vocabulary, data, len(data), tokens, len(tokens), special, special)
    if context and serves_text(native) and llama_cpp.llama_model_size(native) <= MAX_COMPUTED:
        _compute(context, llama_cpp.llama_vocab_n_tokens(vocabulary))
    return 0


def _compute(context: Any, n_vocab: int) -> None:
    """Decode a prompt, and a token after it; and a text to be embedded, if the model does that."""
    prompt = (ctypes.c_int32 * 2)(0, n_vocab - 1)
    llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(prompt, 2))
    llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(prompt, 1))
    if llama_cpp.llama_pooling_type(context) != llama_cpp.LLAMA_POOLING_TYPE_NONE:
        llama_cpp.llama_set_embeddings(context, True)
        llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(prompt, 2))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
