"""``umaserve models``: the models that the daemon may serve, as the configuration file and the folder have them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence

from umaserve.commands.parser import Parser
from umaserve.core.errors import ConfigError
from umaserve.settings import model_deletion
from umaserve.settings.daemon import SETTINGS
from umaserve.settings.models import Catalogue, ModelSpec, read

DESCRIPTION = """\
Lists the models that --model may name: those of --models-dir, and those with a table in the configuration file. The
first one, with a star, is what "umaserve" with the same flags serves.

The commands list, load and unload are for the models of a running daemon instead ("umaserve models list --help").
"umaserve models remove NAME" deletes the files of a model in the folder.

examples:
  umaserve models --models-dir /srv/models
  umaserve models --config /etc/umaserve/umaserve.toml
  umaserve models remove qwen3-8b --models-dir /srv/models
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


def remove(arguments: Sequence[str], write: Callable[[str], None]) -> int:
    """``umaserve models remove``: delete a model's files, and its projector if no other model has it. Raises
    ConfigError."""
    parser = Parser("umaserve models remove", description="Deletes the files of a model in the folder of models.")
    parser.add_argument("model", metavar="NAME", help="its name, or an alias")
    parser.add_argument("--models-dir", metavar="PATH", help="the folder (default: $UMA_MODELS_DIR)")
    parser.add_argument("--config", metavar="PATH", help="the daemon's configuration file (default: $UMA_CONFIG)")
    options = vars(parser.parse_args(arguments))
    name = options.pop("model")
    loaded = SETTINGS.load({key: value for key, value in options.items() if value is not None}, os.environ)
    folder, catalogue = loaded.config.models_dir, read(loaded.config, loaded.file)
    if not folder:
        raise ConfigError("no folder of models: name it with --models-dir")
    spec, files = model_deletion.found(catalogue, folder, name)
    model_deletion.delete(files, folder)
    write(f"{spec.name} is deleted: {spec.size_bytes >> 20} MiB are free again\n")
    return 0
