"""Folders in which a program keeps files that nobody has given it a folder for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

PROGRAM = "umaserve"


def cache(environ: Mapping[str, str]) -> Path:
    """Folder for what can be made again. Raises ``OSError`` where the user has no home."""
    return _folder(environ, "CACHE_DIRECTORY", "XDG_CACHE_HOME", "~/.cache")


def state(environ: Mapping[str, str]) -> Path:
    """Folder for what was learned, and is to outlive the program. Raises ``OSError`` as ``cache``."""
    return _folder(environ, "STATE_DIRECTORY", "XDG_STATE_HOME", "~/.local/state")


def _folder(environ: Mapping[str, str], of_service: str, of_user: str, usual: str) -> Path:
    """The first of the service manager's folders (systemd.exec(5)), else one in the user's (XDG Base Directory
    Specification)."""
    if service := environ.get(of_service, "").partition(":")[0]:
        return Path(service)
    users = environ.get(of_user, "")
    # The specification has relative paths ignored.
    if not os.path.isabs(users):
        users = os.path.expanduser(usual)
    if not os.path.isabs(users):
        raise FileNotFoundError(f"neither {of_user} nor a home folder is known")
    return Path(users, PROGRAM)
