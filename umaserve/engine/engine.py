"""The engine: a loaded model that runs the scheduler's ticks."""

from __future__ import annotations

import ctypes
import dataclasses
import logging
import time
from collections.abc import Callable, Sequence

import llama_cpp
import numpy as np
import numpy.ctypeslib  # Imported now: numpy would import it at the first logits, when descriptors may be exhausted.

from umaserve.chat_format.thought_form import marks_in
from umaserve.core.errors import Fault, RequestError
from umaserve.core.events import Logprobs
from umaserve.core.queries import Answer, Embed, Embedded, Query
from umaserve.core.requests import Generate
from umaserve.core.tool_call_format import THINK_TAGS
from umaserve.engine.capacity import capacity_of, host_cache_bytes, lacks_of, limit_kept_states, max_draft_tokens
from umaserve.engine.files.disk import open_disk
from umaserve.engine.last_words import Begins, ignore_begin
from umaserve.engine.llama.adapters import LoraAdapters
from umaserve.engine.llama.batch import Batch
from umaserve.engine.llama.cells import Cells, saved_bytes
from umaserve.engine.llama.drafting import Drafter
from umaserve.engine.llama.embedding import Embedder, pools
from umaserve.engine.llama.model import Model, find
from umaserve.engine.loading import load_model
from umaserve.engine.media.media_batch import MediaBatch
from umaserve.engine.media.projector import MediaChunk, Projector
from umaserve.engine.media.reader import MediaReader
from umaserve.engine.preparation import Preparation
from umaserve.engine.sampling.candidates import Logits
from umaserve.engine.sampling.steps import Sampled, Step
from umaserve.engine.sampling.tick_sampling import TickSampling
from umaserve.engine.spinning import Spinning
from umaserve.engine.template.chat_template import CHATML, ChatTemplate
from umaserve.engine.trial import try_out
from umaserve.sessions.decodes import decodes
from umaserve.sessions.engine_api import (
    Chunk,
    Listing,
    NamedFile,
    Outcome,
    Prepared,
    Run,
    SavedBytes,
    Tick,
    TickResult,
    YieldPoint,
)
from umaserve.sessions.kv_operations import Divide, Move, Release
from umaserve.settings.daemon import Config
from umaserve.system.memory import available_bytes

log = logging.getLogger(__name__)


def load(config: Config, progress: Callable[[float], bool], chat_template: str | None = None) -> LlamaEngine:
    """Load the configured model, or the default one; raises ``ModelError``. ``progress`` is as in ``Model``, and
    ``chat_template`` takes the place of the model's own."""
    return LlamaEngine(load_model(find(config.model), config, progress), config, chat_template)


class LlamaEngine:
    """Implements ``sessions.engine_api.Engine`` on llama.cpp. ``run`` is called on the compute thread, or on the
    preparing one for a tick that only divides the cells; ``close`` after it."""

    run_ahead = None

    def __init__(
        self, model: Model, config: Config, chat_template: str | None = None, begins: Begins = ignore_begin
    ) -> None:
        self._model = model
        template = chat_template_of(model, chat_template)
        thought_form = template.thought_form or marks_in(model.has_token) or THINK_TAGS
        model.show(template.tool_form, thought_form)
        self._batch = Batch(config.n_batch)
        self._sampling = TickSampling(model)
        self._rows: Sequence[Logits] = ()
        """The rows of logits at the address ``_rows_at``."""
        self._rows_at = 0
        self._adapters = LoraAdapters(model, config.lora)
        kept_states_bytes = limit_kept_states(model, self._batch)
        self._drafter: Drafter | None = None
        if config.draft_model and max_draft_tokens(model, config) > 0:
            begins("model", config.draft_model)
            self._drafter = Drafter(config, model, lambda _fraction: True)
            begins("model", model.path)
        caches = bool(model.memory and config.host_cache_bytes)
        saved = saved_bytes(model, self._batch) if caches else SavedBytes()
        host_bytes = host_cache_bytes(model, config, saved, available_bytes()) if caches else 0
        self._cells = Cells(model, host_bytes)
        if model.parts and not self._cells.fit_parts(self._batch):
            log.warning(
                "this model's KV cells can't be divided into parts: all sequences share them, which makes many"
                " streams slower"
            )
            model.divide(0)
        self._disk = open_disk(model, config, self._adapters.files, self._cells, saved)
        drafts, keeps = self._drafter is not None, self._disk is not None
        names = self._disk is not None and self._disk.has_names
        capacity = capacity_of(model, config, host_bytes, saved, drafts=drafts, keeps=keeps)
        self.capacity = dataclasses.replace(capacity, names=names)
        self._threads = self.capacity.threads
        self._embedder = self._new_embedder(config.n_ubatch) if pools(model) else None
        self.end_tokens = model.end_tokens
        self.pieces: Sequence[bytes] = model.pieces
        self.name = model.name
        if config.mmproj:
            begins("mmproj", config.mmproj)
        self._projector = _projector(model, config)
        info = model.info(self.capacity.sequence_tokens)
        lacks = list(lacks_of(model, config, self.capacity, kept_states_bytes))
        for sentence in lacks:
            log.warning("%s", sentence)
        self.info = dataclasses.replace(
            info,
            chat_template=chat_template or info.chat_template,
            tool_form=template.tool_form,
            thought_form=thought_form,
            thinks=template.thinks,
            lacks=lacks,
            chat_problem=template.problem,
            adapters=self._adapters.names,
            sees=self._projector is not None and self._projector.sees,
            hears=self._projector is not None and self._projector.hears,
            writes=bool(model.memory),
            embeds=self._embedder is not None and not self._embedder.ranks,
            ranks=self._embedder is not None and self._embedder.ranks,
        )
        self._media = MediaReader(
            model,
            self._projector,
            max_tokens_each=self.capacity.sequence_tokens,
            n_ubatch=config.n_ubatch,
            cache_bytes=config.media_cache_bytes,
        )
        self._preparation = Preparation(
            model,
            template,
            thought_form,
            self._adapters,
            self._media,
            self.capacity.sequence_tokens,
            None if config.reasoning_budget < 0 else config.reasoning_budget,
            trusts_content=config.trust_content,
        )
        self._media_batch = MediaBatch(model, self._cells.positions)
        self._spinning = Spinning(self._threads)

    def try_out(self, begins: Begins = ignore_begin) -> None:
        """Have each model compute a little, as it will for clients."""
        self._spinning.watch()
        begins("model", self._model.path)
        try_out(self._model, self._embedder)
        if self._drafter is not None:
            begins("model", self._drafter.model.path)
            try_out(self._drafter.model)

    def prepare(
        self,
        request: Generate,
        tenant: str = "",
        wanted: Callable[[], bool] = lambda: True,
        generated: Sequence[int] = (),
    ) -> Prepared:
        return self._preparation.prepare(request, tenant, wanted, generated)

    def prepare_choice(self, request: Generate, first: Prepared) -> Prepared:
        return self._preparation.prepare_choice(request, first)

    def change(self, prepared: Prepared, request: Generate, generated: Sequence[int]) -> Prepared:
        return self._preparation.change(prepared, request, generated)

    def answer(self, query: Query) -> Answer:
        return self._preparation.answer(query)

    def embed(self, query: Embed, pause: YieldPoint) -> Embedded:
        if self._embedder is None or self._embedder.ranks != query.ranks:
            problem = "makes no embeddings; load an embedding model, or choose --pooling mean"
            if query.ranks:
                problem = "ranks no documents; load a reranking model"
            raise RequestError(Fault.NOT_SUPPORTED, "model", f"{self.name} {problem}")
        self._spinning.watch()
        inputs = [self._preparation.tokens(one, f"input[{index}]") for index, one in enumerate(query.inputs)]
        vectors = self._embedder.vectors(inputs, self._threads, pause, raw=query.raw)
        return Embedded(vectors, sum(map(len, inputs)))

    def encode(self, chunk: Chunk, pause: YieldPoint, wanted: Callable[[], bool]) -> None:
        assert self._projector is not None
        assert isinstance(chunk, MediaChunk)
        self._projector.encode(chunk, pause, wanted)

    def shed(self) -> None:
        self._media.shed()
        # Without it, glibc keeps freed memory in the process. Other C libraries have no such function.
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)

    def look(self) -> Listing:
        assert self._disk is not None
        return self._disk.look()

    def keep(
        self,
        scope: str,
        tokens: Sequence[int],
        offset: int,
        size: int,
        replaced: Sequence[str],
        wanted: Callable[[], bool],
    ) -> str | None:
        assert self._disk is not None
        return self._disk.keep(scope, tokens, offset, size, replaced, wanted)

    def fetch(self, name: str, offset: int, size: int, wanted: Callable[[], bool]) -> bool:
        assert self._disk is not None
        return self._disk.fetch(name, offset, size, wanted)

    def give_name(self, name: str, filename: str) -> int:
        assert self._disk is not None
        return self._disk.give_name(name, filename)

    def take_back(self, filename: str) -> NamedFile:
        assert self._disk is not None
        return self._disk.take_back(filename)

    def run(self, tick: Tick) -> TickResult:
        self._spinning.watch()
        self._use_threads(tick.threads)
        if self._drafter is not None:
            # Otherwise one client's drafts would be faster where another client computed the same prefix.
            for move in tick.kv_operations:
                if isinstance(move, Release) and move.start == 0:
                    self._drafter.forget(move.slot)
                elif isinstance(move, Move):
                    self._drafter.forget(move.source)
        began = time.perf_counter()
        moved = self._cells.move(tick.kv_operations)
        moving_s = time.perf_counter() - began
        if any(isinstance(move, Divide) for move in tick.kv_operations):
            self._on_new_context()
        if not moved:
            log.error("a sequence could not be saved or restored")
            return TickResult(Outcome.CACHE_LOST, (), 0.0)
        if not tick.runs:
            return TickResult(Outcome.DONE, (), 0.0, moving_s=moving_s)
        started = time.perf_counter()
        runs, draft_tokens = self._with_drafts(tick)
        drafted = time.perf_counter()
        self._adapters.apply(self._model.context, tick.adapters)
        tokens: list[Sequence[int]] = [()] * len(runs)
        logprobs: dict[int, list[Logprobs]] = {}
        failed: dict[int, RequestError] = {}
        decoded: list[Run] = []
        begun: list[Step] = []
        for group in self._groups(runs):
            of_group = [runs[index] for index in group]
            code, outputs = self._decode(of_group)
            if code:
                log.error("llama_decode returned %d", code)
                # Its tokens can't be sampled again.
                unchanged = code == 1 and not any(run.sampler for run in decoded) and self._undo(decoded)
                return TickResult(Outcome.NO_CELLS if unchanged else Outcome.FAILED, (), 0.0)
            decoded += of_group
            begun += self._sampling.begin(of_group, self._logits(outputs))
        if decoded:
            self._sampling.wait(begun, time.perf_counter() - drafted)
        else:
            self._sampling.wait_for_late(runs)
        late: set[int] = set()
        for index, run in enumerate(runs):
            if run.sampler is None:
                if run.logprobs is not None:
                    logprobs[index] = self._sampling.take_prompt_scores(run)
                continue
            try:
                sampled, ended = self._taken(run)
            except RequestError as error:
                failed[index] = error
                self._cells.move([Release(run.slot, run.start + len(run.tokens) - run.draft_tokens)])
                continue
            tokens[index] = [token for token, _scores in sampled]
            if run.logprobs is not None:
                logprobs[index] = [scores for _token, scores in sampled if scores is not None]
            if not ended:
                late.add(index)
        seconds = time.perf_counter() - drafted
        drafting_s = drafted - started
        return TickResult(Outcome.DONE, tokens, seconds, logprobs, draft_tokens, drafting_s, moving_s, failed, late)

    def _new_embedder(self, n_ubatch: int) -> Embedder:
        adapters = self._adapters.resolve(None)
        return Embedder(
            self._model, lambda context: self._adapters.set(context, adapters), n_ubatch, self.capacity.sequence_tokens
        )

    def _on_new_context(self) -> None:
        """Forget what was set on the context, and what the drafter knows by slot, after the cells were divided."""
        self._adapters.forget_applied()
        self._threads = self.capacity.threads
        if self._drafter is not None:
            for slot in range(self.capacity.sequences):
                self._drafter.forget(slot)

    def _groups(self, runs: Sequence[Run]) -> list[list[int]]:
        """The indices of the runs of each decode, in order: each run of media, then those of text."""
        media = [[index] for index, run in enumerate(runs) if run.span is not None]
        return [*media, *decodes(runs, prompts_apart=self.capacity.prompts_apart)]

    def _decode(self, runs: Sequence[Run]) -> tuple[int, int]:
        """Decode runs of text together, or one of media; returns the code of ``llama_decode`` and the output rows."""
        (first, *_) = runs
        if first.span is not None:
            return self._media_batch.decode(first, first.span), 0
        outputs = self._batch.fill(runs, self._cells.positions)
        return llama_cpp.llama_decode(self._model.context, self._batch.native), outputs

    def _undo(self, decoded: Sequence[Run]) -> bool:
        """Remove what was decoded; returns whether that is possible."""
        self._cells.move([Release(run.slot, run.start) for run in decoded])
        return not decoded or self._model.sequences_can_be_cut

    def _use_threads(self, threads: int) -> None:
        if threads != self._threads:
            self._threads = threads
            n_batch = min(threads, self._model.n_threads_batch)
            llama_cpp.llama_set_n_threads(self._model.context, min(threads, self._model.n_threads), n_batch)

    def _with_drafts(self, tick: Tick) -> tuple[Sequence[Run], Sequence[int]]:
        """The runs with their draft tokens appended, and the number of draft tokens for each of ``tick.drafts``."""
        if self._drafter is None or not tick.drafts:
            return tick.runs, ()
        runs = list(tick.runs)
        drafted = self._drafter.draft(tick.drafts, runs, tick.threads)
        for draft, draft_tokens in zip(tick.drafts, drafted, strict=True):
            run = runs[draft.run]
            runs[draft.run] = run._replace(tokens=[*run.tokens, *draft_tokens], draft_tokens=len(draft_tokens))
        return runs, [len(draft_tokens) for draft_tokens in drafted]

    def _logits(self, outputs: int) -> Sequence[Logits]:
        """The logits of each output row, in order; valid until the next decode."""
        if not outputs:
            return ()
        native = llama_cpp.llama_get_logits(self._model.context)
        address = ctypes.addressof(native.contents)
        # Mostly the same ones: to make them anew takes 0.1 ms, in which no core computes.
        if address != self._rows_at or len(self._rows) < outputs:
            self._rows = list(np.ctypeslib.as_array(native, (outputs, self._model.n_vocab)))
            self._rows_at = address
        return self._rows[:outputs]

    def _taken(self, run: Run) -> tuple[list[Sampled], bool]:
        """Take the tokens of ``run``, as ``TickSampling.take``; rejected draft tokens are removed from the KV cache."""
        sampled, ended = self._sampling.take(run)
        if run.draft_tokens:
            right = len(run.tokens) - run.draft_tokens + len(sampled) - ended
            if not self._cells.move([Release(run.slot, run.start + right)]):
                raise RuntimeError(f"rejected draft tokens can't be removed from sequence {run.slot}")
        return sampled, ended

    def close(self) -> None:
        self._spinning.close()
        self._sampling.close()
        self._cells.close()
        if self._disk is not None:
            self._disk.close()
        if self._drafter is not None:
            self._drafter.free()
        if self._embedder is not None:
            self._embedder.free()
        self._adapters.free()
        if self._projector is not None:
            self._projector.free()
        self._model.free()


def chat_template_of(model: Model, chosen: str | None) -> ChatTemplate:
    """The operator's ``chosen`` template, else the model's own, else ChatML."""
    info = model.info(0)
    own, with_tools = model.chat_template(), model.chat_template("tool_use")
    if chosen:
        log.info("chat template: taken from --chat-template")
        with_tools = None
    elif own is None and with_tools is None:
        log.info("chat template: ChatML, since the model has none; --chat-template sets another")
    source = chosen or own or with_tools or CHATML
    return ChatTemplate(
        source,
        info.bos,
        info.eos,
        with_tools=with_tools,
        adds_bos=model.adds_bos,
        adds_eos=model.adds_eos,
        ends=[model.special_text(token) for token in model.end_tokens],
    )


def _projector(model: Model, config: Config) -> Projector | None:
    if not config.mmproj:
        return None
    return Projector(config.mmproj, model, gpu=config.n_gpu_layers != 0, flash_attn=config.flash_attn)
