"""A daemon that converts the default model's weights at its first start, and loads the copy from then on."""

from __future__ import annotations

import os
from pathlib import Path

from daemon import FAR_FROM_A_TIE, Daemon


def served(daemon: Daemon) -> str:
    """What the daemon says to a simple prompt; it must end without a complaint."""
    text = daemon.text(FAR_FROM_A_TIE, max_tokens=8)
    assert daemon.stop() == 0, daemon.logs
    return text


def warnings(daemon: Daemon) -> list[str]:
    """Lines of the log, but for that of a compiler which breaks AMX."""
    return [line for line in daemon.logs.splitlines() if " WARNING " in line and "which breaks AMX" not in line]


def test_the_first_start_converts_and_later_ones_load_the_copy(own_daemon, tmp_path: Path) -> None:
    cache = tmp_path / "cache"

    def start() -> Daemon:
        # Also where it is not faster: nothing here depends on how fast this box is.
        return own_daemon("--weights", "converted", "--weights-cache", str(cache))

    own = served(own_daemon())
    first = start()
    (copy,) = cache.glob("*.gguf")
    made = copy.stat()
    assert first.metrics()["model"] == "SmolLM2-135M-Instruct.Q4_1"
    assert served(first) == own
    assert "converting a copy to Q8_0, once" in first.logs
    assert not warnings(first)

    second = start()
    assert served(second) == own
    assert "converting" not in second.logs
    assert f"loading the weights from a converted copy copy={copy}" in second.logs
    assert copy.stat().st_ino == made.st_ino

    os.truncate(copy, 1_000_000)
    third = start()
    assert served(third) == own
    assert "converting a copy to Q8_0, once" in third.logs
    assert copy.stat().st_size == made.st_size


def test_weights_that_stay_mapped_give_the_same_answers(own_daemon) -> None:
    own = served(own_daemon())
    assert served(own_daemon("--weights", "mapped")) == own


def test_a_cache_that_cannot_be_written_costs_a_warning(own_daemon, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    daemon = own_daemon("--weights", "fast", env={"XDG_CACHE_HOME": str(tmp_path / "file")})
    assert served(daemon)
    (warning,) = warnings(daemon)
    assert "the Q4_1 weights are not converted" in warning
