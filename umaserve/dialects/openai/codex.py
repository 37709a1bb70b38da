"""The list of models as Codex wants it beside OpenAI's: with the context, by which it plans when to summarize.

It takes an entry only with instructions, which then replace its own of 17 KB. Those here say the same in short: a
local model reads a prompt at some hundred tokens a second.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

ASKS = "client_version"
"""The parameter of the query by which Codex is known."""
MAX_OUTPUT_BYTES = 10_000
"""Bytes of a command's output that Codex shows the model; it has the same number for models that it does not know."""
INSTRUCTIONS = """\
You are a coding agent. You work in a terminal, in the user's folder, with the tools that you are given.

- Do the work yourself: read files, run commands and change files with the tools, until the task is done. Ask the user \
only for what you can't find out.
- Look before you change: read the code around it, and follow its style and the folder's AGENTS.md.
- Change what the task needs, and nothing else. Never undo changes that are not yours, and commit only when asked.
- Check what you did by running it or its tests, where that is possible. What you have not run you don't know.
- Before a group of tool calls, say in a sentence what they are for.
- At the end say in a few sentences what you changed and what is left. Name files by their paths.
"""


def models(listed: Iterable[tuple[str, int, Iterable[str]]]) -> list[dict[str, Any]]:
    """The entries of models, each by a name, tokens of its context (0: unknown), and the media that it takes."""
    return [_model(rank, *one) for rank, one in enumerate(listed)]


def _model(rank: int, name: str, context_tokens: int, takes: Iterable[str]) -> dict[str, Any]:
    return {
        "slug": name,
        "display_name": name,
        "description": None,
        "base_instructions": INSTRUCTIONS,
        "context_window": context_tokens or None,
        "input_modalities": ["text", *(kind for kind in takes if kind == "image")],
        "truncation_policy": {"mode": "bytes", "limit": MAX_OUTPUT_BYTES},
        "supports_parallel_tool_calls": True,
        "shell_type": "default",
        "apply_patch_tool_type": None,
        "experimental_supported_tools": [],
        "supported_reasoning_levels": [],
        "supports_reasoning_summaries": False,
        "support_verbosity": False,
        "default_verbosity": None,
        "visibility": "list",
        "supported_in_api": True,
        "priority": rank,
        "upgrade": None,
    }
