"""llama-server's ``/models/load`` and ``/models/unload``."""

from __future__ import annotations

from umaserve.dialects.parameters import MAX_ID_BYTES, json_body
from umaserve.wire.fields import string

SUCCESS = b'{"success":true}'
"""Body of the answer: the load or unload has begun, and ``GET /models`` says how far it is."""


def model_to_move(body: bytes) -> str:
    """The name of the model to be loaded or unloaded; raises ``RequestError``."""
    return string(json_body(body).values.get("model"), "model", max_bytes=MAX_ID_BYTES)
