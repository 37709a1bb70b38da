"""Tiny Qwen3-TTS voices for llama.cpp: a backbone and its mmproj, whole but for their size, with random weights.

As those of ``tiny_voices`` they say nothing. Names and shapes are those that llama.cpp's converter gives the real ones.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import numpy as np
import numpy.typing as npt
from gguf import TokenType
from tiny_weights import Array, Weights

WIDTH, HEADS, HEAD = 32, 2, 16
"""Of the backbone; heads of its attention and their width."""
INNER, INNER_HEAD = 16, 272
"""Of the predictor of codes: its width, and that of a head, whose caches are as the real ones no light work."""
CODES, FEW, BOOKS = 64, 32, 15
"""In each of its books, and the books, without the first."""
FIRST_CODES, CODEC_TOKENS = 2048, 3072
"""In the first book, whose codes are the backbone's tokens; llama.cpp knows the second number by heart."""
MIMI, WAV_HEADS = 32, 16
RATES = (8, 5, 4, 3)
"""By these, and twice by 2, frames become samples."""
FRAME = 4 * int(np.prod(RATES))
"""Samples of a frame, of which 12.5 make a second."""
HEARD, MELS = 16, 80
"""Channels of what encodes a speaker, and of what it hears."""
NORM_EPS = 1e-6
LANGUAGES = {"chinese": 2055, "english": 2050, "german": 2053, "russian": 2069}
CODEC = {"pad": 2148, "bos": 2149, "eos_token": 2150, "think": 2154, "think_bos": 2156, "think_eos": 2157}
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tts_pad>", "<tts_text_bos>", "<tts_text_eod>")
WORD = "assistant"
"""Begins every prompt: llama.cpp counts on its being one token."""


def write_qwen3_voice(
    folder: Path,
    *,
    ends: bool = True,
    speaks: bool = True,
    hears: bool = True,
    nan: str = "",
    width: int = WIDTH,
    missing: Collection[str] = (),
    swapped: tuple[str, str] | None = None,
    first_codes: int = FIRST_CODES,
    even: bool = False,
) -> tuple[str, str]:
    """The paths of a new backbone and a new mmproj in ``folder``.

    ``ends``: after each frame but the first it finds the text finished once in some three times, and else never.
    ``nan``: the name of a tensor whose first weight is no number. Without ``speaks`` and ``hears`` the mmproj claims to
    lack that half. ``width`` is the backbone's; the mmproj's is always ``WIDTH``. ``missing``: tokens that the
    vocabulary has other names for; ``swapped``: two that have each other's. ``first_codes``: of the first book in the
    mmproj. ``even``: the codes of the other books are ``FEW`` and all as likely.
    """
    model, mmproj = folder / "voice.gguf", folder / "mmproj.gguf"
    _Writer(model, "qwen3tts", 1, nan).backbone(width, _swapped(tokens(missing), swapped), ends=ends)
    _Writer(mmproj, "clip", 2, nan).projector(speaks=speaks, hears=hears, first_codes=first_codes, even=even)
    return str(model), str(mmproj)


def tokens(missing: Collection[str] = ()) -> list[str]:
    """The whole vocabulary: bytes, what merges make of ``WORD``, the text's control tokens, the codec's."""
    codec = [f"<|codec_{code}|>" for code in range(CODEC_TOKENS)]
    for names in (CODEC, {f"language_{language}": code for language, code in LANGUAGES.items()}):
        for name, code in names.items():
            codec[code] = f"<|codec_{name}|>"
    words = [WORD[:length] for length in range(2, len(WORD) + 1)]
    named = [*_bytes(), *words, *CONTROL, *codec]
    return [f"<|unused_{token}|>" if name in missing else name for token, name in enumerate(named)]


def _swapped(names: list[str], swapped: tuple[str, str] | None) -> list[str]:
    other = dict(zip(swapped, reversed(swapped), strict=True)) if swapped else {}
    return [other.get(name, name) for name in names]


def _bytes() -> list[str]:
    """The characters that stand for the bytes in a byte-level vocabulary."""
    shown = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return [chr(byte) for byte in shown] + [chr(256 + place) for place in range(len(hidden))]


class _Writer(Weights):
    def __init__(self, path: Path, architecture: str, seed: int, nan: str) -> None:
        super().__init__(path, architecture, seed)
        self._nan = nan

    def backbone(self, width: int, vocabulary: list[str], *, ends: bool) -> None:
        gguf = self.gguf
        codec = len(vocabulary) - CODEC_TOKENS
        text = codec - len(CONTROL)
        gguf.add_context_length(4096)
        gguf.add_embedding_length(width)
        gguf.add_block_count(2)
        gguf.add_feed_forward_length(2 * width)
        gguf.add_head_count(HEADS)
        gguf.add_head_count_kv(1)
        gguf.add_key_length(HEAD)
        gguf.add_value_length(HEAD)
        gguf.add_layer_norm_rms_eps(NORM_EPS)
        gguf.add_rope_freq_base(1e6)
        gguf.add_rope_dimension_sections([4, 2, 2, 0])
        gguf.add_vocab_size(len(vocabulary))
        gguf.add_tokenizer_model("gpt2")
        gguf.add_tokenizer_pre("qwen2")
        gguf.add_token_list(vocabulary)
        gguf.add_token_types([TokenType.NORMAL] * text + [TokenType.CONTROL] * (len(vocabulary) - text))
        gguf.add_token_merges([f"{WORD[:length]} {WORD[length]}" for length in range(1, len(WORD))])
        gguf.add_eos_token_id(codec + CODEC["eos_token"])
        gguf.add_pad_token_id(text)
        gguf.add_add_eos_token(False)
        embeddings = self.random(len(vocabulary), width) * width**0.5
        # All that is generated has the first of these in it, and what precedes it the second too.
        embeddings[text + CONTROL.index("<tts_pad>"), :2] = 10, 0
        embeddings[codec + CODEC["bos"], :2] = 0, -40
        self.tensor("token_embd.weight", embeddings)
        head = self.random(CODEC_TOKENS, width) * 2
        head[:, :2] = 0
        head[CODEC["eos_token"]] = 0
        head[CODEC["eos_token"], :2] = (1.3, 3) if ends else (-10, 0)
        self.tensor("output.weight", head)
        self.norm("output_norm", width, bias=False)
        for block in range(2):
            name = f"blk.{block}"
            self._attention(name, width, HEAD, "attn_output", "attn_norm")
            self._feed_forward(name, width, 2 * width, "ffn_norm")
        self.write()

    def projector(self, *, speaks: bool, hears: bool, first_codes: int, even: bool) -> None:
        gguf = self.gguf
        gguf.add_bool("clip.has_audio_encoder", hears)
        gguf.add_bool("clip.has_gen_audio_encoder", speaks)
        gguf.add_string("clip.audio.projector_type", "qwen3tts_spkenc")
        gguf.add_string("clip.gen.audio.projector_type", "qwen3tts_gen")
        gguf.add_uint32("clip.audio.num_mel_bins", MELS)
        for part, blocks, width in (("audio", 3, HEARD), ("gen.audio", 2, INNER)):
            gguf.add_uint32(f"clip.{part}.projection_dim", WIDTH)
            gguf.add_uint32(f"clip.{part}.block_count", blocks)
            gguf.add_uint32(f"clip.{part}.embedding_length", width)
            gguf.add_uint32(f"clip.{part}.feed_forward_length", 2 * width)
            gguf.add_uint32(f"clip.{part}.attention.head_count", HEADS)
            gguf.add_float32(f"clip.{part}.attention.layer_norm_epsilon", NORM_EPS)
        gguf.add_uint32("clip.gen.audio.attention.head_count_kv", 1)
        self._speaker_encoder()
        self._predictor(FEW if even else CODES, 0 if even else CODES**0.5)
        self._decoder(first_codes, FEW if even else CODES)
        self.write()

    def _speaker_encoder(self) -> None:
        self._heard("a.conv1d.0", HEARD, MELS, 5)
        for block in range(1, 4):
            name = f"a.blk.{block}"
            self._heard(f"{name}.conv_pw1", HEARD, HEARD, 1)
            for part in range(7):
                self._heard(f"{name}.res2.{part}", HEARD // 8, HEARD // 8, 3)
            self._heard(f"{name}.conv_pw2", HEARD, HEARD, 1)
            self._heard(f"{name}.se_conv1", HEARD // 2, HEARD, 1)
            self._heard(f"{name}.se_conv2", HEARD, HEARD // 2, 1)
        self._heard("a.conv_out", HEARD, 3 * HEARD, 1)
        self._heard("a.asp_tdnn", HEARD, 3 * HEARD, 1)
        self._heard("a.asp_attn", HEARD, HEARD, 1)
        self._heard("mm.a.fc", WIDTH, 2 * HEARD, 1)

    def _heard(self, name: str, outputs: int, inputs: int, taps: int) -> None:
        self.conv(name, outputs, inputs, taps, half=False)

    def _predictor(self, codes: int, sureness: float) -> None:
        name = "a.gen.code"
        self.linear(f"{name}.proj_in", INNER, WIDTH)
        self.add(f"{name}.out_embd.weight", CODEC_TOKENS, WIDTH)
        # Each code says much: what is made of sixteen of them depends on all.
        self.tensor(f"{name}.embd.weight", self.random(BOOKS, codes, WIDTH) * codes**0.5)
        self.tensor(f"{name}.head.weight", self.random(BOOKS, codes, INNER) * np.float32(sureness))
        self.norm(f"{name}.output_norm", INNER, bias=False)
        for block in range(2):
            self._attention(f"{name}.blk.{block}", INNER, INNER_HEAD, "attn_out", "ln1")
            self._feed_forward(f"{name}.blk.{block}", INNER, 2 * INNER, "ln2")

    def _decoder(self, first_codes: int, codes: int) -> None:
        name = "a.gen.wav"
        for part in ("first", "rest"):
            self.add(f"{name}.quant.{part}.in_proj.weight", MIMI, MIMI)
            self.add(f"{name}.quant.{part}.out_proj.weight", MIMI, MIMI)
        self.tensor(f"{name}.quant.first.codebook.weight", self.random(first_codes, MIMI) * MIMI**0.5)
        self.tensor(f"{name}.quant.rest.codebook.weight", self.random(BOOKS, codes, MIMI) * codes**0.5)
        self.conv(f"{name}.pre_conv", MIMI, MIMI, 3)
        for part in ("in_proj", "out_proj"):
            self.linear(f"{name}.tfm.{part}", MIMI, MIMI)
        self.norm(f"{name}.tfm.output_norm", MIMI, bias=False)
        for block in range(8):
            block_name = f"{name}.tfm.blk.{block}"
            self.norm(f"{block_name}.ln1", MIMI, bias=False)
            for part in ("attn_q", "attn_k", "attn_v", "attn_out"):
                self.add(f"{block_name}.{part}.weight", MIMI, MIMI)
            self._feed_forward(block_name, MIMI, 2 * MIMI, "ln2")
            for part in ("ls1", "ls2"):
                self.norm(f"{block_name}.{part}", MIMI, bias=False)
        for block in range(2):
            self._upsampling(f"{name}.up.blk.{block}", MIMI)
        width = HEARD
        self.conv(f"{name}.dac.entry", width, MIMI, 7)
        for block, rate in enumerate(RATES):
            block_name = f"{name}.dac.blk.{block}"
            self._snake(f"{block_name}.snake", width)
            # Transposed: from the wider to the narrower, the wider first.
            self.add(f"{block_name}.conv.weight", width, width // 2, 2 * rate)
            width //= 2
            self.tensor(f"{block_name}.conv.bias", np.zeros(width, np.float32))
            for number in range(3):
                residual = f"{block_name}.res.{number}"
                self._snake(f"{residual}.act1", width)
                self.conv(f"{residual}.conv1", width, width, 7)
                self._snake(f"{residual}.act2", width)
                self.conv(f"{residual}.conv2", width, width, 1)
        self._snake(f"{name}.dac.post_snake", width)
        self.tensor(f"{name}.dac.post_conv.weight", (self.random(1, width, 7) / 60).astype(np.float16))
        self.tensor(f"{name}.dac.post_conv.bias", np.zeros(1, np.float32))

    def _upsampling(self, name: str, width: int) -> None:
        self.add(f"{name}.conv.weight", width, width, 2)
        self.tensor(f"{name}.conv.bias", np.zeros(width, np.float32))
        self.conv(f"{name}.dwconv", width, 1, 7)
        self.norm(f"{name}.norm", width)
        self.linear(f"{name}.pw1", 2 * width, width)
        self.linear(f"{name}.pw2", width, 2 * width)
        self.tensor(f"{name}.gamma", np.ones(width, np.float32))

    def _snake(self, name: str, width: int) -> None:
        for part in ("alpha", "beta"):
            self.tensor(f"{name}.{part}", np.ones(width, np.float32))

    def _attention(self, name: str, width: int, head: int, output: str, norm: str) -> None:
        self.norm(f"{name}.{norm}", width, bias=False)
        for part, heads in (("attn_q", HEADS), ("attn_k", 1), ("attn_v", 1)):
            self.add(f"{name}.{part}.weight", heads * head, width)
        for part in ("attn_q_norm", "attn_k_norm"):
            self.norm(f"{name}.{part}", head, bias=False)
        self.add(f"{name}.{output}.weight", width, HEADS * head)

    def _feed_forward(self, name: str, width: int, inner: int, norm: str) -> None:
        self.norm(f"{name}.{norm}", width, bias=False)
        for part in ("ffn_gate", "ffn_up"):
            self.add(f"{name}.{part}.weight", inner, width)
        self.add(f"{name}.ffn_down.weight", width, inner)

    def tensor(self, name: str, values: npt.NDArray[np.float16] | Array) -> None:
        if name == self._nan:
            values.reshape(-1)[0] = np.nan
        super().tensor(name, values)
