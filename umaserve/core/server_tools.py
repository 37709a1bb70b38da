"""Tools of MCP servers that the daemon itself calls, and their calls."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerTool:
    """A tool of an MCP server."""

    name: str
    description: str
    parameters: str
    """The JSON schema of its arguments."""
    read_only: bool
    """Whether its server says that it changes nothing."""


@dataclass(frozen=True, slots=True)
class ServerCall:
    """A call of a tool; ``arguments`` is a JSON object."""

    server: str
    tool: str
    arguments: str


@dataclass(frozen=True, slots=True)
class CallResult:
    """What a call returned, as text for the model; where it ``failed``, why."""

    text: str
    failed: bool
