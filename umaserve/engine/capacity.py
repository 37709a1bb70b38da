"""What an engine can do with its model, and what it can't."""

from __future__ import annotations

from collections.abc import Iterator

from umaserve.engine.llama import backends
from umaserve.engine.llama.batch import Batch
from umaserve.engine.llama.cells import saved_bytes
from umaserve.engine.llama.model import Model
from umaserve.engine.loading import on_cpu
from umaserve.sessions.engine_api import Capacity, SavedBytes
from umaserve.settings.daemon import Config
from umaserve.settings.kinds import AUTO

KEPT_ON_CPU = 16
"""Divisor for the cells of cached prefixes on a CPU: they may take 1/16 of the KV cells where there is no host memory
for them, since attention visits all used cells in every decode (1,024 of them cost 5 to 20% of a tick). With host
memory, which is restored at 10 us a token, they take none: a lone prompt then always has the first cells, in order, and
rounds alike each time."""

MAX_KEPT_STATES_BYTES = 512 << 20
"""Most bytes for the earlier states of all sequences, without which recurrent models have no draft tokens. They come to
twice the memory of the states in use, which is gigabytes for large models."""


def capacity_of(
    model: Model, config: Config, host_bytes: int, saved: SavedBytes, *, drafts: bool, keeps: bool
) -> Capacity:
    """Capacity of an engine with ``model``. ``drafts``, ``keeps``: whether there are a draft model and a folder for
    sequences."""
    return Capacity(
        slots=min(config.parallel, model.n_seq_max),
        cells=model.n_ctx,
        sequence_tokens=min(model.n_ctx, model.n_ctx_train),
        # llama.cpp ends the process where tokens that attend to those behind them are in several passes.
        batch_tokens=config.n_batch if model.is_causal else config.n_ubatch,
        threads=max(model.n_threads, model.n_threads_batch),
        sequences=model.n_seq_max,
        cached_cells=_cached_cells(model, host_bytes),
        max_draft_tokens=max_draft_tokens(model, config),
        takes_back=_takes_back(model, config),
        host_bytes=host_bytes,
        saved_bytes=saved,
        drafts=drafts,
        # A CPU takes up to five times as long for 64 rows or more of several sequences as for each sequence alone:
        # all rows walk over each other's cells. A GPU reads the weights once for all rows.
        prompts_apart=on_cpu(config),
        divisions=model.divisions() if model.parts else [],
        keeps=keeps,
    )


def host_cache_bytes(model: Model, config: Config, saved: SavedBytes, available: int) -> int:
    """Most bytes of host memory for computed sequences. ``available``: bytes of memory that the box has left."""
    if config.host_cache_bytes != AUTO:
        return config.host_cache_bytes
    # An agent's conversation, and one beside it: with less, each turn would compute all of it anew.
    two = 2 * saved.of(min(model.n_ctx, model.n_ctx_train))
    return max(config.least_host_cache_bytes, min(two, available // 4))


def max_draft_tokens(model: Model, config: Config) -> int:
    """Number of draft tokens that a run may have, as ``Capacity.max_draft_tokens``."""
    return config.n_batch if _takes_back(model, config) else model.removable


def limit_kept_states(model: Model, batch: Batch) -> int:
    """Have the model forget earlier states if those of all sequences take too much; returns what they take."""
    n_bytes = 0
    if model.memory and model.removable:
        n_bytes = model.removable * model.n_seq_max * saved_bytes(model, batch).fixed
    if n_bytes > MAX_KEPT_STATES_BYTES:
        model.forget_states()
    return n_bytes


def lacks_of(model: Model, config: Config, capacity: Capacity, kept_states_bytes: int) -> Iterator[str]:
    """Sentences that say what this model can't do. ``kept_states_bytes``: what earlier states would take."""
    if not model.memory:
        return
    why = "the model's recurrent state" if model.has_recurrent_state else "the model's sliding window"
    if not model.sequences_can_be_cut and not capacity.host_bytes:
        yield f"cached prefixes are not reused: {why} can't be truncated, and --host-cache-bytes is 0"
    elif not model.sequences_can_be_cut:
        least, most = map(capacity.saved_bytes.of, (1, capacity.sequence_tokens))
        size = _readable(least) if least == most else f"{_readable(least)} to {_readable(most)}"
        yield (
            f"cached prefixes are reused only up to a checkpoint: {why} can't be truncated. --host-cache-bytes"
            f" ({_readable(capacity.host_bytes)}) holds checkpoints of {size} each"
        )
    if not capacity.max_draft_tokens:
        unused = ", and the draft model is not loaded" if config.draft_model else ""
        if kept_states_bytes:
            reason = (
                f"the states for rolling back rejected ones would take {_readable(kept_states_bytes)}: lower --parallel"
            )
        else:
            remedy = "" if model.has_recurrent_state else ": raise --n-ubatch to --n-batch"
            reason = f"{why} can't roll back rejected ones{remedy}"
        yield f"draft tokens are off{unused}: {reason}"


def _readable(n_bytes: int) -> str:
    return f"{n_bytes >> 20} MiB" if n_bytes >= 1 << 20 else f"{-(-n_bytes >> 10)} KiB"


def _takes_back(model: Model, config: Config) -> bool:
    """Whether the tokens of a decode can be removed later. A decode of one pass overwrites only what is outside of the
    sliding windows of all its tokens; a second pass would overwrite what is outside of those of later tokens, which may
    be removed."""
    if not model.memory or model.has_recurrent_state:
        return False
    return model.window == 0 or config.n_ubatch >= config.n_batch


def _cached_cells(model: Model, host_bytes: int) -> int:
    if not model.memory or not model.sequences_can_be_cut:
        return 0
    if backends.have_gpu():
        return model.n_ctx
    return 1 if host_bytes else max(1, model.n_ctx // KEPT_ON_CPU)
