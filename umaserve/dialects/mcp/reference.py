"""Operation of the Model Context Protocol."""

from __future__ import annotations

from umaserve.dialects.examples import COLOURS
from umaserve.dialects.mcp.schemas import McpError, McpMessage, McpProgress, McpResult
from umaserve.dialects.reference import Errors, Operation, Parameter, Reference, Reply, takes
from umaserve.wire.declared import any_of

ERRORS = Errors("Mcp", McpError)

_CLIENT = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "example", "version": "1"}}
_CALL = {"name": "ask", "arguments": {"prompt": COLOURS, "max_tokens": 16}}
_PROGRESS = {"_meta": {"progressToken": "t"}}
_REPLY = Reply(
    "The response.",
    any_of(McpResult, McpError),
    (any_of(McpProgress, McpResult, McpError), "The call's progress, and the response as the last event."),
)

OPERATIONS = {
    ("mcp", "POST /mcp"): Operation(
        "Send a message of the Model Context Protocol. The streamable HTTP transport of the revisions 2026-07-28,"
        " 2025-11-25 and 2025-06-18, without sessions. A body has one message. The tools are ask, embed, rerank,"
        " transcribe, speak and status; tools/list has those that the server's models can serve, with their arguments."
        " What a tool refuses is a result with isError, and the status 200. A call of a tool that has a model write is"
        " answered with a stream of events where it has a progressToken and its Accept names text/event-stream; its"
        " result has the tokens of prompt and answer in _meta.usage. A closed connection ends it.",
        _REPLY,
        takes(
            McpMessage,
            handshake={"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": _CLIENT},
            list={"jsonrpc": "2.0", "id": 2, "method": "tools/list"},
            call={"jsonrpc": "2.0", "id": "three", "method": "tools/call", "params": _CALL},
            progress={"jsonrpc": "2.0", "id": 4, "method": "tools/call", "params": {**_CALL, **_PROGRESS}},
        ),
        (Parameter("MCP-Protocol-Version", "header", about="The revision; absent: one from before 2026-07-28."),),
        {"202": Reply("A notification, or a response, was taken.")},
    )
}

REFERENCE = Reference("MCP", "A server of the Model Context Protocol: tools for other agents.", ERRORS, OPERATIONS)
