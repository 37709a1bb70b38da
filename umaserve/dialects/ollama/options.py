"""Reads what Ollama's requests for text share: ``options``, ``format``, ``think`` and ``logprobs``."""

from __future__ import annotations

from dataclasses import replace

from umaserve.core.errors import Fault, RequestError
from umaserve.core.events import ModelInfo
from umaserve.core.requests import Generate
from umaserve.dialects.grammars import only_one
from umaserve.dialects.ollama.models import capabilities
from umaserve.dialects.ollama.schemas import DEFAULTS, OllamaLoadOptions, OllamaOptions, OllamaTextRequest
from umaserve.dialects.parameters import RequestLimits, sampling, within_cap


def with_options(
    request: Generate, given: OllamaTextRequest, limits: RequestLimits, info: ModelInfo | None
) -> Generate:
    """``request`` with what ``given`` has for it; raises ``RequestError``. ``info``: the model, once it is loaded."""
    options = given.options or OllamaOptions({}, "options.")
    check_load_options(options)
    chosen = sampling(options, DEFAULTS)
    grammar = only_one(one for one in (chosen.grammar, given.format) if one is not None)
    if request.must_call and grammar is not None:
        if grammar.field != "format":
            problem = f"expected no required call where {grammar.field} is given, got both"
            raise RequestError(Fault.BAD_REQUEST, "tool_choice", problem)
        grammar = None  # The format is that of answers in words.
    thinks, kwargs = _think(given, info)
    return replace(
        request,
        max_tokens=within_cap(options.num_predict, limits),
        sampling=replace(chosen, grammar=grammar),
        stop=options.stop or (),
        logprobs=_logprobs(given),
        enable_thinking=thinks,
        chat_template_kwargs=kwargs,
    )


def check_load_options(given: OllamaLoadOptions) -> None:
    """Check the options that load a model in Ollama. Here they change nothing."""
    for name in OllamaLoadOptions.declared:
        getattr(given, name)


def _think(given: OllamaTextRequest, info: ModelInfo | None) -> tuple[bool | None, dict[str, object]]:
    """Whether the model is to think (``None``: as it is made), and the chat template's variables for how much."""
    wanted = given.think
    if wanted and info is not None and "thinking" not in capabilities(info):
        raise RequestError(Fault.BAD_REQUEST, given.name("think"), "expected false, since this model does not think")
    return (True, {"reasoning_effort": wanted}) if isinstance(wanted, str) else (wanted, {})


def _logprobs(given: OllamaTextRequest) -> int | None:
    """The number of alternatives to report with each token; ``None``: no log-probabilities."""
    top = given.top_logprobs
    if top and not given.logprobs:
        raise RequestError(
            Fault.BAD_REQUEST, given.name("top_logprobs"), "expected to be absent where logprobs isn't true"
        )
    return (top or 0) if given.logprobs else None
