"""``docs/api/settings.md``: every setting of the three programs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

from markdown import MADE, explanation, prose, title

from umaserve.settings.daemon import SETTINGS
from umaserve.settings.relay import SETTINGS as RELAY_SETTINGS
from umaserve.settings.sources import Setting, Settings
from umaserve.settings.worker import SETTINGS as WORKER_SETTINGS

PROGRAMS: dict[str, tuple[str, Settings[Any]]] = {
    "The daemon": ("umaserve", SETTINGS),
    "The relay": ("umaserve relay", RELAY_SETTINGS),
    "A worker": ("umaserve worker", WORKER_SETTINGS),
}
INTRODUCTION = """\
# Reference of settings

All settings of the daemon, a relay and a worker, each by its flag, with its environment variable and its default. In
the TOML file the key of `--max-tokens` is `max_tokens`. A switch, such as `--page`, has a flag that turns it off too:
`--no-page`. [Settings](../guide/settings.md) says which come first, and which matter most.
"""


def settings_page() -> str:
    """The page's text."""
    return "\n".join([INTRODUCTION, MADE + "\n", *_sections()])


def _sections() -> Iterator[str]:
    for name, (command, settings) in PROGRAMS.items():
        yield f"## {name}: `{command}`\n"
        for group, each in groupby(settings.by_key.values(), lambda one: one.group):
            yield f"### {title(group)}\n"
            yield from map(_described, each)


def _described(one: Setting) -> str:
    facts = f"`{one.env}`, default `{one.kind.render(one.default)}`"
    # An explanation says itself which values there are.
    facts += "" if one.about else f"; {one.kind.expected}"
    return f"#### `{one.flag}`\n\n{prose(facts)}\n{prose(explanation(one))}"
