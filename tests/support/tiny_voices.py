"""Tiny Pocket TTS voices for llama.cpp: a backbone and its mmproj, whole but for their size, with random weights.

What they say is noise, so that they show how long it is, how fast it comes and what it depends on, never how it sounds.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gguf import TokenType
from tiny_weights import Weights

from umaserve.settings.daemon import Config
from umaserve.speech.voice import SAMPLE_RATE, Samples

WIDTH, LATENT, CHANNELS, MIMI, HEADS = 32, 8, 8, 16, 2
"""Of the backbone, of a frame, of the flow's net, of the codec's transformers; heads of all attention."""
RATIOS = (4, 5, 6)
"""By these and by ``STEPS`` samples become frames; llama.cpp knows them by heart."""
STEPS = 16
FRAME = STEPS * int(np.prod(RATIOS))
"""Samples of a frame, of which 12.5 make a second."""
NORM_EPS = 1e-5
CONTROL = ("<|pad|>", "<|bos_before_voice|>", "<|audio_bos|>")
TEXT = "Hello there."
PIECES = ["▁", *"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,;:!?'-"]


def write_voice(
    folder: Path,
    *,
    ends: bool = True,
    variant: str = "english",
    speaks: bool = True,
    hears: bool = True,
    nan: bool = False,
    width: int = WIDTH,
) -> tuple[str, str]:
    """The paths of a new backbone and a new mmproj in ``folder``.

    ``ends``: it finds each text finished at its first frame, and else never. ``nan``: one weight on the way to each
    sample is no number. Without ``speaks`` and ``hears`` the mmproj claims to lack that half. ``width`` is the
    backbone's; the mmproj's is always ``WIDTH``.
    """
    model, mmproj = folder / "voice.gguf", folder / "mmproj.gguf"
    _Writer(model, "pockettts", 1).backbone(width)
    _Writer(mmproj, "clip", 2).projector(ends=ends, variant=variant, speaks=speaks, hears=hears, nan=nan)
    return str(model), str(mmproj)


class _Writer(Weights):
    def backbone(self, width: int) -> None:
        gguf = self.gguf
        tokens = ["<unk>", "</s>", "<s>", *PIECES, *CONTROL]
        kinds = [TokenType.UNKNOWN, *[TokenType.CONTROL] * 2, *[TokenType.NORMAL] * len(PIECES)]
        gguf.add_context_length(4096)
        gguf.add_embedding_length(width)
        gguf.add_block_count(2)
        gguf.add_feed_forward_length(2 * width)
        gguf.add_head_count(HEADS)
        gguf.add_layer_norm_eps(NORM_EPS)
        gguf.add_vocab_size(len(tokens))
        gguf.add_tokenizer_model("t5")
        gguf.add_tokenizer_pre("default")
        gguf.add_token_list(tokens)
        gguf.add_token_scores([-1.0] * len(tokens))
        gguf.add_token_types(kinds + [TokenType.CONTROL] * len(CONTROL))
        gguf.add_unk_token_id(0)
        gguf.add_add_space_prefix(True)
        gguf.add_add_bos_token(False)
        gguf.add_add_eos_token(False)
        self.add("token_embd.weight", len(tokens), width)
        self.norm("output_norm", width)
        for block in range(2):
            name = f"blk.{block}"
            self.norm(f"{name}.attn_norm", width)
            self.norm(f"{name}.ffn_norm", width)
            for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
                self.add(f"{name}.{part}.weight", width, width)
            self.add(f"{name}.ffn_up.weight", 2 * width, width)
            self.add(f"{name}.ffn_down.weight", width, 2 * width)
        self.write()

    def projector(self, *, ends: bool, variant: str, speaks: bool, hears: bool, nan: bool) -> None:
        gguf = self.gguf
        gguf.add_bool("clip.has_audio_encoder", hears)
        gguf.add_bool("clip.has_gen_audio_encoder", speaks)
        gguf.add_string("clip.audio.projector_type", "pockettts_spkenc")
        gguf.add_string("clip.gen.audio.projector_type", "pockettts_gen")
        gguf.add_string("clip.gen.audio.model_variant", variant)
        gguf.add_uint32("clip.audio.num_mel_bins", 1)
        for part in ("audio", "gen.audio"):
            gguf.add_uint32(f"clip.{part}.projection_dim", WIDTH)
            gguf.add_uint32(f"clip.{part}.block_count", 1)
            gguf.add_uint32(f"clip.{part}.embedding_length", MIMI)
            gguf.add_uint32(f"clip.{part}.feed_forward_length", 2 * MIMI)
            gguf.add_uint32(f"clip.{part}.attention.head_count", HEADS)
            gguf.add_float32(f"clip.{part}.attention.layer_norm_epsilon", NORM_EPS)
        self._speaker_encoder()
        self._flow()
        self.tensor("a.gen.out_eos.weight", np.zeros((1, WIDTH), np.float32))
        self.tensor("a.gen.out_eos.bias", np.array([100.0 if ends else -100.0], np.float32))
        self.add("a.gen.input_linear.weight", WIDTH, LATENT)
        self.tensor("a.gen.emb_mean", np.full(LATENT, np.nan if nan else 0, np.float32))
        self.tensor("a.gen.emb_std", np.ones(LATENT, np.float32))
        self._decoder()
        self.write()

    def _speaker_encoder(self) -> None:
        width = CHANNELS
        self.conv("a.seanet.conv_in", width, 1, 7)
        for stage, ratio in enumerate(RATIOS):
            self._residual(f"a.seanet.blk.{stage}", width)
            self.conv(f"a.seanet.blk.{stage}.scale_conv", 2 * width, width, 2 * ratio)
            width *= 2
        self.conv("a.seanet.conv_out", MIMI, width, 3)
        self._transformer("a")
        self.add("a.downsample.conv.weight", LATENT, MIMI, 2 * STEPS, half=True)
        self.add("a.speaker_proj.weight", WIDTH, LATENT)

    def _flow(self) -> None:
        name = "a.gen.flow"
        self.linear(f"{name}.input_proj", CHANNELS, LATENT)
        self.linear(f"{name}.cond_embd", CHANNELS, WIDTH)
        for time in range(2):
            self.tensor(f"{name}.time.{time}.freqs", np.linspace(1, 0.01, 4, dtype=np.float32))
            self.linear(f"{name}.time.{time}.up", CHANNELS, 8)
            self.linear(f"{name}.time.{time}.down", CHANNELS, CHANNELS)
            self.tensor(f"{name}.time.{time}.norm", np.ones(CHANNELS, np.float32))
        block = f"{name}.blk.0"
        self.norm(f"{block}.norm", CHANNELS)
        self.linear(f"{block}.up", CHANNELS, CHANNELS)
        self.linear(f"{block}.down", CHANNELS, CHANNELS)
        self.linear(f"{block}.ada", 3 * CHANNELS, CHANNELS)
        self.linear(f"{name}.final.ada", 2 * CHANNELS, CHANNELS)
        self.linear(f"{name}.final.proj", LATENT, CHANNELS)

    def _decoder(self) -> None:
        name = "a.gen.wav"
        self.add(f"{name}.quant_out.weight", MIMI, LATENT)
        self.add(f"{name}.upsample.weight", MIMI, 1, 2 * STEPS, half=True)
        self._transformer(f"{name}.tfm")
        width = CHANNELS * 2 ** len(RATIOS)
        self.conv(f"{name}.seanet.conv_in", width, MIMI, 7)
        for stage, ratio in enumerate(reversed(RATIOS)):
            block = f"{name}.seanet.blk.{stage}"
            # Transposed: from the wider to the narrower, the wider first.
            self.add(f"{block}.scale_conv.weight", width, width // 2, 2 * ratio, half=True)
            width //= 2
            self.tensor(f"{block}.scale_conv.bias", np.zeros(width, np.float32))
            self._residual(block, width)
        self.conv(f"{name}.seanet.conv_out", 1, width, 3)

    def _transformer(self, name: str) -> None:
        block = f"{name}.blk.0"
        self.norm(f"{block}.ln1", MIMI)
        self.norm(f"{block}.ln2", MIMI)
        for part in ("attn_q", "attn_k", "attn_v", "attn_out"):
            self.add(f"{block}.{part}.weight", MIMI, MIMI)
        self.add(f"{block}.ffn_up.weight", 2 * MIMI, MIMI)
        self.add(f"{block}.ffn_down.weight", MIMI, 2 * MIMI)
        for part in ("ls1", "ls2"):
            self.tensor(f"{block}.{part}.weight", np.ones(MIMI, np.float32))

    def _residual(self, name: str, width: int) -> None:
        self.conv(f"{name}.res_conv1", width // 2, width, 3)
        self.conv(f"{name}.res_conv2", width, width // 2, 1)


def config(files: tuple[str, str]) -> Config:
    return Config(tts_model=files[0], tts_mmproj=files[1], threads=1)


def no_pause() -> None:
    """Nobody else has anything to do."""


def tone(seconds: float, pitch: float = 200.0) -> Samples:
    angles = np.arange(round(seconds * SAMPLE_RATE)) * (2 * np.pi * pitch / SAMPLE_RATE)
    samples: Samples = (np.sin(angles) / 2).astype(np.float32)
    return samples
