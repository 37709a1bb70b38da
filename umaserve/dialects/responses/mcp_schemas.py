"""Schemas of tools that the daemon calls itself, in the Responses API of OpenAI: MCP servers, their items, approval."""

from __future__ import annotations

from typing import Any

from umaserve.core.errors import Fault, RequestError
from umaserve.dialects.openai.tool_schemas import ARGUMENTS
from umaserve.wire.declared import (
    Declared,
    Kind,
    any_of,
    array,
    as_kind,
    boolean,
    choice,
    const,
    omittable,
    optional,
    required,
    string,
    switch,
    value,
)
from umaserve.wire.fields import bad_request

MAX_NAMED = 128
LABEL = string(1, 64)
_TOOL = string(1, 256)
_NAMES = array(_TOOL, high=MAX_NAMED, of="tools' names")
_BY_CLIENT = "expected to be absent: the operator names the servers, and server_label is the name of one"


def _refused(schema: dict[str, Any]) -> Kind[None]:
    def read(_given: Any, path: str) -> None:
        raise RequestError(Fault.BAD_REQUEST, path, _BY_CLIENT)

    return Kind(schema, read)


_NEVER_HERE = _refused({"type": "null"})


class McpToolFilter(Declared):
    tool_names = optional(_NAMES)
    read_only = optional(boolean(), "Only tools of which their server says that they change nothing.")


class McpApprovalFilter(Declared):
    always = optional(McpToolFilter)
    never = optional(McpToolFilter)


def _either(kind: Kind[Any], of: type[Declared], expected: str) -> Kind[Any]:
    def read(given: Any, path: str) -> Any:
        if isinstance(given, dict):
            return of.of(given, path)
        if isinstance(given, str | list):
            return kind.read(given, path)
        raise bad_request(path, expected, given)

    return Kind(any_of(kind, as_kind(of)).schema, read)


class ResponseMcpTool(Declared):
    type = required(const("mcp"))
    server_label = required(LABEL, "The name of a server that the operator has named: as [tools.NAME].")
    server_description = optional(string(), "Checked only.")
    allowed_tools = optional(_either(_NAMES, McpToolFilter, "an array of names, or an object"))
    require_approval = optional(
        _either(choice("always", "never"), McpApprovalFilter, '"always", "never" or an object'),
        "Which calls wait for a mcp_approval_response.",
        default="always",
    )
    server_url = omittable(_NEVER_HERE, "Refused: the daemon calls no address of a client's.")
    connector_id = omittable(_NEVER_HERE, "Refused.")
    authorization = omittable(_NEVER_HERE, "Refused: what a server wants is in the operator's settings.")
    headers = omittable(_NEVER_HERE, "Refused, likewise.")


class ResponseNamedServer(Declared):
    type = required(const("mcp"))
    server_label = required(LABEL)
    name_ = optional(_TOOL, "One of its tools; absent: any.")


class ResponseMcpListTools(Declared):
    """What a server offered."""

    type = required(const("mcp_list_tools"))
    server_label = required(LABEL)
    tools = required(value(type="array"))
    error = omittable(value())


class ResponseMcpCall(Declared):
    """A call that was made."""

    type = required(const("mcp_call"))
    id = required(string(1, 128))
    server_label = required(LABEL)
    name_ = required(_TOOL)
    arguments = required(ARGUMENTS)
    output = optional(string())
    error = omittable(value())
    approval_request_id = optional(string(1, 128))


class ResponseMcpApprovalRequest(Declared):
    """A call that waits for its approval."""

    type = required(const("mcp_approval_request"))
    id = required(string(1, 128))
    server_label = required(LABEL)
    name_ = required(_TOOL)
    arguments = required(ARGUMENTS)


class ResponseMcpApprovalResponse(Declared):
    """Has a call made, or refuses it."""

    type = required(const("mcp_approval_response"))
    approval_request_id = required(string(1, 128))
    approve = switch(False)
    reason = optional(string(max_bytes=4096))


MCP_ITEMS = (ResponseMcpListTools, ResponseMcpCall, ResponseMcpApprovalRequest, ResponseMcpApprovalResponse)
