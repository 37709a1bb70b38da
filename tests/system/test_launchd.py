"""The file for macOS's launchd, as far as it can be checked elsewhere."""

from __future__ import annotations

import plistlib
import subprocess
import sys
from pathlib import Path

from umaserve.settings.daemon import Config
from umaserve.system.descriptors import OWN_DESCRIPTORS

PLIST = plistlib.loads((Path(__file__).parents[2] / "conf/com.umaserve.plist").read_bytes())


def test_its_program_takes_the_flags() -> None:
    program, *flags = PLIST["ProgramArguments"]
    assert program == "/opt/umaserve/bin/umaserve"
    command = [sys.executable, "-m", "umaserve", *flags, "--print-config"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert shown.returncode == 0, shown.stderr
    assert "/usr/local/var/umaserve/uma.sock" in shown.stdout


def test_it_starts_at_once_and_after_a_failure_alone() -> None:
    assert PLIST["RunAtLoad"] is True
    assert PLIST["KeepAlive"] == {"SuccessfulExit": False}


def test_its_limits_are_above_the_settings() -> None:
    config = Config(model="any")
    assert PLIST["ExitTimeOut"] > config.drain_grace + config.drain_timeout
    assert PLIST["SoftResourceLimits"]["NumberOfFiles"] >= config.max_sessions + OWN_DESCRIPTORS
    assert PLIST["Umask"] == 0o077
