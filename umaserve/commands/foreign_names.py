"""What other servers call commands and flags, and what does the same here."""

from __future__ import annotations

from collections.abc import Mapping

COMMANDS: Mapping[str, str] = {
    "run": "umaserve MODEL.gguf starts the daemon, umaserve chat talks to it",
    "start": "umaserve alone starts the daemon, systemctl start umaserve its service",
    "list": "umaserve models",
    "ls": "umaserve models",
    "ps": "umaserve models list",
    "show": "umaserve models",
    "rm": "umaserve models remove NAME",
    "stop": "Ctrl-C ends the daemon, systemctl stop umaserve its service, umaserve models unload NAME a model",
}
_ALIAS = '--config FILE (with aliases = ["NAME"] below [models.NAME])'
FLAGS: Mapping[str, str] = {
    "-m": "--model",
    "-c": "--n-ctx",
    "--ctx-size": "--n-ctx",
    "--max-model-len": "--n-ctx",
    "-np": "--parallel",
    "-ngl": "--n-gpu-layers",
    "--gpu-layers": "--n-gpu-layers",
    "-b": "--n-batch",
    "--batch-size": "--n-batch",
    "-ub": "--n-ubatch",
    "--ubatch-size": "--n-ubatch",
    "-t": "--threads",
    "-tb": "--threads-batch",
    "-sm": "--split-mode",
    "-ts": "--tensor-split",
    "-mg": "--main-gpu",
    "-ot": "--override-tensor",
    "-cmoe": "--n-cpu-moe 10000",
    "--cpu-moe": "--n-cpu-moe 10000",
    "-ncmoe": "--n-cpu-moe",
    "--rope-freq-scale": "--rope-scale (1 divided by it)",
    "-fa": "--flash-attn",
    "-ctk": "--kv-type-k",
    "--cache-type-k": "--kv-type-k",
    "-ctv": "--kv-type-v",
    "--cache-type-v": "--kv-type-v",
    "-md": "--draft-model",
    "--model-draft": "--draft-model",
    "-n": "--max-tokens",
    "--predict": "--max-tokens",
    "--n-predict": "--max-tokens",
    "--port": "--http HOST:PORT",
    "--host": "--http HOST:PORT",
    "--api-key": "--api-keys FILE (umaserve keys add NAME --api-keys FILE makes one)",
    "-a": _ALIAS,
    "--alias": _ALIAS,
    "--served-model-name": _ALIAS,
}
"""By a flag of llama-server or vLLM: the flag here, and what belongs to it."""
