"""Coding agents: what each needs to be told so that it talks to a daemon, and to nobody else."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

PATIENCE_MS = 3_600_000
"""How long an agent waits for a prompt that a small box computes, where nothing bounds it."""
CLAUDE_PATIENCE_MS = 1_800_000
"""The longest that Claude Code takes; without it, it leaves after 300 s in spite of pings."""
NO_KEY = "none"
"""The key for daemons that want none: most agents insist on one."""
KEY = "UMASERVE_KEY"
"""Variable of the key, for agents whose configuration names one: no file has the key itself."""
_ANSWER_SHARE = 4
"""Answers get this part of the context. Agents compact a conversation once it leaves no room for an answer, and reserve
32,000 tokens if nobody says."""
_MOST_ANSWER_TOKENS = 32_000


class Served(NamedTuple):
    """A model of a running daemon."""

    url: str
    """Where the daemon serves HTTP, without a slash at the end."""
    key: str
    model: str
    context_tokens: int

    @property
    def answer_tokens(self) -> int:
        return min(self.context_tokens // _ANSWER_SHARE, _MOST_ANSWER_TOKENS)


@dataclass(frozen=True)
class Setup:
    """Variables and files that make an agent talk to a daemon, and arguments before the user's own."""

    variables: Mapping[str, str]
    files: Mapping[Path, str] = field(default_factory=dict)
    arguments: Sequence[str] = ()
    unset: Sequence[str] = ()
    """Variables that would lead the agent elsewhere, or give the daemon somebody else's key."""


class Agent(NamedTuple):
    """A program that writes code with a model."""

    program: str
    installed_by: str
    """Command that installs it."""
    first_turn_tokens: int
    """The most tokens that were seen in its first request; 0 where they depend on the repository alone."""
    setup: Callable[[Served, Path], Setup]
    """What it needs, with its files in a folder of its own."""


def _claude(served: Served, folder: Path) -> Setup:
    models = ("MODEL", "DEFAULT_OPUS_MODEL", "DEFAULT_SONNET_MODEL", "DEFAULT_HAIKU_MODEL")
    return Setup(
        {
            "ANTHROPIC_BASE_URL": served.url,
            "ANTHROPIC_AUTH_TOKEN": served.key,
            **{f"ANTHROPIC_{name}": served.model for name in models},
            "CLAUDE_CONFIG_DIR": str(folder),
            "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(served.context_tokens),
            "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(served.answer_tokens),
            "CLAUDE_STREAM_IDLE_TIMEOUT_MS": str(CLAUDE_PATIENCE_MS),
            "API_TIMEOUT_MS": str(PATIENCE_MS),
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            # A line with its version, before all else: after an update, nothing behind it would be reused.
            "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
        },
        unset=("ANTHROPIC_API_KEY", "CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX"),
    )


def _codex(served: Served, folder: Path) -> Setup:
    provider = "model_providers.umaserve"
    # As arguments: what Codex itself writes into config.toml, such as which folders it may trust, stays there.
    values: dict[str, Any] = {
        "model": served.model,
        "model_provider": "umaserve",
        "model_context_window": served.context_tokens,
        f"{provider}.name": "umaserve",
        f"{provider}.base_url": f"{served.url}/v1",
        f"{provider}.wire_api": "responses",
        # By a command for the key, rather than its variable alone: Codex then asks for the models and their contexts.
        f"{provider}.auth.command": "printenv",
        f"{provider}.auth.args": [KEY],
        f"{provider}.stream_idle_timeout_ms": PATIENCE_MS,
        "check_for_update_on_startup": False,
        "analytics.enabled": False,
    }
    # JSON's texts, numbers, truth values and lists are TOML's.
    arguments = [part for name, value in values.items() for part in ("-c", f"{name}={json.dumps(value)}")]
    return Setup({"CODEX_HOME": str(folder), KEY: served.key}, arguments=arguments)


def _opencode(served: Served, folder: Path) -> Setup:
    name = f"umaserve/{served.model}"
    limit = {"context": served.context_tokens, "output": served.answer_tokens}
    options = {
        "baseURL": f"{served.url}/v1",
        "apiKey": f"{{env:{KEY}}}",
        **dict.fromkeys(("timeout", "headerTimeout", "chunkTimeout"), False),
    }
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "umaserve",
        "options": options,
        "models": {served.model: {"name": served.model, "limit": limit}},
    }
    config = {
        "model": name,
        "small_model": name,
        "share": "disabled",
        "autoupdate": False,
        "provider": {"umaserve": provider},
    }
    path = folder / "opencode.json"
    variables = {"OPENCODE_CONFIG": str(path), "OPENCODE_DISABLE_MODELS_FETCH": "1", KEY: served.key}
    return Setup(variables, {path: _json(config)})


def _qwen(served: Served, folder: Path) -> Setup:
    generation = {"contextWindowSize": served.context_tokens, "timeout": PATIENCE_MS}
    defaults = {
        "security": {"auth": {"selectedType": "openai"}},
        "model": {"name": served.model, "generationConfig": generation},
        "privacy": {"usageStatisticsEnabled": False},
        "general": {"enableAutoUpdate": False},
        # After each answer it would have the model look for what to remember: a second prompt of 10,000 tokens.
        "memory": {"enableManagedAutoMemory": False},
    }
    path = folder / "defaults.json"
    variables = {
        "OPENAI_BASE_URL": f"{served.url}/v1",
        "OPENAI_API_KEY": served.key,
        "OPENAI_MODEL": served.model,
        "QWEN_HOME": str(folder),
        # Below what its user chooses, which it writes into QWEN_HOME.
        "QWEN_CODE_SYSTEM_DEFAULTS_PATH": str(path),
        "QWEN_CODE_MAX_OUTPUT_TOKENS": str(served.answer_tokens),
        # No limit.
        "QWEN_STREAM_IDLE_TIMEOUT_MS": "0",
        "QWEN_STREAM_MAX_LIFETIME_MS": "0",
    }
    return Setup(variables, {path: _json(defaults)})


def _aider(served: Served, folder: Path) -> Setup:
    name = f"openai/{served.model}"
    known = {
        "max_input_tokens": served.context_tokens,
        "max_output_tokens": served.answer_tokens,
        "input_cost_per_token": 0,
        "output_cost_per_token": 0,
        "litellm_provider": "openai",
        "mode": "chat",
    }
    path = folder / "models.json"
    variables = {
        "AIDER_MODEL": name,
        "AIDER_OPENAI_API_BASE": f"{served.url}/v1",
        "AIDER_OPENAI_API_KEY": served.key,
        "AIDER_MODEL_METADATA_FILE": str(path),
        "AIDER_TIMEOUT": str(PATIENCE_MS // 1000),
        "AIDER_SHOW_MODEL_WARNINGS": "false",
        "AIDER_ANALYTICS": "false",
        "AIDER_CHECK_UPDATE": "false",
    }
    return Setup(variables, {path: _json({name: known})})


def _json(value: object) -> str:
    return json.dumps(value, indent=2) + "\n"


AGENTS: Mapping[str, Agent] = {
    "claude": Agent("claude", "npm install -g @anthropic-ai/claude-code", 22_300, _claude),
    "codex": Agent("codex", "npm install -g @openai/codex", 8_400, _codex),
    "opencode": Agent("opencode", "npm install -g opencode-ai", 7_200, _opencode),
    "qwen": Agent("qwen", "npm install -g @qwen-code/qwen-code", 17_500, _qwen),
    "aider": Agent("aider", "python3 -m pip install aider-chat", 0, _aider),
}
