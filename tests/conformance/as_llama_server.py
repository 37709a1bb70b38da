"""Starts umaserve with llama-server's flags, for llama.cpp's server tests.

``python -m tests.conformance.as_llama_server``: the default model answers, whichever model the tests name. Flags
without a counterpart have no effect.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import tempfile
from pathlib import Path

from umaserve.settings.model_files import default_model

_VALUES = ("port", "host", "ctx-size", "parallel", "alias", "tags", "api-key", "chat-template-file")
_SWITCHES = ("kv-unified", "metrics", "embedding")


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in _VALUES:
        parser.add_argument(f"--{name}", default="")
    for name in _SWITCHES:
        parser.add_argument(f"--{name}", action="store_true")
    given, _ = parser.parse_known_args()
    folder = Path(tempfile.mkdtemp(prefix="llama-server-"))
    hosts = [f"[{host}]" if ":" in host else host for host in given.host.split(",")]
    flags = ["--socket", str(folder / "sock"), "--http", ",".join(f"{host}:{given.port}" for host in hosts)]
    flags += ["--config", str(_models(folder, given.alias, given.tags)), "--no-speculation"]
    if given.ctx_size:
        # Of llama-server's cells each slot has a part of its own.
        parts = 1 if given.kv_unified else int(given.parallel or 1)
        flags += ["--n-ctx", str(int(given.ctx_size) // parts)]
    if given.parallel:
        flags += ["--parallel", given.parallel]
    if given.chat_template_file:
        flags += ["--chat-template", given.chat_template_file]
    if given.metrics:
        flags += ["--llama-metrics"]
    if given.embedding:
        flags += ["--pooling", "mean"]
    if given.api_key:
        flags += ["--api-keys", str(_keys(folder, given.api_key))]
    variables = {name: value for name, value in os.environ.items() if not name.startswith("UMA_")}
    variables |= {"UMA_WEIGHTS": "as-is", "XDG_STATE_HOME": str(folder / "state")}
    os.execve(sys.executable, [sys.executable, "-m", "umaserve", *flags], variables)


def _models(folder: Path, alias: str, tags: str) -> Path:
    """The file of settings that gives the default model these names and tags, separated by commas. Its own name is the
    first in the alphabet, as llama-server has it."""
    name, *others = sorted(alias.split(",")) if alias else [Path(default_model()).stem]
    model = folder / f"{name.replace('/', '-')}.gguf"
    # A model also has the name of its file.
    model.symlink_to(default_model())
    settings = folder / "umaserve.toml"
    settings.write_text(
        f"model = {json.dumps(name)}\n[models.{json.dumps(name)}]\n"
        f"path = {json.dumps(str(model))}\naliases = {json.dumps(others)}\n"
        f"tags = {json.dumps(tags.split(',') if tags else [])}\n"
    )
    return settings


def _keys(folder: Path, keys: str) -> Path:
    """The file of these API keys, separated by commas."""
    about = {"class": "interactive", "requests_per_minute": None, "tokens_per_minute": None, "created": "2026-01-01"}
    entries = [
        {"name": f"key-{number}", "sha256": hashlib.sha256(key.encode()).hexdigest(), **about}
        for number, key in enumerate(keys.split(","))
    ]
    file = folder / "keys.json"
    file.write_text(json.dumps({"keys": entries}))
    file.chmod(0o600)
    return file


if __name__ == "__main__":
    main()
