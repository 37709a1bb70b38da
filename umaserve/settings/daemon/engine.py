"""Settings of the daemon: the model, and how its engine computes."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Self

from umaserve.settings.kinds import (
    AUTO,
    addresses,
    choice,
    factor,
    or_auto,
    overrides,
    path,
    real,
    shares,
    switch,
    whole,
    words,
)
from umaserve.settings.sources import setting

_KV_TYPES = ("f16", "bf16", "f32", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0")
MAX_CELLS = 4194304
WHOLE_SEQUENCES = 4
"""Sequences as long as the model was trained for that "auto" has cells for: few agents work at once, and short requests
leave most of their share to others."""
TOKENS_OF_EACH = 1024
"""Tokens for which each of the parallel sequences has cells then: a question and its answer."""


ROPE = (
    *("rope_scaling", "rope_scale", "rope_freq_base"),
    *("yarn_orig_ctx", "yarn_ext_factor", "yarn_attn_factor", "yarn_beta_fast", "yarn_beta_slow"),
)
"""Settings of a model's rotary positions."""
PLACEMENT = ("override_tensor", "n_cpu_moe")
"""Settings of where tensors lie that only one model has."""


@dataclass(frozen=True)
class Engine:
    """The model, and how its engine computes."""

    model: str = setting(
        "",
        path(or_empty=True),
        "engine",
        "GGUF file of the model; empty: the default model, SmolLM2-135M-Instruct",
        about="GGUF file of the model. Empty: the default model, SmolLM2-135M-Instruct, if it is installed.",
    )
    weights: str = setting(
        "fast",
        choice("fast", "as-is", "converted", "mapped"),
        "engine",
        "fast: measure at the first start whether this processor computes them faster from a copy converted to Q8_0 "
        "(Q4_1, Q5_1) or not repacked (K-quants), and load what proves faster; as-is: the file, as llama.cpp does by "
        "default; converted: load such a copy without measuring; mapped: do not repack",
        about="What to do with weights in a format that this processor computes slowly, for which llama.cpp has no "
        'matrix kernels: Q4_1 (the default model\'s) and Q5_1. "fast": at the first start, the daemon makes a '
        "copy converted to Q8_0, measures both, and loads the copy from then on if 8 to 256 tokens at once are "
        "at least 20% faster with it, and a request alone, with an answer as long as its prompt, at most 5% slower. "
        "That takes seconds for a small model, and a minute per few GB for a large one. The answers are as good, "
        "though not always the same. The copy "
        "takes up to 1.7 times the model's memory and disk space; where too little is free, on a GPU, with rpc, "
        "and for a model in several files, weights stay as they are. K-quants and IQ4_XS in a file of 4 GiB at "
        "most are measured as llama.cpp loads them by default, repacked, and mapped, and stay mapped if that is "
        "5% faster. Repacked weights are copies in memory of the engine's own; mapped ones are the file's "
        "pages, which several engines share and the kernel can drop and read again.\n"
        '"as-is": always load the model\'s own file, as llama.cpp does by default. "converted": always load the '
        'copy; it may pay although such a request is slower ("umaserve tune" measures that). "mapped": always load '
        "the model's own file, and repack nothing.",
    )
    weights_cache: str = setting(
        "",
        path(or_empty=True),
        "engine",
        "folder for these copies; empty: weights in $CACHE_DIRECTORY (systemd), else umaserve/weights in "
        "$XDG_CACHE_HOME or ~/.cache",
        about="Folder for the converted copies, of which it keeps the four used last. Daemons of one user may share "
        'it. Others must not be able to write to it. Empty: "weights" in the service manager\'s cache folder '
        '($CACHE_DIRECTORY), else "umaserve/weights" in $XDG_CACHE_HOME, else in ~/.cache.',
    )
    mmproj: str = setting(
        "",
        path(or_empty=True),
        "engine",
        "GGUF file of the model's projector, for images and sounds; empty: none",
        about="GGUF file of the model's projector, with which a model that is made for it sees images and hears "
        "sounds. Usually named mmproj-… beside the model. Empty: the model takes only text.",
    )
    chat_template: str = setting(
        "",
        path(or_empty=True),
        "engine",
        "file of a chat template (jinja2) to use instead of the model's own",
        about="File of a chat template (jinja2), which takes the place of the model's own: for a model without one, "
        "or with a faulty one. Empty: the model's own, or ChatML where it has none.",
    )
    trust_content: bool = setting(
        False,
        switch(),
        "engine",
        "take names of control tokens in what a conversation's messages say, such as <|im_end|>, for control tokens",
        about="Whether the name of a control token in what a conversation's messages say, such as <|im_end|>, is that "
        "token, with which a user can end the turn and speak for others. Else it is text. In raw prompts, names "
        "are always control tokens.",
    )
    n_ctx: int = setting(
        AUTO,
        or_auto(whole(64, MAX_CELLS, or_zero=True)),
        "engine",
        "KV cells for all sequences together; auto: by what the model was trained for and what memory has room for; 0: "
        "the model's training length",
        about="KV cells, shared by all sequences: 64 to 4194304, or 0 for the length that the model was trained with. "
        "A cell holds one token of prompt or answer. More cells allow more and longer requests at the same "
        "time, and take more memory. A sequence, prompt and answer together, may have as many tokens as the model was "
        "trained for, if there are as many cells.\n"
        '"auto": enough for four sequences of that length, or for parallel ones where these are fewer, and for 1024 '
        "tokens of each of parallel; less where that would take more than half of the memory that all else leaves "
        "free. The log says at the start what was chosen.",
    )
    parallel: int = setting(
        16,
        whole(1, 256),
        "engine",
        "sequences decoded at the same time",
        about="Sequences decoded at the same time, 1 to 256. More of them give more tokens per second in all, and "
        "fewer to each stream.",
    )
    n_batch: int = setting(
        512,
        whole(1, 65536),
        "engine",
        "most tokens in one decode",
        about="Most tokens in one decode, 1 to 65536.",
    )
    n_ubatch: int = setting(
        512,
        whole(1, 65536),
        "engine",
        "most tokens in one pass of a decode",
        about="Most tokens in one pass of a decode, 1 to 65536 and at most n_batch. Larger passes compute prompts "
        "faster, up to a point, and need larger buffers.",
    )
    threads: int = setting(
        0,
        whole(0, 512),
        "engine",
        "most threads for decoding; 0: the cores that this process may use",
        about="Most threads for decoding, 0 to 512. 0: the cores that this process may use, by its affinity and CPU "
        "quota. Fewer are used while another program uses one of the cores, since threads that share a core "
        "slow down all others.",
    )
    threads_batch: int = setting(
        0,
        whole(0, 512),
        "engine",
        "most threads for decodes of several tokens, such as prompts; 0: as threads",
        about="Most threads for decodes of several tokens, such as prompts, 0 to 512. 0: as threads.",
    )
    n_gpu_layers: int = setting(
        -1,
        whole(-1, 10000),
        "engine",
        "layers to offload to a GPU; -1: all that this build of llama.cpp can",
        about="Layers of the model to offload to a GPU, 0 to 10000, or -1 for all that this build of llama.cpp can. 0 "
        "keeps the model on the CPU. Use a number in between if the model is larger than the GPU's memory.",
    )
    split_mode: str = setting(
        "layer",
        choice("layer", "row", "tensor", "none"),
        "engine",
        "how several GPUs share the model; none: main_gpu has all of it",
        about='How several GPUs share the model: "layer" (each has some of the layers, with their cells), "row" (the '
        'rows of each matrix, where the backend can), "tensor" (all compute each layer together; needs flash '
        'attention, and a model that llama.cpp does so) or "none" (main_gpu has all of it).',
    )
    tensor_split: tuple[str, ...] = setting(
        (),
        shares(),
        "engine",
        "shares of the model that the GPUs get, in their order, such as 3,1; empty: by their free memory",
        about="Shares of the model that the GPUs get, in their order: 3,1 gives the first one three quarters. Empty: "
        "by their free memory.",
    )
    main_gpu: int = setting(
        0,
        whole(0, 255),
        "engine",
        "the GPU that has all of the model where split_mode is none",
        about='The number of the GPU that has all of the model where split_mode is "none", 0 to 255.',
    )
    override_tensor: tuple[str, ...] = setting(
        (),
        overrides(),
        "engine",
        "kinds of memory for tensors, PATTERN=NAME each, such as exps=CPU",
        about="Kinds of memory for tensors that are to lie elsewhere than n_gpu_layers says: each a regular expression "
        "for their names, and llama.cpp's name of the memory, such as exps=CPU. The first that matches counts. A "
        "name that this box lacks is refused with those that it has.",
    )
    n_cpu_moe: int = setting(
        0,
        whole(0, 10000),
        "engine",
        "layers whose experts stay in the box's own memory, counted from the first; 10000: all",
        about="Layers of a mixture of experts whose experts stay in the box's own memory, counted from the first, 0 to "
        "10000. With 10000, only what every token uses is on the GPU: so models run that are far larger than its "
        "memory.",
    )
    rope_scaling: str = setting(
        "model",
        choice("model", "none", "linear", "yarn"),
        "engine",
        "how rotary positions are scaled for texts longer than the model was trained with; model: as it says",
        about='How rotary positions (RoPE) are scaled for texts longer than the model was trained with: "none", '
        '"linear", "yarn", or "model", as its file says.',
    )
    rope_scale: float = setting(
        0.0,
        factor(0, 1024),
        "engine",
        "by which the context is longer than the one that the model was trained with; 0: as the model says",
        about="Factor by which the context is longer than the one that the model was trained with, 0 to 1024. 0: as "
        "the model says. llama-server's --rope-freq-scale is 1 divided by it.",
    )
    rope_freq_base: float = setting(
        0.0,
        factor(0, 1e12),
        "engine",
        "base frequency of rotary positions; 0: as the model says",
        about="Base frequency of rotary positions, 0 to 1e12. 0: as the model says.",
    )
    yarn_orig_ctx: int = setting(
        0,
        whole(0, 4194304),
        "engine",
        "YaRN: tokens of context that the model was trained with; 0: as the model says",
        about="YaRN (Peng et al. 2023): tokens of context that the model was trained with, 0 to 4194304. 0: as the "
        "model says.",
    )
    yarn_ext_factor: float = setting(
        -1.0,
        factor(-1, 1024),
        "engine",
        "YaRN: share of extrapolation; 0: interpolation only; -1: as the model says",
        about="YaRN: share of extrapolation, -1 to 1024. 0: interpolation only; -1: as the model says.",
    )
    yarn_attn_factor: float = setting(
        -1.0,
        factor(-1, 1024),
        "engine",
        "YaRN: factor of the attention's magnitude; -1: as the model says",
        about="YaRN: factor of the attention's magnitude, -1 to 1024. -1: as the model says.",
    )
    yarn_beta_fast: float = setting(
        -1.0,
        factor(-1, 1024),
        "engine",
        "YaRN: rotations above which positions stay as they are; -1: as the model says",
        about="YaRN: rotations within the trained context above which positions stay as they are, -1 to 1024. -1: as "
        "the model says.",
    )
    yarn_beta_slow: float = setting(
        -1.0,
        factor(-1, 1024),
        "engine",
        "YaRN: rotations below which positions are interpolated; -1: as the model says",
        about="YaRN: rotations within the trained context below which positions are interpolated, -1 to 1024. -1: as "
        "the model says.",
    )
    flash_attn: str = setting(
        "auto",
        choice("auto", "on", "off"),
        "engine",
        "flash attention",
        about='Flash attention: "auto" (where the backend supports it), "on" or "off".',
    )
    kv_type: str = setting(
        "f16",
        choice(*_KV_TYPES),
        "engine",
        "type of the KV cells; the q types take less memory and need flash attention",
        about='Type of the KV cells: "f16", "bf16", "f32", "q8_0", "q5_1", "q5_0", "q4_1" or "q4_0". The q types take '
        'less memory per cell, cost some quality, and need flash_attn to be "auto" or "on".',
    )
    kv_type_k: str = setting(
        "",
        choice(*_KV_TYPES, or_empty=True),
        "engine",
        "type of their K, where it is another; empty: as kv_type",
        about="Type of their K, where it is to differ from that of V: as above, or empty for kv_type. Coarse types "
        'cost more quality for K than for V: with K as "q4_0" some models are useless, with "q8_0" and V as '
        '"q4_0" they are not. A quantized K alone does not need flash_attn. Models with latent attention '
        "(DeepSeek) take one type only.",
    )
    kv_type_v: str = setting(
        "",
        choice(*_KV_TYPES, or_empty=True),
        "engine",
        "type of their V, where it is another; empty: as kv_type",
        about='Type of their V, in the same way. A quantized V needs flash_attn to be "auto" or "on".',
    )
    rpc: tuple[str, ...] = setting(
        (),
        addresses(),
        "engine",
        "RPC servers of llama.cpp, HOST:PORT each, that hold a part of the model",
        about="Other machines that hold a part of a model that is too large for this one: HOST:PORT of each one's "
        "rpc-server, which must be built from the same llama.cpp. Its traffic is neither encrypted nor "
        "authenticated: use a private network. Needs a build of llama.cpp with GGML_RPC.",
    )
    lora: tuple[str, ...] = setting(
        (),
        words(),
        "engine",
        "LoRA adapters, as GGUF files; NAME=FILE gives one a name for requests to choose",
        about='LoRA adapters: GGUF files, each "FILE" or "NAME=FILE". By default a request uses all of them at scale '
        '1; "lora": {"NAME": 0.5} in a request uses the named ones only. Requests with different adapters take '
        "turns, one decode each.",
    )
    engine_timeout: float = setting(
        30.0,
        real("seconds", 0, 86400),
        "engine",
        "end an engine whose tick takes this long, and 20 times the prediction, and start a new one; 0: never",
        about=(
            "A tick that takes this many seconds, and 20 times what was predicted, is taken to hang: the engine's"
            " process is ended, and a new one continues all its requests. 0: never."
        ),
    )
    speculation: bool = setting(
        True,
        switch(),
        "engine",
        "draft tokens where the text repeats itself, as long as that is faster",
        about="true: where text repeats itself, the next tokens are drafted and verified in one decode, as long as "
        "that is faster. The text stays the same. false: no draft tokens, not even from a draft model.",
    )
    draft_model: str = setting(
        "",
        path(or_empty=True),
        "engine",
        "GGUF file of a small model with the same vocabulary, for draft tokens; empty: none",
        about="GGUF file of a small model with the same vocabulary, for draft tokens where the text does not repeat "
        "itself. Empty: none.",
    )
    tts_model: str = setting(
        "",
        path(or_empty=True),
        "engine",
        "GGUF file of a Pocket TTS or Qwen3-TTS model for speech; empty: hibari-tts, if installed",
        about="GGUF file of a Pocket TTS or Qwen3-TTS model, which turns answers into speech, also with the voice of "
        "a recording that a client sends. Empty: the voice of the package hibari-tts, if it is installed.",
    )
    tts_mmproj: str = setting(
        "",
        path(or_empty=True),
        "engine",
        "GGUF file of the projector (mmproj) of tts_model",
        about="GGUF file of the projector (mmproj) of tts_model. Both files must be given, or neither.",
    )
    pooling: str = setting(
        "model",
        choice("model", "mean", "cls", "last"),
        "engine",
        "how /v1/embeddings combines the vectors of a text's tokens; model: as the model says",
        about='How /v1/embeddings combines the vectors of a text\'s tokens into one: "mean" of all, "cls" (the first) '
        'or "last". "model": as the model says, if it does.',
    )

    def cells_for(self, training_tokens: int) -> int:
        """KV cells of a model that was trained for so many tokens, if memory has room for them."""
        if self.n_ctx != AUTO:
            return self.n_ctx or training_tokens
        whole = min(self.parallel, WHOLE_SEQUENCES) * training_tokens
        return min(max(whole, self.parallel * TOKENS_OF_EACH), MAX_CELLS)

    @property
    def kv_types(self) -> tuple[str, str]:
        """The types of the KV cells' K and V."""
        return self.kv_type_k or self.kv_type, self.kv_type_v or self.kv_type

    def for_companion(self, **changes: Any) -> Self:
        """Settings for a model that runs beside the one that these are for: with ``changes``, and nothing of that
        model's own."""
        own: dict[str, Any] = {field.name: field.default for field in fields(self) if field.name in (*ROPE, *PLACEMENT)}
        return replace(self, **own, **changes)
