"""A daemon that a person starts, not a service manager: where it listens if no setting says so, what it is called."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from umaserve.settings.daemon import Config
from umaserve.settings.sources import Loaded
from umaserve.system import systemd, unix_sockets

HTTP = "127.0.0.1:8080"
ORIGIN = "default outside a service"


def with_own_socket(loaded: Loaded[Config], environ: Mapping[str, str]) -> Loaded[Config]:
    """The settings with the user's own Unix socket."""
    path = unix_sockets.own_path(environ)
    if systemd.is_service() or loaded.origins["socket"] != "default" or path == loaded.config.socket:
        return loaded
    return _with(loaded, socket=path)


def with_own_places(loaded: Loaded[Config], environ: Mapping[str, str]) -> Loaded[Config]:
    """The settings as ``with_own_socket`` returns them, and with HTTP on loopback, where ``ORIGIN`` is then its
    origin."""
    loaded = with_own_socket(loaded, environ)
    if systemd.is_service() or loaded.origins["http"] != "default" or loaded.config.http_socket:
        return loaded
    return _with(loaded, http=HTTP)


def as_typed(environ: Mapping[str, str]) -> str:
    """Command by which a person calls this program in any terminal, also in one where no virtual environment is
    active."""
    called = os.path.abspath(sys.argv[0])
    if os.path.basename(called) == "__main__.py":
        return f"{shlex.quote(sys.executable)} -m umaserve"
    everywhere = shutil.which("umaserve") == called and not called.startswith(environ.get("VIRTUAL_ENV") or "\0")
    return "umaserve" if everywhere else shlex.quote(called)


def _with(loaded: Loaded[Config], **places: Any) -> Loaded[Config]:
    origins = {**loaded.origins, **dict.fromkeys(places, ORIGIN)}
    return replace(loaded, config=replace(loaded.config, **places), origins=origins)
