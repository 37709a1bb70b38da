"""What load balancers and service managers ask: whether the daemon lives, and whether it is ready for requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from umaserve.daemon.services import Services

WEDGED_S = 10.0
"""A tick that takes this long, and far longer than predicted, keeps all waiting: requests had better go elsewhere, long
before the engine is ended for it (``--engine-timeout``)."""


def health(services: Services) -> tuple[int, bytes]:
    """Health of the server, as llama-server's ``/health`` tells it: status and body."""
    info = services.models.default.info
    if info is None:
        return _not("loading", "model: it is still loading")
    status, body = live(services)
    if status == 200 and info.chat_problem:
        body = orjson.dumps({"status": "ok", "chat_problem": info.chat_problem})
    return status, body


def live(services: Services) -> tuple[int, bytes]:
    """Whether only a restart would help: as systemd's watchdog."""
    if stuck := services.stuck():
        told = "; ".join(f"the {name} thread has not advanced for {time:.0f} s" for name, time in stuck.items())
        return _not("stuck", f"server: {told}: restart it if this persists", threads=stuck)
    return 200, b'{"status":"ok"}'


def ready(services: Services) -> tuple[int, bytes]:
    """Whether requests for the default model would be served, and ticks advance. Other models are loaded for those who
    wait, or where there is room, so nobody may be kept away for them."""
    default = services.models.default
    if services.leaving():
        return _not("draining", "server: it is shutting down")
    if default.info is not None and default.recovers:
        return _not("loading", "model: its engine process has ended, and a new one is starting")
    # One tick runs at a time, whatever model it is of.
    if hung := [host.name for host in services.models if host.hangs(WEDGED_S)]:
        return _not("stuck", f"model: a call to the engine of {hung[0]} does not return")
    return health(services)


def _not(status: str, message: str, **more: Mapping[str, Any]) -> tuple[int, bytes]:
    return 503, orjson.dumps({"status": status, "error": {"message": message, "code": 503}, **more})
