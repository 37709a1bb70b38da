"""Operation of the Model Context Protocol."""

from __future__ import annotations

from umaserve.dialects.mcp.schemas import McpError, McpMessage, McpProgress, McpResult
from umaserve.dialects.reference import Body, Errors, Operation, Parameter, Reference, Reply
from umaserve.wire.declared import any_of

ERRORS = Errors("Mcp", McpError)

_EXAMPLES = {
    "handshake": {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "example", "version": "1"},
        },
    },
    "list": {"jsonrpc": "2.0", "id": 2, "method": "tools/list"},
    "call": {
        "jsonrpc": "2.0",
        "id": "three",
        "method": "tools/call",
        "params": {"name": "ask", "arguments": {"prompt": "Name three colours.", "max_tokens": 16}},
    },
    "progress": {
        "jsonrpc": "2.0",
        "id": 4,
        "method": "tools/call",
        "params": {
            "name": "ask",
            "arguments": {"prompt": "Hello!", "max_tokens": 16},
            "_meta": {"progressToken": "t"},
        },
    },
}

REFERENCE = Reference(
    "MCP",
    "The Model Context Protocol, of which this is a server: tools for other agents.",
    ERRORS,
    {
        ("POST", "/mcp"): Operation(
            "mcp",
            "Send a message of the Model Context Protocol",
            "The streamable HTTP transport of the revisions 2026-07-28, 2025-11-25 and 2025-06-18, without sessions."
            " A body has one message. The tools are ask, embed, rerank, transcribe, speak and status; tools/list has"
            " those that the server's models can serve, with their arguments. What a tool refuses is a result with"
            " isError, and the status 200. A call of a tool that has a model write is answered with a stream of events"
            " where it has a progressToken and its Accept names text/event-stream; its result has the tokens of prompt"
            " and answer in _meta.usage. A closed connection ends it.",
            parameters=(
                Parameter("MCP-Protocol-Version", "header", about="The revision; absent: one from before 2026-07-28."),
            ),
            body=Body(McpMessage, _EXAMPLES),
            replies={
                "200": Reply(
                    "The response.",
                    json=any_of(McpResult, McpError),
                    events=(
                        any_of(McpProgress, McpResult, McpError),
                        "The notifications about the call's progress, and the response as the last event.",
                    ),
                ),
                "202": Reply("A notification, or a response, was taken."),
            },
        ),
    },
)
