"""llama-server's ``/models``: lists the models, and has them loaded, unloaded, downloaded and deleted."""

from __future__ import annotations

import re
from typing import Any

from umaserve.core.events import ModelDownload
from umaserve.dialects.facts import Facts
from umaserve.dialects.llama_server.schemas import ModelToDownload, ModelToMove
from umaserve.dialects.openai.models import models
from umaserve.dialects.parameters import json_body
from umaserve.wire.fields import out_of_range
from umaserve.wire.http_head import Request

SUCCESS = b'{"success":true}'
"""Body of the answer: what was asked for has begun, and ``GET /models`` says how far it is."""
_OF_THE_HUB = re.compile(
    r"(?:(?:hf|huggingface)\.co/)?[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}(?::[\w.-]{1,96})?", re.ASCII
)


def model_to_move(body: bytes) -> str:
    """The name of the model to be loaded or unloaded; raises ``RequestError``."""
    return ModelToMove.view(json_body(body)).model


def model_to_download(body: bytes) -> str:
    """The name by which the hub has the model to be downloaded; raises ``RequestError``."""
    name = ModelToDownload.view(json_body(body)).model
    if not _OF_THE_HUB.fullmatch(name):
        expected = "ORG/REPOSITORY or ORG/REPOSITORY:QUANTIZATION of the Hugging Face Hub"
        raise out_of_range("model", expected, f'"{name[:64]}"')
    return name


def model_to_delete(request: Request) -> str:
    """The name of the model to be deleted, from the query or the body; raises ``RequestError``."""
    if "model" in request.query or not request.body:
        return ModelToMove(request.query).model
    return model_to_move(request.body)


def listing(facts: Facts, request: Request) -> bytes:
    """The body of ``GET /models``: as at ``/v1/models``, with the downloads that have not ended well."""
    rows = [_row(one, facts.started_at) for one in facts.downloads() if _is_listed(one)]
    return models(facts.models(), facts.started_at, facts.limits, request.query, rows)


def progress(one: ModelDownload) -> dict[str, dict[str, int]]:
    """How much of each file is there, by its URL."""
    return {address: {"done": done, "total": total} for address, (done, total) in one.files.items()}


def _is_listed(one: ModelDownload) -> bool:
    return not one.ended or bool(one.problem and not one.deleted)


def _row(one: ModelDownload, created: int) -> dict[str, Any]:
    status: dict[str, Any] = {"value": "downloading", "progress": progress(one)}
    if one.ended:
        status = {"value": "unloaded", "failed": True, "exit_code": 1, "error": one.problem}
    return {
        "id": one.name,
        "aliases": [one.name],
        "tags": [],
        "object": "model",
        "created": created,
        "owned_by": "umaserve",
        "size": sum(total for _done, total in one.files.values()),
        "needed": 0,
        "status": status,
    }
