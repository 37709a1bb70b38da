"""What models took in memory, and their ticks in time, which the next daemon knows before it loads them."""

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


def test_a_daemon_plans_its_first_prompt_as_the_one_before_it_did_its_last(
    own_daemon: Callable[..., Daemon], tmp_path: Path
) -> None:
    def ticks_of(daemon: Daemon, first: str) -> int:
        """How many a prompt takes that begins like no other."""
        before = daemon.metrics()["batch_calls_total"]
        daemon.ask(f"{first} " + "one two three four five six " * 70, max_tokens=1)
        return daemon.wait_until_quiet()["batch_calls_total"] - before

    state = {"XDG_STATE_HOME": str(tmp_path / "state")}
    daemon = own_daemon(env=state)
    last = [ticks_of(daemon, first) for first in ("a", "b", "c", "d")][-1]
    assert daemon.stop() == 0
    second = own_daemon(env=state)
    # Parts of half a tile or more are made whole ones, so that a little noise has more than twice as many.
    assert ticks_of(second, "e") <= 3 * last
    assert second.stop() == 0
    file = tmp_path / "state" / "umaserve" / "memory.json"
    known = json.loads(file.read_text())
    known["models"][0]["cost"] = dict.fromkeys(known["models"][0]["cost"], 1e-6)
    file.write_text(json.dumps(known))
    assert ticks_of(own_daemon(env=state), "f") == 2, "all but the last token, since that is quick"
