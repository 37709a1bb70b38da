"""Parses Ollama's requests for text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from umaserve.core.errors import Fault, RequestError
from umaserve.core.events import ModelInfo
from umaserve.core.requests import ChatTurn, Generate, Sampling
from umaserve.dialects.ollama.options import logprobs, options, think, unloads
from umaserve.dialects.ollama.turns import images, turns
from umaserve.dialects.openai.turns import chosen_tools, tools
from umaserve.dialects.parameters import (
    MAX_ID_BYTES,
    RequestLimits,
    check_prompt_bytes,
    json_body,
    token_ids,
    with_targets,
)
from umaserve.wire.fields import Fields, string

Model = Callable[[str], ModelInfo | None]
"""The model that is meant by a name; ``None``: it has not been loaded yet."""


@dataclass(frozen=True, slots=True)
class TextRequest:
    """A parsed body. ``request`` is ``None`` if it only loads the model or, with ``unloads``, only unloads it."""

    request: Generate | None
    model: str
    stream: bool
    unloads: bool


def model_name(fields: Fields) -> str:
    """``model``, which may not be absent; raises ``RequestError``."""
    return string(fields.values.get("model"), "model", max_bytes=MAX_ID_BYTES)


def chat_request(body: bytes, limits: RequestLimits, model: Model, new_id: str) -> TextRequest:
    """Parse a body of ``POST /api/chat``; raises ``RequestError``.

    ``tool_choice`` is not in Ollama's reference, which so ignores it, but clients send it, in the forms of OpenAI's.
    """
    fields = json_body(body)
    name = model_name(fields)
    offered, must_call, several = chosen_tools(fields, tools(fields))
    one = Generate(
        new_id, turns(fields, limits), tools=offered, must_call=must_call, parallel_calls=several, model=name
    )
    return _asked(fields, limits, model(name), one)


def generate_request(body: bytes, limits: RequestLimits, model: Model, new_id: str) -> TextRequest:
    """Parse a body of ``POST /api/generate``; raises ``RequestError``."""
    fields = json_body(body)
    name = model_name(fields)
    _refuse(fields, "template", "the model's own chat template is used; for another, set raw and send a whole prompt")
    _refuse(fields, "suffix", "this server fills no gaps in a text")
    if fields.values.get("context") is not None:
        token_ids(fields.values["context"], "context", limits)  # Not used: a chat's messages are its history.
    text = _text(fields, "prompt")
    system = _text(fields, "system")
    attachments = images(fields)
    check_prompt_bytes(len(text.encode()) + len(system.encode()), limits)
    prompt: str | tuple[ChatTurn, ...]
    if fields.boolean("raw", False):
        for key in ("system", "images"):
            _refuse(fields, key, "with raw, the prompt is all that the model gets")
        prompt = text
    elif text or attachments:
        before = (ChatTurn("system", system),) if system else ()
        prompt = (*before, ChatTurn("user", text, attachments=attachments))
    else:
        prompt = ""
    return _asked(fields, limits, model(name), Generate(new_id, prompt, model=name))


def _asked(fields: Fields, limits: RequestLimits, info: ModelInfo | None, request: Generate) -> TextRequest:
    chosen = options(fields, limits, info)
    thinks, kwargs = think(fields, info)
    whole = replace(
        request,
        max_tokens=chosen.max_tokens,
        sampling=_unbound(chosen.sampling) if request.must_call else chosen.sampling,
        stop=chosen.stop,
        logprobs=logprobs(fields),
        enable_thinking=thinks,
        chat_template_kwargs=kwargs,
        splits_thoughts=not isinstance(request.prompt, str),
    )
    asked = with_targets(whole, fields) if request.prompt else None
    return TextRequest(asked, request.model, fields.boolean("stream", True), unloads(fields))


def _unbound(chosen: Sampling) -> Sampling:
    """Sampling for a required call: without ``format``, which is that of answers in words. Raises for another
    grammar."""
    if chosen.grammar is not None and chosen.grammar.field != "format":
        problem = f"expected no required call where {chosen.grammar.field} is given, got both"
        raise RequestError(Fault.BAD_REQUEST, "tool_choice", problem)
    return replace(chosen, grammar=None)


def _text(fields: Fields, key: str) -> str:
    value = fields.values.get(key)
    return "" if value is None else string(value, fields.name(key), empty=True)


def _refuse(fields: Fields, key: str, why: str) -> None:
    if fields.values.get(key) not in (None, "", []):
        raise RequestError(Fault.BAD_REQUEST, fields.name(key), f"expected to be absent: {why}")
