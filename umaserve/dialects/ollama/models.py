"""The loaded model in the form of Ollama's API, and the requests to manage models, which belong to the operator."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import orjson

from umaserve.dialects.http import Facts
from umaserve.dialects.parameters import MAX_ID_BYTES, json_body
from umaserve.errors import Fault, RequestError
from umaserve.outputs import ModelInfo
from umaserve.wire.fields import Fields, string

LATEST = ":latest"
"""The tag of a name without one."""
API_VERSION = "0.12.6"
"""The version of Ollama whose API this is: clients compare it with the one in which what they use came up."""
NEVER = "9999-12-31T23:59:59Z"
"""When the model will be unloaded."""
_FAULT = "the operator of this server decides which model it has, with --model"


def full_name(info: ModelInfo) -> str:
    """The model's name with its tag."""
    return _with_tag(info.name)


def _with_tag(name: str) -> str:
    return name if ":" in name else name + LATEST


def version() -> bytes:
    return orjson.dumps({"version": API_VERSION})


def tags(info: ModelInfo, facts: Facts) -> bytes:
    """The body of ``GET /api/tags``."""
    return orjson.dumps({"models": [_listed(info) | {"modified_at": _since(facts)}]})


def tags_of(names: Sequence[str], started_at: int) -> bytes:
    """The body of ``GET /api/tags`` where no more than the models' names is known."""
    return orjson.dumps({"models": [_named(name) | {"modified_at": _at(started_at)} for name in names]})


def running_of(names: Sequence[str]) -> bytes:
    """Likewise, of ``GET /api/ps``."""
    return orjson.dumps({"models": [_named(name) | {"expires_at": NEVER, "size_vram": 0} for name in names]})


def running(info: ModelInfo, _facts: Facts) -> bytes:
    """The body of ``GET /api/ps``."""
    memory = {"expires_at": NEVER, "size_vram": info.gpu_bytes, "context_length": info.context_tokens}
    return orjson.dumps({"models": [_listed(info) | memory]})


def show(body: bytes, facts: Facts) -> bytes:
    """The answer to a body of ``POST /api/show``; raises ``RequestError``, also for another model's name."""
    fields = json_body(body)
    name = named(fields)
    fields.boolean("verbose", False)
    info = facts.loaded()
    if not _is_loaded(name, info):
        raise _missing(name, info)
    return orjson.dumps(
        {
            "modelfile": f"FROM {full_name(info)}\n",
            "parameters": "",
            "template": info.chat_template or "",
            "details": _details(info),
            "model_info": {
                "general.architecture": info.architecture,
                "general.basename": info.name,
                "general.parameter_count": info.parameters,
                # What a request may use, since clients plan by it; the model may have been trained with more.
                f"{info.architecture}.context_length": info.context_tokens,
                f"{info.architecture}.embedding_length": info.embedding_length,
                f"{info.architecture}.vocab_size": info.vocabulary,
            },
            "capabilities": capabilities(info),
            "modified_at": _since(facts),
        }
    )


def capabilities(info: ModelInfo) -> list[str]:
    """What the model can do here, by Ollama's names."""
    able = {
        "completion": True,
        "tools": info.chat_template is not None,
        "vision": info.sees,
        "thinking": info.thinks,
    }
    return [name for name, can in able.items() if can]


def pull(body: bytes, facts: Facts) -> tuple[bool, bytes]:
    """The answer to a body of ``POST /api/pull``, and whether it is a stream; raises ``RequestError`` for all models
    but the loaded one."""
    fields = json_body(body)
    name = named(fields)
    fields.boolean("insecure", False)
    stream = fields.boolean("stream", True)
    info = facts.loaded()
    if not _is_loaded(name, info):
        raise _missing(name, info)
    return stream, orjson.dumps({"status": "success"})


def refuse() -> tuple[int, str, bytes]:
    """Whatever asks for other models is refused."""
    raise RequestError(Fault.BAD_REQUEST, "request", f"models can't be made, copied or deleted here: {_FAULT}")


def named(fields: Fields) -> str:
    """``model``, which older clients call ``name``."""
    name = fields.string("name", max_bytes=MAX_ID_BYTES)
    model = fields.values.get("model")
    return string(name if model is None else model, "model", max_bytes=MAX_ID_BYTES)


def _is_loaded(name: str, info: ModelInfo) -> bool:
    return name.removesuffix(LATEST) == info.name.removesuffix(LATEST)


def _missing(name: str, info: ModelInfo) -> RequestError:
    return RequestError(Fault.NOT_FOUND, "model", f"expected {full_name(info)}, got {name[:64]}: {_FAULT}")


def _listed(info: ModelInfo) -> dict[str, Any]:
    name = full_name(info)
    # Of what is known of the model: the file may be of many gigabytes.
    digest = hashlib.sha256(repr(info).encode()).hexdigest()
    return {"name": name, "model": name, "size": info.size_bytes, "digest": digest, "details": _details(info)}


def _named(model: str) -> dict[str, Any]:
    """A model of which only the name is known."""
    name = _with_tag(model)
    unknown = {"parent_model": "", "format": "", "family": "", "parameter_size": "", "quantization_level": ""}
    digest = hashlib.sha256(name.encode()).hexdigest()
    return {"name": name, "model": name, "size": 0, "digest": digest, "details": unknown | {"families": []}}


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
    """When the daemon started: when the file was made is not for clients."""
    return _at(facts.started_at)


def _at(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
