"""llama-server's ``generation_settings``: what an answer was made with, and what is off here."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from umaserve.core.requests import Generate
from umaserve.dialects.llama_server.requests import NativeRequest
from umaserve.dialects.llama_server.schemas import RANDOM_SEED

_OFF: dict[str, Any] = {
    "n_keep": 0,
    "n_discard": 0,
    "min_keep": 0,
    "grammar_lazy": False,
    "grammar_triggers": [],
    "preserved_tokens": [],
    "chat_format": "Content-only",
    "reasoning_format": "none",
    "reasoning_in_content": False,
    "generation_prompt": "",
    "speculative.types": "none",
    "backend_sampling": False,
}
"""Options of llama-server that this server lacks, each with the value that means "off"."""
_AS_HERE = (
    "temperature",
    "dynatemp_range",
    "dynatemp_exponent",
    "top_k",
    "top_p",
    "min_p",
    "top_n_sigma",
    "xtc_probability",
    "xtc_threshold",
    "typical_p",
    "repeat_penalty",
    "presence_penalty",
    "frequency_penalty",
    "dry_multiplier",
    "dry_base",
    "dry_allowed_length",
    "dry_penalty_last_n",
    "dry_sequence_breakers",
    "mirostat",
    "mirostat_tau",
    "mirostat_eta",
    "adaptive_target",
    "adaptive_decay",
    "ignore_eos",
    "samplers",
)
"""Settings that are called as here."""


def generation_settings(request: Generate, asked: NativeRequest, end_tokens: Iterable[int] = ()) -> dict[str, Any]:
    """The settings of one answer. ``end_tokens``: the model's, on which ``ignore_eos`` is a bias without end."""
    sampling = request.sampling
    biases: dict[int, float | None] = dict(sampling.logit_bias)
    if sampling.ignore_eos:
        biases |= dict.fromkeys(end_tokens)
    return {
        **_OFF,
        "seed": RANDOM_SEED if sampling.seed is None else sampling.seed,
        **{name: getattr(sampling, name) for name in _AS_HERE},
        "repeat_last_n": sampling.penalty_window,
        "stop": list(request.stop),
        "max_tokens": asked.n_predict,
        "n_predict": asked.n_predict,
        "stream": asked.stream,
        "logit_bias": [{"bias": bias, "token": token} for token, bias in biases.items()],
        "n_probs": request.logprobs or 0,
        "post_sampling_probs": sampling.scores_after,
        "grammar": "" if sampling.grammar is None else sampling.grammar.text,
        "timings_per_token": asked.timings_per_token,
        "lora": [{"name": name, "scale": scale} for name, scale in request.lora or ()],
    }
