"""Redis or Valkey, as its package has it: in memory only, at a free port of loopback."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from pathlib import Path

import redis
from redis.backoff import ConstantBackoff
from redis.retry import Retry

PROGRAM = shutil.which("redis-server") or shutil.which("valkey-server")
MISSING = "there is no redis-server and no valkey-server: scripts/peers installs one"
START_S = 30.0


class RedisServer:
    """One server; its connections are those of ``client``, and of whom a test gives its ``url``."""

    def __init__(self, folder: Path, cert: Path | None = None, key: Path | None = None) -> None:
        """With a certificate and its key it uses TLS."""
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port: int = probe.getsockname()[1]
        self.url = f"{'redis' if cert is None else 'rediss'}://127.0.0.1:{self.port}"
        port = str(self.port)
        self._flags = ["--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
        if cert is None:
            self._flags += ["--port", port]
        else:
            files = ("--tls-cert-file", str(cert), "--tls-key-file", str(key), "--tls-auth-clients", "no")
            self._flags += ["--port", "0", "--tls-port", port, *files]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        assert PROGRAM is not None
        self._process = subprocess.Popen([PROGRAM, *self._flags], stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + START_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
                return
            except ConnectionRefusedError:
                assert time.monotonic() < deadline, "it does not start"
                time.sleep(0.01)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def client(self, password: str | None = None) -> redis.Redis:
        return redis.Redis(port=self.port, password=password, protocol=2, retry=Retry(ConstantBackoff(0.1), 10))
