"""Models in the form of Ollama's API, and the requests to manage models, which belong to the operator."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import orjson

from umaserve.core.errors import Fault, RequestError
from umaserve.core.events import ListedModel, ModelInfo, ModelState
from umaserve.dialects.facts import Facts
from umaserve.dialects.listing import named
from umaserve.dialects.ollama.schemas import NAME, OllamaModelName, OllamaPullRequest, OllamaShowRequest
from umaserve.dialects.parameters import json_body

LATEST = ":latest"
"""The tag of a name without one."""
_UNKNOWN: dict[str, Any] = {
    "parent_model": "",
    "format": "",
    "family": "",
    "families": [],
    "parameter_size": "",
    "quantization_level": "",
}
"""The details of a model that was never loaded, and whose file tells none."""
API_VERSION = "0.12.6"
"""The version of Ollama whose API this is: clients compare it with the one in which what they use came up."""
NEVER = "9999-12-31T23:59:59Z"
"""Time when the model will be unloaded."""


def full_name(info: ModelInfo) -> str:
    """The model's name with its tag."""
    return _with_tag(info.name)


def _with_tag(name: str) -> str:
    return name if ":" in name else name + LATEST


def version() -> bytes:
    return orjson.dumps({"version": API_VERSION})


def tags(facts: Facts) -> bytes:
    """The body of ``GET /api/tags``."""
    return orjson.dumps({"models": [_listed(model) | {"modified_at": _since(facts)} for model in facts.models()]})


def tags_of(contexts: Mapping[str, int], started_at: int) -> bytes:
    """The body of ``GET /api/tags`` where no more is known of models than their names and ``contexts``, 0 for an
    unknown one."""
    told = [_named(name) | _context(tokens) | {"modified_at": _at(started_at)} for name, tokens in contexts.items()]
    return orjson.dumps({"models": told})


def running_of(contexts: Mapping[str, int]) -> bytes:
    """Likewise, of ``GET /api/ps``."""
    always = {"expires_at": NEVER, "size_vram": 0}
    return orjson.dumps({"models": [_named(name) | _context(tokens) | always for name, tokens in contexts.items()]})


def running(facts: Facts) -> bytes:
    """The body of ``GET /api/ps``: those that are loaded."""
    loaded = [
        _listed(model) | {"expires_at": NEVER, "size_vram": model.info.gpu_bytes}
        for model in facts.models()
        if model.state is ModelState.LOADED and model.info is not None
    ]
    return orjson.dumps({"models": loaded})


def show(body: bytes, facts: Facts) -> bytes:
    """The answer to a body of ``POST /api/show``; raises ``RequestError``, also for an unknown name. Of a model that
    was never loaded little is known."""
    given = OllamaShowRequest.view(json_body(body))
    model = named(facts, _name(given))
    _ = given.verbose  # Checked only.
    info = model.info
    return orjson.dumps(
        {
            "modelfile": f"FROM {_with_tag(model.name)}\n",
            "parameters": "" if info is None else f"num_ctx {info.context_tokens}",
            "template": "" if info is None else info.chat_template or "",
            **({"license": info.license} if info is not None and info.license else {}),
            "details": _file_details(model) if info is None else _details(info),
            "model_info": _file_properties(model) if info is None else _properties(info),
            "capabilities": ["completion"] if info is None else capabilities(info),
            "modified_at": _since(facts),
        }
    )


def _file_properties(model: ListedModel) -> dict[str, Any]:
    """The properties of a model that was never loaded, as far as its file and its settings tell them."""
    told: dict[str, Any] = {"general.basename": model.name}
    if model.architecture:
        told["general.architecture"] = model.architecture
        if model.context_tokens:
            told[f"{model.architecture}.context_length"] = model.context_tokens
    return told


def _properties(info: ModelInfo) -> dict[str, Any]:
    return {
        "general.architecture": info.architecture,
        "general.basename": info.name,
        "general.parameter_count": info.parameters,
        # What a request may use, since clients plan by it; the model may have been trained with more.
        f"{info.architecture}.context_length": info.context_tokens,
        f"{info.architecture}.embedding_length": info.embedding_length,
        f"{info.architecture}.vocab_size": info.vocabulary,
    }


def capabilities(info: ModelInfo) -> list[str]:
    """Capabilities of the model here, by Ollama's names."""
    able = {
        "completion": True,
        "tools": info.chat_template is not None,
        "vision": info.sees,
        "thinking": info.thinks,
    }
    return [name for name, can in able.items() if can]


def pull(body: bytes, facts: Facts) -> tuple[bool, bytes]:
    """The answer to a body of ``POST /api/pull``, and whether it is a stream; raises ``RequestError`` for an
    unknown name."""
    given = OllamaPullRequest.view(json_body(body))
    _ = given.insecure  # Checked only.
    named(facts, _name(given))
    return given.stream, orjson.dumps({"status": "success"})


def refuse() -> tuple[int, str, bytes]:
    """Whatever asks for other models is refused."""
    problem = "models can't be made, copied or deleted here: the operator of this server decides which models it has"
    raise RequestError(Fault.BAD_REQUEST, "request", problem)


def _name(given: OllamaModelName) -> str:
    """``model``, which older clients call ``name``."""
    name = given.name_
    return given.model or name or NAME.read(given.model, "model")


def _listed(model: ListedModel) -> dict[str, Any]:
    context = _context(model.context_tokens)
    if model.info is None:
        return _named(model.name, model.size_bytes) | {"details": _file_details(model)} | context
    return _named(model.name, model.info.size_bytes) | {"details": _details(model.info)} | context


def _named(model: str, size: int = 0) -> dict[str, Any]:
    """A model of which no more is known."""
    name = _with_tag(model)
    # Not of the file, which may be of many gigabytes, nor of what is known only once it is loaded.
    digest = hashlib.sha256(name.encode()).hexdigest()
    return {"name": name, "model": name, "size": size, "digest": digest, "details": _UNKNOWN}


def _context(tokens: int) -> dict[str, int]:
    return {"context_length": tokens} if tokens else {}


def _file_details(model: ListedModel) -> dict[str, Any]:
    name = model.architecture
    return _UNKNOWN | {"format": "gguf", "family": name, "families": [name]} if name else _UNKNOWN


def _details(info: ModelInfo) -> dict[str, Any]:
    return {
        "parent_model": "",
        "format": "gguf",
        "family": info.architecture,
        "families": [info.architecture],
        "parameter_size": _rounded(info.parameters),
        "quantization_level": info.quantization,
    }


def _rounded(number: int) -> str:
    for unit, name, digits in ((10**9, "B", 1), (10**6, "M", 2), (10**3, "K", 2)):
        if number >= unit:
            return f"{number / unit:.{digits}f}{name}"
    return str(number)


def _since(facts: Facts) -> str:
    """Time when the daemon started: when the file was made is not for clients."""
    return _at(facts.started_at)


def _at(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
