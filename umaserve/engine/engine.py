"""The engine: a loaded model behind the two calls of the scheduler's seam, ``prepare`` and ``run``."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import llama_cpp
import numpy as np

from umaserve.config import Config
from umaserve.engine.batch import Batch
from umaserve.engine.chat_template import ChatTemplate
from umaserve.engine.grammar import check_gbnf, gbnf_of_schema
from umaserve.engine.model import Model, find
from umaserve.engine.sampling import Candidates, Sampler
from umaserve.engine.text import TextStream
from umaserve.errors import Fault, RequestError
from umaserve.messages import Generate
from umaserve.serving.ticks import Capacity, Outcome, Prepared, Tick, TickResult

log = logging.getLogger(__name__)


def load(config: Config, progress: Callable[[float], bool]) -> LlamaEngine:
    """Load the configured model, or the default one; raises ``ModelError``. ``progress`` may end it with ``False``."""
    return LlamaEngine(Model(find(config.model), config, progress), config)


class LlamaEngine:
    """Implements ``serving.ticks.Engine`` on llama.cpp. ``run`` is the compute thread's, ``close`` comes after it."""

    def __init__(self, model: Model, config: Config) -> None:
        self._model = model
        self._default_max_tokens = config.max_tokens
        self._memory = llama_cpp.llama_get_memory(model.context)
        self._batch = Batch(config.n_batch)
        self._candidates = Candidates(model.n_vocab)
        template = model.chat_template
        bos, eos = llama_cpp.llama_vocab_bos(model.vocab), llama_cpp.llama_vocab_eos(model.vocab)
        self._template = (
            None if template is None else ChatTemplate(template, model.special_text(bos), model.special_text(eos))
        )
        self.capacity = Capacity(
            slots=config.parallel,
            cells=model.n_ctx,
            sequence_tokens=min(model.n_ctx, model.n_ctx_train),
            batch_tokens=config.n_batch,
        )
        self.end_tokens = model.end_tokens
        self.name = model.name

    def prepare(self, request: Generate) -> Prepared:
        tokens = self._model.tokenize(self._prompt_text(request))
        max_tokens = self._max_tokens(request, len(tokens))
        sampling = request.sampling
        grammar = None
        if sampling.json_schema is not None:
            grammar = gbnf_of_schema(sampling.json_schema)
        elif sampling.grammar is not None:
            grammar = check_gbnf(sampling.grammar)
        sampler = Sampler(self._model.vocab, self._model.n_vocab, tuple(self.end_tokens), sampling, grammar)
        sampler.accept_prompt(tokens)
        return Prepared(tokens, max_tokens, TextStream(self._model.pieces, request.stop), sampler)

    def _prompt_text(self, request: Generate) -> str:
        if isinstance(request.prompt, str):
            return request.prompt
        if self._template is None:
            raise RequestError(Fault.BAD_REQUEST, "chat: expected to be absent, since this model has no chat template")
        return self._template.render(request.prompt)

    def _max_tokens(self, request: Generate, prompt_tokens: int) -> int:
        if prompt_tokens == 0:
            raise RequestError(Fault.BAD_REQUEST, "prompt: expected text that makes at least one token, got none")
        room = self.capacity.sequence_tokens - prompt_tokens
        wanted = 1 if request.max_tokens is None else request.max_tokens
        if wanted > room:
            raise RequestError(
                Fault.CONTEXT_EXCEEDED,
                f"prompt: {prompt_tokens} tokens and max_tokens {wanted} make {prompt_tokens + wanted}, the context "
                f"holds {self.capacity.sequence_tokens}",
            )
        return min(request.max_tokens or self._default_max_tokens, room)

    def run(self, tick: Tick) -> TickResult:
        started = time.perf_counter()
        for slot in tick.release:
            llama_cpp.llama_memory_seq_rm(self._memory, slot, -1, -1)
        if not tick.runs:
            return TickResult(Outcome.DONE, (), 0.0)
        rows = self._batch.fill(tick.runs)
        code = llama_cpp.llama_decode(self._model.context, self._batch.native)
        if code:
            log.error("llama_decode returned %d", code)
            return TickResult(Outcome.NO_CELLS if code == 1 else Outcome.FAILED, (), 0.0)
        tokens = [
            None if row is None else self._sample(run.sampler, row) for run, row in zip(tick.runs, rows, strict=True)
        ]
        return TickResult(Outcome.DONE, tokens, time.perf_counter() - started)

    def _sample(self, sampler: object, row: int) -> int:
        assert isinstance(sampler, Sampler)
        logits = llama_cpp.llama_get_logits_ith(self._model.context, row)
        return sampler.sample(np.ctypeslib.as_array(logits, (self._model.n_vocab,)), self._candidates)

    def close(self) -> None:
        self._model.free()
