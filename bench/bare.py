"""A bare llama.cpp loop, what a server is measured against: no sockets, no text, no scheduler, one batch for all.

Run as a process of its own (arguments: streams, tokens of each; words of a prompt and round, as for
``growing`` loads), so that its compute threads and a daemon's never meet.
The model and its context are the daemon's, made from the same settings; nothing else of umaserve's engine is used.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence

import llama_cpp
import numpy as np
import numpy.typing as npt

from bench.trace import Stream, Trace
from bench.workload import WARM_UP_TOKENS, growing, prompts, warm_up_prompts
from umaserve.engine.files.weights import choose
from umaserve.engine.llama.model import Model, find
from umaserve.settings.daemon import SETTINGS
from umaserve.system import logs

Ids = npt.NDArray[np.int32]


class BareLoop:
    """Greedy decoding of several sequences at once; like ``ignore_eos``, it never ends one early."""

    def __init__(self, model: Model, batch_tokens: int) -> None:
        self._model = model
        self._memory = llama_cpp.llama_get_memory(model.context)
        self._ends = np.array(sorted(model.end_tokens), np.int64)
        self._batch_tokens = batch_tokens
        self._batch = batch = llama_cpp.llama_batch_init(batch_tokens, 0, 1)
        self._tokens: Ids = np.ctypeslib.as_array(batch.token, (batch_tokens,))
        self._positions: Ids = np.ctypeslib.as_array(batch.pos, (batch_tokens,))
        self._wanted = np.ctypeslib.as_array(batch.logits, (batch_tokens,))
        np.ctypeslib.as_array(batch.n_seq_id, (batch_tokens,))[:] = 1

    def run(self, texts: Sequence[str], n_tokens: int) -> Trace:
        """All prompts in as few decodes as they fit, then one token for each stream in every decode."""
        asked_tokens = [self._model.tokenize(text) for text in texts]
        llama_cpp.llama_memory_clear(self._memory, False)
        now, cpu = time.monotonic(), time.process_time()
        streams = [Stream(now, []) for _ in texts]
        latest = self._prefill(asked_tokens, streams)
        self._decode_all(asked_tokens, latest, streams, n_tokens - 1)
        return Trace(streams, time.process_time() - cpu)

    def _prefill(self, asked: Sequence[Sequence[int]], streams: Sequence[Stream]) -> Ids:
        rows = [
            (token, position, sequence, position == len(tokens) - 1)
            for sequence, tokens in enumerate(asked)
            for position, token in enumerate(tokens)
        ]
        latest = np.zeros(len(asked), np.int32)
        for begin in range(0, len(rows), self._batch_tokens):
            chunk = rows[begin : begin + self._batch_tokens]
            for row, values in enumerate(chunk):
                self._set(row, *values)
            ended = [sequence for _, _, sequence, last in chunk if last]
            latest[ended] = self._decode(len(chunk), len(ended))
            now = time.monotonic()
            for sequence in ended:
                streams[sequence].tokens.append(now)
        return latest

    def _decode_all(self, asked: Sequence[Sequence[int]], latest: Ids, streams: Sequence[Stream], steps: int) -> None:
        n = len(asked)
        for sequence, tokens in enumerate(asked):
            self._set(sequence, latest[sequence], len(tokens), sequence, True)
        for _ in range(steps):
            latest = self._decode(n, n)
            self._tokens[:n] = latest
            self._positions[:n] += 1
            now = time.monotonic()
            for stream in streams:
                stream.tokens.append(now)

    def _set(self, row: int, token: int, position: int, sequence: int, wanted: bool) -> None:
        self._tokens[row] = token
        self._positions[row] = position
        self._batch.seq_id[row][0] = sequence
        self._wanted[row] = wanted

    def _decode(self, rows: int, wanted: int) -> Ids:
        """The likeliest next token of each row whose logits are wanted."""
        self._batch.n_tokens = rows
        code = llama_cpp.llama_decode(self._model.context, self._batch)
        if code:
            raise RuntimeError(f"llama_decode returned {code}")
        if not wanted:
            return np.zeros(0, np.int32)
        logits = np.ctypeslib.as_array(llama_cpp.llama_get_logits(self._model.context), (wanted, self._model.n_vocab))
        logits[:, self._ends] = -np.inf
        latest: Ids = logits.argmax(axis=1).astype(np.int32)
        return latest


def main() -> None:
    n_streams, n_tokens, *growing_by = map(int, sys.argv[1:])
    texts = prompts(n_streams)
    if growing_by:
        n_words, round_ = growing_by
        texts = [text for (text,) in growing(n_streams, n_words, 1, round_)]
    settings = SETTINGS.load({}, os.environ).config
    logs.configure(settings.log_level, settings.log_format)
    weights = choose(find(settings.model), settings, lambda _fraction: True)
    model = Model(weights.path, settings, lambda _fraction: True, repacked=weights.repacked)
    loop = BareLoop(model, settings.n_batch)
    loop.run(warm_up_prompts(n_streams), WARM_UP_TOKENS)
    # Buffered also where Python's own is not: what is written at once may go out in parts.
    with open(sys.stdout.fileno(), "wb", closefd=False) as output:
        output.write(loop.run(texts, n_tokens).dump())


if __name__ == "__main__":
    main()
