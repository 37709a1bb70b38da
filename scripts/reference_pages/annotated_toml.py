"""``conf/umaserve.toml``: every setting of the daemon at its default, with its explanation."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from textwrap import wrap

from markdown import WIDTH, explanation, listed, title

from umaserve.settings.daemon import SETTINGS
from umaserve.settings.models import OTHER_NAMES, OWN, PER_MODEL
from umaserve.settings.sources import Setting
from umaserve.settings.tool_servers import KEYS

VALUES = {"http": "127.0.0.1:8080"}
"""Those that the file has otherwise than the defaults."""
HEADER = """\
# umaserve: every setting with its explanation, at its default value. One differs: http is set here, and off by default.
#
# Name this file with --config PATH or UMA_CONFIG. A file needs only the settings that differ from their defaults.
# A flag takes precedence over an environment variable, that over the file, and the file over the default. The flag of
# max_tokens is --max-tokens, its variable UMA_MAX_TOKENS; where a variable has another name, it is given below.
# --print-config prints every setting, its value, and where the value came from.
#
# The file has no [sections] but those of models and tool servers, at its end. An unknown key is an error, and so is an
# unknown variable that begins with UMA_, except UMA_RELAY_… and UMA_WORKER_…, which belong to umaserve relay and
# umaserve worker.
# Sizes are in bytes: a whole number, or a string such as "64KiB", "1MiB" or "1GiB".
# In a flag or a variable, a list has commas between its items.
"""
MODELS = (
    "A table for each, with its name for clients. The model of the setting model, or one in models_dir, may have a "
    "table too. The path is all that it needs. It may also have {settings}, in place of the settings above; {own} are "
    "not taken over from there."
)
A_MODEL = """\
#
# [models.qwen]
# path = "/srv/models/Qwen3-8B-Q4_K_M.gguf"
# aliases = ["gpt-4o-mini"]       # other names, at most 64
# description = "for everything"  # for clients that list models
# tags = ["chat", "small"]        # likewise, at most 64 words
# n_ctx = 32768
# pin = true                      # never unloaded
# idle_unload = 600               # in place of the setting above
# preload = true                  # loaded when the daemon starts, not when it is asked for
"""
TOOLS = (
    "A table for each MCP server whose tools the daemon calls in answers: its name for clients, who may have its tools "
    "called (allow: names and classes of keys), and command or url. It may also have {settings}: see docs/guide/mcp.md."
)
A_SERVER = """\
#
# [tools.notes]
# command = ["mcp-server-filesystem", "/srv/notes"]
# allow = ["operator"]
# only = ["read_text_file"]       # the tools that there are
"""


def annotated_toml() -> str:
    """The file's text."""
    parts = [HEADER]
    for group, settings in groupby(SETTINGS.by_key.values(), lambda one: one.group):
        parts.append(f"\n\n### {title(group)}\n")
        parts += map(_annotated, settings)
    models = ["\n\n### More models\n\n", _comment([_models()]), A_MODEL]
    others = listed([key for key in KEYS if key not in ("command", "url", "allow")])
    tools = ["\n\n### Tool servers\n\n", _comment([TOOLS.format(settings=others)]), A_SERVER]
    return "".join([*parts, *models, *tools])


def _annotated(one: Setting) -> str:
    usual = "UMA_" + one.key.upper()
    first, *others = explanation(one).split("\n")
    first += "" if one.env == usual else f" Variable: {one.env}."
    value = VALUES.get(one.key, one.default)
    return f"\n{_comment([first, *others])}{one.key} = {one.kind.render(value)}\n"


def _models() -> str:
    others = {key: f"{key} (or {name})" for name, key in OTHER_NAMES.items()}
    return MODELS.format(settings=listed([others.get(key, key) for key in PER_MODEL]), own=listed(OWN))


def _comment(paragraphs: Iterable[str]) -> str:
    lines = (line for paragraph in paragraphs for line in wrap(paragraph, WIDTH - 2, break_on_hyphens=False))
    return "".join(f"# {line}\n" for line in lines)
