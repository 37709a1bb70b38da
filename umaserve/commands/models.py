"""``umaserve models``: the models that the daemon may serve, as the configuration file and the folder have them."""

from __future__ import annotations

from collections.abc import Iterator

from umaserve.settings.models import Catalogue, ModelSpec

DESCRIPTION = """\
Lists the models that --model may name: those of --models-dir, and those with a table in the configuration file. The
first one, with a star, is what "umaserve" with the same flags serves.

With one of the words list, load and unload, it is about a running daemon instead ("umaserve models list --help").

examples:
  umaserve models --models-dir /srv/models
  umaserve models --config /etc/umaserve/umaserve.toml
  umaserve models list
  umaserve models load qwen3-8b
"""
FIRST = ("model", "models_dir")
"""The settings that matter first in this command."""


def listing(catalogue: Catalogue) -> str:
    """A line for each: its name, size, file, other names and description."""
    rows = [tuple(_cells(spec, default=spec is catalogue.default)) for spec in catalogue.models]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
    return "".join(f"{line}\n" for line in lines)


def _cells(spec: ModelSpec, *, default: bool) -> Iterator[str]:
    yield ("* " if default else "  ") + spec.name
    yield f"{spec.size_bytes >> 20} MiB" if spec.size_bytes else "missing"
    yield spec.config.model or "the default model"
    yield f"with {spec.config.mmproj}" if spec.config.mmproj else ""
    yield ", ".join(spec.aliases)
    yield spec.description
