"""Operations of OpenAI's Realtime API."""

from __future__ import annotations

from umaserve.dialects.openai.reference import ERRORS
from umaserve.dialects.realtime import schemas
from umaserve.dialects.reference import Operation, Parameter, Reference, Reply, takes, websocket

HANDSHAKE = (
    Parameter("model", "query", about="The session's model; without it, the default model."),
    Parameter("Sec-WebSocket-Protocol", "header", about="`realtime`, and for a key `openai-insecure-api-key.KEY`."),
)
_SESSION = {"type": "realtime", "instructions": "Be brief.", "output_modalities": ["text"]}
_MINUTE = {"anchor": "created_at", "seconds": 60}

OPERATIONS = {
    ("realtime", "GET /v1/realtime"): websocket(
        "WebSocket: a conversation in real time. As in the general availability of OpenAI's Realtime API. A"
        " conversation is limited to 1,024 items and 16 MiB, and an event to 4 MiB. A prompt that is too long fails its"
        " response; nothing is truncated.\n\nWhere keys are needed, a browser offers the subprotocols `realtime` and"
        " `openai-insecure-api-key.KEY`, where KEY may be a client secret.",
        (schemas.RealtimeClientEvent, schemas.RealtimeServerEvent),
        ERRORS.error,
        parameters=HANDSHAKE,
    ),
    ("createClientSecret", "POST /v1/realtime/client_secrets"): Operation(
        "Make a short-lived key for a browser. The key opens sessions at /v1/realtime with the rights of the key that"
        " made it, for as long as that is valid too. It is kept in memory. Each key, or each address without one, has"
        " at most 32; the oldest one ends first.",
        Reply("The secret, and the settings of its sessions.", schemas.ClientSecret),
        takes(schemas.ClientSecretRequest, plain={}, minute={"expires_after": _MINUTE, "session": _SESSION}),
    ),
}

REFERENCE = Reference("OpenAI", "", ERRORS, OPERATIONS)
