"""Deletes a model's files from the folder of models."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

from umaserve.core.errors import ConfigError
from umaserve.settings.model_files import SOURCE, parts
from umaserve.settings.models import Catalogue, ModelSpec
from umaserve.settings.sources import nearest, printable


def found(catalogue: Catalogue, folder: str, name: str) -> tuple[ModelSpec, Sequence[str]]:
    """The model of this name in the folder, and its files, with its projector if no other model has it. Raises
    ConfigError, also where another model has its file."""
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
    return spec, files


def delete(files: Sequence[str], folder: str) -> None:
    """Delete a model's files, and the folder in ``folder`` that was its own. Raises ConfigError."""
    for file in files:
        try:
            os.unlink(file)
        except OSError as error:
            raise ConfigError(f"{printable(file)}: can't be deleted: {error.strerror}") from None
    own = os.path.dirname(files[0])
    if not os.path.samefile(own, folder):
        with contextlib.suppress(OSError):  # something else is in it
            if os.listdir(own) == [SOURCE]:
                os.unlink(os.path.join(own, SOURCE))
            os.rmdir(own)


def _is_in(path: str, folder: str) -> bool:
    return bool(path) and os.path.realpath(path).startswith(os.path.realpath(folder) + os.sep)
