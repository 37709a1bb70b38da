"""An engine behind sockets, as behind those of its process, on threads of the test's own."""

from __future__ import annotations

import socket
import threading

from umaserve.remote.channel import Channel
from umaserve.remote.client import RemoteEngine
from umaserve.remote.run_ahead import Granted
from umaserve.remote.server import Server
from umaserve.sessions.engine_api import Allowance, Engine
from umaserve.settings.daemon import Config
from umaserve.speech.voice import Voice

ALLOWANCE = Allowance(1 << 40, beside=False)


def remote_engine(
    engine: Engine, threads: int = 1, server: Server | None = None, voice: Voice | None = None
) -> RemoteEngine:
    """What the daemon sees of ``engine``; ``threads`` may call it."""
    server = server or serving(engine, voice)
    channels = []
    for _ in range(threads):
        ours, theirs = socket.socketpair()
        channels.append(Channel(ours))
        threading.Thread(target=server.serve, args=(Channel(theirs),), daemon=True).start()
    return RemoteEngine(channels, Config(), None, ALLOWANCE, lambda _fraction: True)


def serving(engine: Engine, voice: Voice | None = None, granted: Granted | None = None) -> Server:
    return Server(lambda *_how: (engine, voice), granted)
