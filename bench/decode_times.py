"""How long decodes take with the llama.cpp of the interpreter that runs this program: one side of ``wheels``.

Arguments: the path of the model, and the threads. It prints what llama.cpp computes with, then for each number of
tokens on standard input, a line each, the seconds of a decode of so many.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from umaserve.engine.files.row_times import decode_s, load_small
from umaserve.engine.llama import backends
from umaserve.system import logs

MOST = 512
"""Tokens of a decode."""


def main(arguments: Sequence[str]) -> None:
    path, threads = arguments
    logs.configure("error", "text")
    model = load_small(path, int(threads), int(threads), MOST)
    print(backends.kernels().strip(), flush=True)
    for line in sys.stdin:
        print(decode_s(model, int(line)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
