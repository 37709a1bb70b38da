"""Where barriers can't be made to sleep."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from umaserve.system.openmp import IDLE_POOL, VARIABLES, Barriers


@pytest.mark.parametrize("maps", [None, "7f00-7f01 r--p 0 fe:00 1 /usr/lib/libomp.so\n", "7f00-7f01 rw-p 0 00:00 0\n"])
def test_barriers_stay_as_they_are_without_libgomp(
    tmp_path: Path, maps: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    if maps is not None:
        (tmp_path / "self").mkdir()
        (tmp_path / "self" / "maps").write_text(maps)
    barriers = Barriers(2, tmp_path)
    assert not barriers.may_sleep
    barriers.sleep(True)
    assert IDLE_POOL not in {thread.name for thread in threading.enumerate()}
