"""Parses Ollama's requests for text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from umaserve.core.errors import Fault, RequestError
from umaserve.core.events import ModelInfo
from umaserve.core.requests import ChatTurn, Generate
from umaserve.dialects.ollama.options import with_options
from umaserve.dialects.ollama.schemas import OllamaChatRequest, OllamaGenerateRequest, OllamaTextRequest
from umaserve.dialects.ollama.turns import before_text, turns
from umaserve.dialects.openai.turns import chosen_tools, tools
from umaserve.dialects.parameters import RequestLimits, check_prompt_bytes, json_body, token_ids, with_targets
from umaserve.wire.fields import Fields

Model = Callable[[str], ModelInfo | None]
"""The model that is meant by a name; ``None``: it has not been loaded yet."""


@dataclass(frozen=True, slots=True)
class TextRequest:
    """A parsed body. ``request`` is ``None`` if it only loads the model or, with ``unloads``, only unloads it."""

    request: Generate | None
    model: str
    stream: bool
    unloads: bool


def chat_request(body: bytes, limits: RequestLimits, model: Model, new_id: str) -> TextRequest:
    """Parse a body of ``POST /api/chat``; raises ``RequestError``.

    ``tool_choice`` is not in Ollama's reference, which so ignores it, but clients send it, in the forms of OpenAI's.
    """
    given = OllamaChatRequest.view(json_body(body))
    name = given.model
    offered, must_call, several = chosen_tools(given, tools(given.tools or (), given.name("tools")))
    one = Generate(new_id, turns(given, limits), tools=offered, must_call=must_call, parallel_calls=several, model=name)
    return _asked(given, limits, model(name), one)


def generate_request(body: bytes, limits: RequestLimits, model: Model, new_id: str) -> TextRequest:
    """Parse a body of ``POST /api/generate``; raises ``RequestError``."""
    given = OllamaGenerateRequest.view(json_body(body))
    name = given.model
    _refuse(given, "template", "the model's own chat template is used; for another, set raw and send a whole prompt")
    _refuse(given, "suffix", "this server fills no gaps in a text")
    info = model(name)
    text, system, attachments = given.prompt or "", given.system or "", before_text(given.images)
    context = _context(given, limits, info)
    check_prompt_bytes(len(text.encode()) + len(system.encode()), limits)
    prompt: str | tuple[ChatTurn, ...]
    if given.raw:
        for key in ("system", "images", "context"):
            _refuse(given, key, "with raw, the model gets nothing but the prompt")
        prompt = text
    elif text or attachments:
        before = (ChatTurn("system", system),) if system else ()
        prompt = (*before, ChatTurn("user", text, attachments=attachments))
    else:
        prompt = ""
    wants_tokens = not (given.raw or attachments)
    asked = Generate(new_id, prompt, context=context, wants_tokens=wants_tokens, model=name)
    return _asked(given, limits, info, asked)


def _context(given: OllamaGenerateRequest, limits: RequestLimits, info: ModelInfo | None) -> tuple[int, ...]:
    """The tokens of an earlier conversation."""
    value = given.values.get("context")
    if value is None:
        return ()
    if given.images:
        _refuse(given, "context", "an earlier conversation of tokens can't be followed by images")
    if info is not None and isinstance(value, list) and len(value) >= info.context_tokens:
        problem = f"expected fewer than {info.context_tokens} tokens, this daemon's context, got {len(value)}"
        raise RequestError(Fault.CONTEXT_EXCEEDED, given.name("context"), problem)
    return token_ids(value, given.name("context"), limits)


def _asked(given: OllamaTextRequest, limits: RequestLimits, info: ModelInfo | None, request: Generate) -> TextRequest:
    whole = replace(with_options(request, given, limits, info), splits_thoughts=not isinstance(request.prompt, str))
    asked = with_targets(whole, given) if request.prompt else None
    return TextRequest(asked, request.model, given.stream, unloads=given.keep_alive is False)


def _refuse(given: Fields, key: str, why: str) -> None:
    if given.values.get(key) not in (None, "", []):
        raise RequestError(Fault.BAD_REQUEST, given.name(key), f"expected to be absent: {why}")
