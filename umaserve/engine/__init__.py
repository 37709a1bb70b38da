"""The llama.cpp engine: the only package that imports ``llama_cpp``."""

import os

# Else ggml would have a debugger print where it ends.
os.environ.setdefault("GGML_NO_BACKTRACE", "1")
