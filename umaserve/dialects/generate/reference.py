"""Operations of the protocol for streams that can be steered."""

from __future__ import annotations

from umaserve.dialects.examples import said
from umaserve.dialects.generate import schemas
from umaserve.dialects.reference import Errors, Operation, Reference, streamed, takes, websocket

_AS_ELSEWHERE = "As on the other paths, as an error message."
ERRORS = Errors("Generate", schemas.ErrorMessage, _AS_ELSEWHERE, _AS_ELSEWHERE)

_STORY = {"prompt": "Write a short story about a robot learning to paint.", "max_tokens": 16}
_MORE = {"echo_prompt": True, "include_token_ids": True, "include_logprobs": 2, "include_timing": True}
_STREAM = {"stream": True, "options": _MORE}

OPERATIONS = {
    ("generate", "POST /v1/generate"): Operation(
        "Continue a text or a conversation",
        streamed(schemas.Generated, schemas.ServerMessage, "An init, the tokens, and a completion or an error."),
        takes(
            schemas.GenerateRequest,
            plain={**_STORY, "temperature": 0.7, "stream": False},
            nested={"prompt": said("Hello!"), "parameters": {"max_tokens": 16}, "options": {"include_timing": True}},
            streamed={**_STORY, **_STREAM, "priority": "background", "slo": {"target_ttft_ms": 500}},
        ),
    ),
    ("converse", "GET /generate"): websocket(
        "WebSocket: a stream that can be controlled while it runs. The client sends a config first, and when its"
        " generation has ended it may send another; meanwhile control and feedback. After a lost connection, a resume"
        " message on a new one continues the stream where it was interrupted; this also works after close code 1012,"
        " with which a server that restarts hands the generation over to its successor. After large media, which are"
        " not kept, regenerate is refused.\n\nWhere keys are needed and the client can't set Authorization, it offers"
        " the subprotocols `umaserve` and `bearer.KEY`, or its first message has the key in `auth`.",
        (schemas.ClientMessage, schemas.ServerMessage),
        schemas.ErrorMessage,
    ),
}

REFERENCE = Reference("umaserve", "", ERRORS, OPERATIONS)
