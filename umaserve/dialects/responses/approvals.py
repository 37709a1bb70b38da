"""Finds what the items of a conversation tell of MCP servers: which are listed, and which calls are to be made now."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import orjson

from umaserve.dialects.responses.mcp_schemas import (
    ResponseMcpApprovalRequest,
    ResponseMcpApprovalResponse,
    ResponseMcpCall,
    ResponseMcpListTools,
)
from umaserve.dialects.responses.schemas import read_item
from umaserve.dialects.responses.tools import OfferedTool
from umaserve.wire.fields import Fields, out_of_range


class McpState(NamedTuple):
    """What a conversation's items say so far."""

    listed: frozenset[str]
    """The servers whose tools its client was told."""
    approved: Sequence[ResponseMcpApprovalRequest]
    """Calls that were approved and not yet made."""


def mcp_state(items: Iterable[Fields]) -> McpState:
    """Read it from items that are valid."""
    listed = set[str]()
    asked: dict[str, ResponseMcpApprovalRequest] = {}
    approved: dict[str, ResponseMcpApprovalRequest] = {}
    for item in map(read_item, items):
        match item:
            case ResponseMcpListTools():
                listed.add(item.server_label)
            case ResponseMcpApprovalRequest():
                asked[item.id] = item
            case ResponseMcpApprovalResponse() if item.approve:
                approved[item.approval_request_id] = asked[item.approval_request_id]
            case ResponseMcpCall():
                approved.pop(item.approval_request_id or "", None)
    return McpState(frozenset(listed), [*approved.values()])


def check_approved(approved: Iterable[ResponseMcpApprovalRequest], offered: Iterable[OfferedTool]) -> None:
    """Raise ``RequestError`` for an approved call of a tool that isn't in ``offered``, or whose arguments are none."""
    there = {(one.server, one.name) for one in offered}
    for item in approved:
        if (item.server_label, item.name_) not in there:
            expected = "a tool of the servers in tools"
            raise out_of_range(item.name("name"), expected, f'"{item.name_}" of "{item.server_label}"')
        try:
            arguments = orjson.loads(item.arguments)
        except orjson.JSONDecodeError:
            arguments = None
        if not isinstance(arguments, dict):
            raise out_of_range(item.name("arguments"), "a JSON object", item.arguments)
