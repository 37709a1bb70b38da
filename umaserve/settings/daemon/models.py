"""Settings of the daemon: more models."""

from __future__ import annotations

from dataclasses import dataclass

from umaserve.settings.kinds import path, real, switch
from umaserve.settings.sources import setting


@dataclass(frozen=True)
class Models:
    """More models."""

    models_dir: str = setting(
        "",
        path(or_empty=True),
        "models",
        "folder of more models: each GGUF file by its name, with its projector (mmproj) beside it; empty: none",
        about='Folder of more models, which clients choose by name ("model" in a request): each GGUF file, by its '
        "name without .gguf, also in a folder in it. The parts NAME-00001-of-00003.gguf and so on are one "
        "model, NAME. A model's projector is beside it: mmproj-NAME….gguf or NAME…mmproj….gguf, or any "
        'mmproj….gguf where there is no other model. "umaserve models" lists them. Added and deleted files '
        "are noticed. Empty: none.",
    )
    strict_models: bool = setting(
        False,
        switch(),
        "models",
        "refuse requests that name a model which isn't there, instead of using the default",
        about="What a request that names an unknown model gets. true: an error, 404 in HTTP. false: the model of the "
        "setting model.",
    )
    idle_unload: float = setting(
        0.0,
        real("seconds", 0, 2592000),
        "models",
        "unload a model that has been idle for this long; 0: never",
        about="Seconds, 0 to 2592000, after which an idle model is unloaded. 0: never.",
    )
