"""Settings of the daemon: more models."""

from __future__ import annotations

from dataclasses import dataclass

from umaserve.settings.kinds import TIB, path, real, size, switch
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
    model_downloads: int = setting(
        0,
        size(0, TIB),
        "models",
        "bytes that models_dir may have after a download that an operator asks for over HTTP (POST /models); 0: off",
        about="Lets operators have the daemon download models into models_dir, and delete them there, over HTTP as "
        "with llama-server (POST and DELETE /models): how many bytes the folder may have with a downloaded model, up "
        "to 1TiB. Models come from the Hugging Face Hub, or where HF_ENDPOINT says, by a process of their own, one at "
        "a time. Needs pip install 'umaserve[hub]', and a folder that the daemon may write to. 0: neither is allowed.",
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
