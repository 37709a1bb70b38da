"""The engine: a loaded model behind the scheduler's seam."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Sequence

import llama_cpp
import numpy as np

from umaserve.config import Config
from umaserve.engine.batch import Batch
from umaserve.engine.candidates import Candidates
from umaserve.engine.chat_template import ChatTemplate
from umaserve.engine.constraint import Constraint
from umaserve.engine.embedding import Embedder, pools
from umaserve.engine.grammar import check_gbnf, gbnf_of_schema, gbnf_of_tools
from umaserve.engine.logprobs import Scores
from umaserve.engine.model import Model, find
from umaserve.engine.sampling import PENALTY_WINDOW, Sampler
from umaserve.engine.text import TextStream
from umaserve.errors import Fault, RequestError
from umaserve.messages import (
    TOOL_CALL_OPEN,
    Detokenize,
    Detokenized,
    Embed,
    Embedded,
    Generate,
    Logprobs,
    Query,
    Sampling,
    TokenIds,
    Tokenize,
    Tokenized,
)
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
        embeds = pools(model)
        self.capacity = Capacity(
            # Where llama.cpp's limit leaves no sequence for embeddings, one stream less runs at once.
            slots=min(config.parallel, model.n_seq_max - embeds),
            cells=model.n_ctx,
            sequence_tokens=min(model.n_ctx, model.n_ctx_train),
            batch_tokens=config.n_batch,
            threads=max(model.n_threads, model.n_threads_batch),
        )
        self._threads = self.capacity.threads
        most = min(config.n_ubatch, self.capacity.sequence_tokens)
        self._embedder = Embedder(model, self._batch, most) if embeds else None
        self.end_tokens = model.end_tokens
        self.name = model.name
        self.info = model.info(self.capacity.sequence_tokens)
        template = self.info.chat_template
        self._template = None if template is None else ChatTemplate(template, self.info.bos, self.info.eos)

    def prepare(self, request: Generate) -> Prepared:
        if not self._memory:
            raise RequestError(Fault.BAD_REQUEST, f"model: {self.name} generates no text, it only makes embeddings")
        # Grammars first: they check the depth of the tools' schemas, which the template then walks.
        constraint = self._constraint(request)
        tokens = self._prompt(request)
        if not tokens:
            raise RequestError(Fault.BAD_REQUEST, "prompt: expected text that makes at least one token, got none")
        max_tokens = self._max_tokens(request.max_tokens, len(tokens))
        sampler = self._sampler(request.sampling, constraint)
        sampler.accept_prompt(tokens)
        text = TextStream(self._model.pieces, request.stop)
        return Prepared(tokens, max_tokens, text, sampler, request.logprobs)

    def change(self, prepared: Prepared, request: Generate, generated: Sequence[int]) -> Prepared:
        """Keeps the grammar, and how far it has come; a seed gives another random stream than it gave first."""
        assert isinstance(prepared.sampler, Sampler)
        assert isinstance(prepared.text, TextStream)
        max_tokens = prepared.max_tokens
        if request.max_tokens is not None:
            max_tokens = self._max_tokens(request.max_tokens, len(prepared.tokens))
        sampling = request.sampling
        if sampling.seed is not None:
            sampling = dataclasses.replace(sampling, seed=(sampling.seed + len(generated)) % 2**32)
        sampler = self._sampler(sampling, prepared.sampler.constraint)
        sampler.accept_prompt([*prepared.tokens[-PENALTY_WINDOW:], *generated[-PENALTY_WINDOW:]])
        prepared.text.set_stops(request.stop)
        return dataclasses.replace(prepared, max_tokens=max_tokens, sampler=sampler)

    def answer(self, query: Query) -> Tokenized | Detokenized:
        written = self._model.written
        match query:
            case Tokenize(text, special):
                ids = self._model.tokenize(text, special=special)
                return Tokenized(ids, [written(token) for token in ids])
            case Detokenize(ids):
                self._check_ids(ids, "tokens")
                return Detokenized(b"".join(map(written, ids)).decode(errors="replace"))
            case Embed():
                raise AssertionError("embeddings are made by embed, on the compute thread")

    def embed(self, query: Embed) -> Embedded:
        if self._embedder is None:
            raise RequestError(
                Fault.BAD_REQUEST,
                f"model: {self.name} makes no embeddings; load an embedding model, or choose --pooling mean",
            )
        inputs = [self._tokens(one, f"input[{index}]") for index, one in enumerate(query.inputs)]
        return Embedded(self._embedder.vectors(inputs), sum(map(len, inputs)))

    def _constraint(self, request: Generate) -> Constraint | None:
        sampling = request.sampling
        after = b""
        if request.tools:
            if sampling.grammar is not None or sampling.json_schema is not None:
                raise RequestError(Fault.BAD_REQUEST, "tools: expected to be absent where a grammar is given")
            grammar = gbnf_of_tools(request.tools, must_call=request.must_call)
            after = b"" if request.must_call else TOOL_CALL_OPEN.encode()
        elif request.must_call:
            raise RequestError(Fault.BAD_REQUEST, "tools: expected at least one where a call is required, got none")
        elif sampling.json_schema is not None:
            grammar = gbnf_of_schema(sampling.json_schema)
        elif sampling.grammar is not None:
            grammar = check_gbnf(sampling.grammar)
        else:
            return None
        return Constraint(self._model.vocab, grammar, self._model.pieces, after)

    def _sampler(self, sampling: Sampling, constraint: Constraint | None) -> Sampler:
        return Sampler(self._model.n_vocab, tuple(self.end_tokens), sampling, constraint)

    def _prompt(self, request: Generate) -> Sequence[int]:
        if isinstance(request.prompt, str | TokenIds):
            return self._tokens(request.prompt, "prompt")
        if self._template is None:
            raise RequestError(Fault.BAD_REQUEST, "chat: expected to be absent, since this model has no chat template")
        return self._model.tokenize(self._template.render(request.prompt, request.tools))

    def _tokens(self, text: str | TokenIds, field: str) -> Sequence[int]:
        if isinstance(text, str):
            return self._model.tokenize(text)
        self._check_ids(text.ids, field)
        return text.ids

    def _check_ids(self, ids: Sequence[int], field: str) -> None:
        """llama.cpp doesn't: it would read beyond its tables."""
        limit = self._model.n_vocab
        for index, token in enumerate(ids):
            if not 0 <= token < limit:
                raise RequestError(
                    Fault.BAD_REQUEST, f"{field}[{index}]: expected a token id from 0 to {limit - 1}, got {token}"
                )

    def _max_tokens(self, wanted: int | None, prompt_tokens: int) -> int:
        room = self.capacity.sequence_tokens - prompt_tokens
        least = 1 if wanted is None else wanted
        if least > room:
            raise RequestError(
                Fault.CONTEXT_EXCEEDED,
                f"prompt: {prompt_tokens} tokens and max_tokens {least} make {prompt_tokens + least}, the context "
                f"holds {self.capacity.sequence_tokens}",
            )
        return min(wanted or self._default_max_tokens, room)

    def run(self, tick: Tick) -> TickResult:
        started = time.perf_counter()
        if tick.threads != self._threads:
            self._threads = tick.threads
            n_batch = min(tick.threads, self._model.n_threads_batch)
            llama_cpp.llama_set_n_threads(self._model.context, min(tick.threads, self._model.n_threads), n_batch)
        for slot in tick.release:
            llama_cpp.llama_memory_seq_rm(self._memory, slot, -1, -1)
        if not tick.runs:
            return TickResult(Outcome.DONE, (), 0.0)
        rows = self._batch.fill(tick.runs)
        code = llama_cpp.llama_decode(self._model.context, self._batch.native)
        if code:
            log.error("llama_decode returned %d", code)
            return TickResult(Outcome.NO_CELLS if code == 1 else Outcome.FAILED, (), 0.0)
        tokens: list[int | None] = []
        logprobs: dict[int, Logprobs] = {}
        for index, (run, row) in enumerate(zip(tick.runs, rows, strict=True)):
            if row is None:
                tokens.append(None)
                continue
            assert isinstance(run.sampler, Sampler)
            native = llama_cpp.llama_get_logits_ith(self._model.context, row)
            logits = np.ctypeslib.as_array(native, (self._model.n_vocab,))
            scores = None if run.logprobs is None else Scores(logits)
            token = run.sampler.sample(logits, self._candidates)
            if scores is not None and run.logprobs is not None:
                logprobs[index] = scores.report(token, run.logprobs, self._model.written)
            tokens.append(token)
        return TickResult(Outcome.DONE, tokens, time.perf_counter() - started, logprobs)

    def close(self) -> None:
        self._model.free()
