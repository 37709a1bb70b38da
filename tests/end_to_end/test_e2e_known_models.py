"""What models took in memory, which the next daemon knows before it loads them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import httpx
from daemon import ANSWER_S, Daemon
from tiny_models import tiny_model


def needed(daemon: Daemon) -> int:
    """By the tiny model, as far as the daemon knows."""
    listed = httpx.get(f"http://{daemon.http}/models", timeout=ANSWER_S).json()["data"]
    return next(one["needed"] for one in listed if one["id"] == "tiny")


def test_what_a_model_took_is_known_at_the_next_start(own_daemon: Callable[..., Daemon], tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    size = Path(tiny_model(models / "tiny.gguf", "llama")).stat().st_size
    flags = ("--http", "127.0.0.1:0", "--models-dir", str(models), "--n-ctx", "1024")
    state = {"XDG_STATE_HOME": str(tmp_path / "state")}
    first = own_daemon(*flags, env=state)
    guessed = needed(first)
    first.ask("abc", model="tiny", max_tokens=2)
    took = needed(first)
    assert size < guessed != took
    assert first.stop() == 0
    file = tmp_path / "state" / "umaserve" / "memory.json"
    kept = {one["name"]: one["needed_bytes"] for one in json.loads(file.read_text())["models"]}
    assert kept["tiny"] == took
    assert len(kept) == 2, "the default model's too"
    second = own_daemon(*flags, env=state)
    assert needed(second) == took
    events = second.ask("abc", model="tiny", max_tokens=2)
    assert events[-1]["event"] == "eos"
    assert needed(second) >= took
