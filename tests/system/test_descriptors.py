"""The limit of open files, and standard streams that were closed before the program began."""

from __future__ import annotations

import errno
import itertools
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from umaserve.core.errors import ConfigError
from umaserve.system.descriptors import OWN_DESCRIPTORS, raise_descriptor_limit


class Limits:
    """What the kernel says and takes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, refusal: Exception | None = None) -> None:
        self.set: list[tuple[int, int]] = []
        self._refusal = refusal
        monkeypatch.setattr(resource, "getrlimit", lambda _which: (soft, hard))
        monkeypatch.setattr(resource, "setrlimit", self._take)

    def _take(self, _which: int, limits: tuple[int, int]) -> None:
        if self._refusal is not None:
            raise self._refusal
        self.set.append(limits)


@pytest.mark.parametrize("hard", [1024 + OWN_DESCRIPTORS, 1 << 20, resource.RLIM_INFINITY])
def test_a_limit_that_suffices_is_raised_without_a_word(
    hard: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    limits = Limits(monkeypatch, 256, hard)
    raise_descriptor_limit(1024, "max_sessions")
    assert limits.set == [(hard, hard)]
    assert caplog.records == []


def test_a_limit_that_is_too_low_is_told_once_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    Limits(monkeypatch, 256, 512)
    raise_descriptor_limit(1024, "max_sessions")
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    for words in ("512", f"max_sessions = 1024 needs {1024 + OWN_DESCRIPTORS}", "LimitNOFILE=", "lower max_sessions"):
        assert words in record.getMessage()


def test_a_limit_too_low_for_the_program_itself_is_an_error_of_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    Limits(monkeypatch, 20, OWN_DESCRIPTORS - 1)
    with pytest.raises(ConfigError, match=rf"have {OWN_DESCRIPTORS - 1} files and .* needs {OWN_DESCRIPTORS} .*ulimit"):
        raise_descriptor_limit(1024, "max_sessions")
    Limits(monkeypatch, 20, OWN_DESCRIPTORS)
    raise_descriptor_limit(1024, "max_sessions")


@pytest.mark.parametrize("refusal", [PermissionError(errno.EPERM, "no"), ValueError("not allowed")])
def test_a_limit_that_cannot_be_raised_is_no_error(
    refusal: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    Limits(monkeypatch, 256, 4096, refusal)
    raise_descriptor_limit(1024, "max_sessions")
    assert "256 files" in caplog.text


STANDARD = (0, 1, 2)
SHOW = """
import json, os, sys
from umaserve.system.descriptors import open_standard_streams
open_standard_streams()
print("out"); print("err", file=sys.stderr); sys.stdout.flush(); sys.stderr.flush(); read = sys.stdin.read()
last = os.open(os.devnull, os.O_RDONLY)
shown = {n: [os.readlink(f"/proc/self/fd/{n}"), os.get_inheritable(n)] for n in (0, 1, 2)}
with open(sys.argv[1], "w") as file:
    json.dump({"shown": shown, "read": read, "next": last}, file)
"""


@pytest.mark.parametrize("closed", [c for n in range(4) for c in itertools.combinations(STANDARD, n)], ids=str)
def test_a_standard_stream_that_is_closed_is_the_null_device(closed: tuple[int, ...], tmp_path: Path) -> None:
    def close() -> None:
        for number in closed:
            os.close(number)

    done = subprocess.run(
        [sys.executable, "-c", SHOW, str(tmp_path / "shown")],
        input=b"in", capture_output=True, timeout=120, preexec_fn=close,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "shown").read_text())
    for number in STANDARD:
        target, inheritable = found["shown"][str(number)]
        assert (target == os.devnull) == (number in closed)
        assert inheritable, "as every program expects them"
    assert found["read"] == ("" if 0 in closed else "in")
    assert found["next"] not in STANDARD
    assert (done.stdout, done.stderr) == (b"" if 1 in closed else b"out\n", b"" if 2 in closed else b"err\n")
