"""``umaserve models``: the models that the daemon may serve, as the configuration file and the folder have them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence

from umaserve.commands.parser import Parser
from umaserve.core.errors import ConfigError
from umaserve.settings.daemon import SETTINGS
from umaserve.settings.model_files import parts
from umaserve.settings.models import Catalogue, ModelSpec, read
from umaserve.settings.sources import nearest, printable

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
    mine = [spec for spec in catalogue.models if _is_in(spec.config.model, folder)]
    spec = next((spec for spec in mine if name in (spec.name, *spec.aliases)), None)
    if spec is None:
        hint = nearest(name, [spec.name for spec in mine])
        raise ConfigError(f"{printable(folder)} has no model {printable(name)}{hint}: see umaserve models")
    others = {
        os.path.realpath(path): one.name
        for one in catalogue.models
        if one is not spec
        for path in (one.config.model, one.config.mmproj, one.config.draft_model)
        if path
    }
    if other := others.get(os.path.realpath(spec.config.model)):
        raise ConfigError(
            f"{spec.name}: its file is also that of {other}: remove {other} from the configuration file first"
        )
    files, projector = parts(spec.config.model), spec.config.mmproj
    if projector and os.path.realpath(projector) not in others and _is_in(projector, folder):
        files.append(projector)
    for file in files:
        try:
            os.unlink(file)
        except OSError as error:
            raise ConfigError(f"{printable(file)}: can't be deleted: {error.strerror}") from None
    if not os.path.samefile(os.path.dirname(files[0]), folder):
        with contextlib.suppress(OSError):  # something else is in it
            os.rmdir(os.path.dirname(files[0]))
    write(f"{spec.name} is deleted: {spec.size_bytes >> 20} MiB are free again\n")
    return 0


def _is_in(path: str, folder: str) -> bool:
    return bool(path) and os.path.realpath(path).startswith(os.path.realpath(folder) + os.sep)
