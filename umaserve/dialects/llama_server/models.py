"""llama-server's ``/models/load`` and ``/models/unload``."""

from __future__ import annotations

from umaserve.dialects.llama_server.schemas import ModelToMove
from umaserve.dialects.parameters import json_body

SUCCESS = b'{"success":true}'
"""Body of the answer: the load or unload has begun, and ``GET /models`` says how far it is."""


def model_to_move(body: bytes) -> str:
    """The name of the model to be loaded or unloaded; raises ``RequestError``."""
    return ModelToMove.view(json_body(body)).model
