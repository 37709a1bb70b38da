"""llama-server's ``generation_settings``: what an answer was made with, and what is off here."""

from __future__ import annotations

from typing import Any

from umaserve.core.requests import Generate
from umaserve.dialects.llama_server.requests import NativeRequest
from umaserve.dialects.llama_server.schemas import RANDOM_SEED

_OFF: dict[str, Any] = {
    "dynatemp_range": 0.0,
    "dynatemp_exponent": 1.0,
    "top_n_sigma": -1.0,
    "xtc_probability": 0.0,
    "xtc_threshold": 0.1,
    "typical_p": 1.0,
    "dry_multiplier": 0.0,
    "dry_base": 1.75,
    "dry_allowed_length": 2,
    "dry_penalty_last_n": 64,
    "dry_sequence_breakers": [],
    "mirostat": 0,
    "mirostat_tau": 5.0,
    "mirostat_eta": 0.1,
    "adaptive_target": -1.0,
    "adaptive_decay": 0.9,
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
"""Samplers and options of llama-server that this server lacks, each with the value that means "off"."""


def generation_settings(request: Generate, asked: NativeRequest) -> dict[str, Any]:
    """The settings of one answer."""
    sampling = request.sampling
    return {
        **_OFF,
        "seed": RANDOM_SEED if sampling.seed is None else sampling.seed,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "repeat_last_n": sampling.penalty_window,
        "repeat_penalty": sampling.repeat_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "stop": list(request.stop),
        "max_tokens": asked.n_predict,
        "n_predict": asked.n_predict,
        "ignore_eos": sampling.ignore_eos,
        "stream": asked.stream,
        "logit_bias": [{"bias": bias, "token": token} for token, bias in sampling.logit_bias],
        "n_probs": request.logprobs or 0,
        "post_sampling_probs": sampling.scores_after,
        "grammar": "" if sampling.grammar is None else sampling.grammar.text,
        "samplers": list(asked.samplers),
        "timings_per_token": asked.timings_per_token,
        "lora": [{"name": name, "scale": scale} for name, scale in request.lora or ()],
    }
