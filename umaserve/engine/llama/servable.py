"""Refuses files that llama.cpp loads, but that hold no model which can be served."""

from __future__ import annotations

from typing import Any

import llama_cpp

from umaserve.core.errors import ModelError
from umaserve.engine.files import gguf

MIN_CONTEXT = 2
"""Least context of a model, in tokens: a token of the prompt and one of the answer."""

UTF8_BYTES = frozenset("".join(map(chr, range(0x800))).encode()) | set(range(0xE0, 0xF5))
"""Bytes that occur in texts, all but 13."""

_OTHER_KINDS = {
    "adapter": "a LoRA adapter: give it with --lora, beside the model that it was made for",
    "mmproj": "a projector: give it with --mmproj, beside the model that it was made for",
    "imatrix": "an importance matrix, which serves to quantize a model: choose the model",
}


def check_contents(path: str, contents: gguf.Contents) -> None:
    """Raise ``ModelError`` where the file at ``path`` holds something else than a model."""
    if contents.kind in _OTHER_KINDS:
        raise ModelError(f"model {path}: {_OTHER_KINDS[contents.kind]}")
    if contents.parts < 2 and not contents.elements:
        raise ModelError(f"model {path}: it has no weights, only a vocabulary: choose a file with the whole model")


def check_loaded(path: str, architecture: str, native: Any) -> None:
    """Raise ``ModelError`` for llama.cpp's ``native`` model if it writes no text by itself or would end the process."""
    n_ctx = llama_cpp.llama_model_n_ctx_train(native)
    if n_ctx < MIN_CONTEXT:
        expected = f"expected at least {MIN_CONTEXT}: download or convert it again"
        raise ModelError(f"model {path}: damaged, it was trained for {n_ctx} tokens, {expected}")
    if not serves_text(native):
        problem = f"an encoder-decoder model ({architecture}), which does not continue a text by itself"
        raise ModelError(f"model {path}: {problem}: choose a decoder-only model")
    if llama_cpp.llama_model_is_diffusion(native):
        problem = f"a diffusion model ({architecture}), which does not write its text from left to right"
        raise ModelError(f"model {path}: {problem}: choose a decoder-only model")
    _check_vocabulary(path, llama_cpp.llama_model_get_vocab(native))


def serves_text(native: Any) -> bool:
    """Whether texts can be decoded without an encoder."""
    return bool(llama_cpp.llama_model_has_decoder(native) and not llama_cpp.llama_model_has_encoder(native))


def _check_vocabulary(path: str, vocabulary: Any) -> None:
    """Check that there is a token for each byte of texts: llama.cpp writes what has no token of its own byte by byte,
    and ends the process at a byte without one."""
    if llama_cpp.llama_vocab_type(vocabulary) != llama_cpp.LLAMA_VOCAB_TYPE_SPM:
        return
    n_tokens = llama_cpp.llama_vocab_n_tokens(vocabulary)
    texts = {llama_cpp.llama_vocab_get_text(vocabulary, token) for token in range(n_tokens)}
    missing = [byte for byte in UTF8_BYTES if not {b"<0x%02X>" % byte, bytes([byte])} & texts]
    if missing:
        problem = f"its vocabulary has no token for the byte 0x{missing[0]:02X}, and so not for every text"
        raise ModelError(f"model {path}: {problem}: convert it again, with its byte tokens")
