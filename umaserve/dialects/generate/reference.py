"""Operations of the protocol for streams that can be steered."""

from __future__ import annotations

from umaserve.dialects.generate.schemas import ClientMessage, ErrorMessage, Generated, GenerateRequest, ServerMessage
from umaserve.dialects.reference import (
    CACHE_MISS,
    HANDSHAKE,
    MAX_TOKENS,
    Body,
    Errors,
    Operation,
    Reference,
    Reply,
    upgraded,
)

ERRORS = Errors(
    "Generate",
    ErrorMessage,
    "As on the other paths, as an error message.",
    "As on the other paths, as an error message.",
)

REFERENCE = Reference(
    "umaserve",
    "",
    ERRORS,
    {
        ("POST", "/v1/generate"): Operation(
            "generate",
            "Continue a text or a conversation",
            body=Body(
                GenerateRequest,
                {
                    "plain": {
                        "prompt": "Write a short story about a robot learning to paint.",
                        "max_tokens": 16,
                        "temperature": 0.7,
                        "stream": False,
                    },
                    "nested": {
                        "prompt": [{"role": "user", "content": "Hello!"}],
                        "parameters": {"max_tokens": 16, "repetition_penalty": 1.1, "cache_prompt": False},
                        "options": {"include_timing": True},
                    },
                    "streamed": {
                        "prompt": "Once upon a time",
                        "max_tokens": 8,
                        "stream": True,
                        "options": {
                            "echo_prompt": True,
                            "include_token_ids": True,
                            "include_logprobs": 2,
                            "include_timing": True,
                        },
                        "priority": "background",
                        "slo": {"target_ttft_ms": 500},
                    },
                },
            ),
            replies={
                "200": Reply(
                    'The whole answer, or with `"stream": true` its events.',
                    json=Generated,
                    events=(
                        ServerMessage,
                        (
                            "Each event is `data:` and one message (x-event), as on the WebSocket: an init, the "
                            "tokens, and at the end a completion or an error. Nothing follows."
                        ),
                    ),
                    headers={
                        "x-umaserve-max-tokens": MAX_TOKENS,
                        "x-umaserve-cache-miss": CACHE_MISS,
                    },
                )
            },
        ),
        ("GET", "/generate"): Operation(
            "converse",
            "WebSocket: a stream that can be controlled while it runs",
            (
                "Text messages, each one JSON object. The client sends a config first (x-client-message), "
                "and when its generation has ended it may send another; meanwhile control and feedback. "
                "After a lost connection, a resume message on a new one continues the stream where it was"
                " interrupted; this also works after close code 1012, with which a server that restarts hands the"
                " generation over to its successor. "
                "The server's messages are in x-server-message. After large media, which are not kept, regenerate is"
                " refused.\n\nWhere keys are needed and the client can't set Authorization, it offers "
                "the subprotocols `umaserve` and `bearer.KEY`, or its first message has the key in `auth`."
            ),
            parameters=HANDSHAKE,
            replies=upgraded(ErrorMessage, also={"x-client-message": ClientMessage, "x-server-message": ServerMessage}),
        ),
    },
)
