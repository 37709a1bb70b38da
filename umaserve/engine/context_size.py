"""Chooses the KV cells of a model whose settings leave their number open: as many as serve well, and memory has room
for.

llama.cpp takes the memory of all cells at once, used or not. So they get no more than half of what the model leaves
free: other programs, clients' media and further models need some, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from umaserve.engine import needs
from umaserve.settings import gguf_header
from umaserve.settings.daemon import Config
from umaserve.settings.kinds import AUTO

SHARE = 0.5
"""Largest share for the cells of the memory that is ample and that nothing else of the model takes."""
LEAST_CELLS = 4096
"""Cells that a model gets however little memory there is: with fewer, hardly a conversation fits."""
UNMEASURED_CELLS = 16384
"""Most cells of a model of which nobody can say what they take."""
AMPLE_BYTES = 4 << 30
"""Available memory with which the default model gets ``needs.KNOWN_CELLS`` unmeasured."""
_ROUNDED_TO = 256
NEAR = 0.9
"""Share of the cells measured for which there must be room: not all that cells take is in proportion to their number,
and each further trial takes half a second."""


def settle(
    path: str,
    config: Config,
    available: int,
    wanted: Callable[[], bool],
    known_bytes: int = 0,
    known_cells: int = 0,
) -> tuple[Config, int]:
    """The settings with a number of cells, and the bytes that the model takes with them, as ``needs.check``; raises
    ``TooLarge`` as that does. ``known_cells``: those with which it took ``known_bytes``. Blocks for half a second for
    each measurement."""
    if config.n_ctx != AUTO:
        return config, needs.check(path, config, available, wanted, known_bytes)
    trained = gguf_header.read(path).tokens
    most = config.cells_for(trained) if trained else UNMEASURED_CELLS
    if known_bytes and known_cells == _rounded(most) and needs.is_ample(known_bytes, config, available):
        return replace(config, n_ctx=most), known_bytes
    if config.rpc:
        return replace(config, n_ctx=min(most, UNMEASURED_CELLS)), 0
    if not config.model and most <= needs.KNOWN_CELLS and available >= AMPLE_BYTES:
        return replace(config, n_ctx=most), 0
    fitting = most
    while True:
        config = replace(config, n_ctx=fitting)
        found = needs.whole(path, config, wanted)
        if found is None:
            return replace(config, n_ctx=min(most, UNMEASURED_CELLS)), 0
        model, others = found
        fitting = max(_fitting(config, model, others, available), min(LEAST_CELLS, most))
        if fitting >= NEAR * config.n_ctx:
            needs.judge(path, config, model, others, available)
            return config, model.total + others


def _fitting(config: Config, model: needs.Needs, others: int, available: int) -> int:
    """The cells for which there is room, if what they take is in proportion to their number."""
    left = available * needs.AMPLE_SHARE - config.least_host_cache_bytes - others - (model.total - model.cells)
    rooms = ((left * SHARE, model.cells), (model.gpu_room, model.gpu_cells))
    share = min((room / taken for room, taken in rooms if taken), default=1.0)
    return model.n_ctx if share >= 1.0 else max(0, int(model.n_ctx * share) // _ROUNDED_TO * _ROUNDED_TO)


def _rounded(cells: int) -> int:
    return -(-cells // _ROUNDED_TO) * _ROUNDED_TO
