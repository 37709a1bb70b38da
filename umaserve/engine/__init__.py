"""The llama.cpp engine: the only package that imports ``llama_cpp``."""

import os

# How often an idle thread of libgomp looks for work before it sleeps. The default, 300,000, takes some 10 ms: threads
# that wait for one whose core another program has taken then burn the other cores. This is the least that costs nothing
# on an idle box; with a pool more than the one that computes, libgomp doesn't heed it. libgomp reads it when it is
# loaded, which is when llama_cpp is.
_wanted = {} if "OMP_WAIT_POLICY" in os.environ else {"GOMP_SPINCOUNT": "1000"}

# Else ggml would have a debugger print where it ends.
_wanted["GGML_NO_BACKTRACE"] = "1"

DEFAULTS = {name: value for name, value in _wanted.items() if name not in os.environ}
"""What this package has set in the environment of its process, for the libraries that it loads."""
os.environ.update(DEFAULTS)
