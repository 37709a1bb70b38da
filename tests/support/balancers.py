"""HAProxy and nginx in front of daemons, with the lines of ``conf/``."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

CONF = Path(__file__).parents[2] / "conf"
READY_S = 30
_NGINX = """\
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log warn;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/umaserve.conf;
}}
"""


def free_ports(n: int) -> list[int]:
    """Ports of the loopback address that nobody listens on."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(n)]
        return [each.getsockname()[1] for each in sockets]


def replaced(text: str, values: Mapping[str, str]) -> str:
    for old, new in values.items():
        assert old in text, old
        text = text.replace(old, new)
    return text


@contextlib.contextmanager
def balancer(program: str, folder: Path, port: int, daemons: tuple[int, int]) -> Iterator[None]:
    """``program`` at ``port`` until the end of the block, with our lines but for the ports and shorter pauses."""
    places = {"127.0.0.1:8080": f"127.0.0.1:{daemons[0]}", "127.0.0.1:8081": f"127.0.0.1:{daemons[1]}"}
    if program == "haproxy":
        file = folder / "haproxy.cfg"
        changes = {"bind :8000": f"bind 127.0.0.1:{port}", "inter 1s": "inter 200ms", **places}
        file.write_text(replaced((CONF / "haproxy.cfg").read_text(), changes))
        command = ["haproxy", "-db", "-f", str(file)]
    else:
        changes = {"listen 8000": f"listen 127.0.0.1:{port}", **places}
        (folder / "umaserve.conf").write_text(replaced((CONF / "nginx.conf").read_text(), changes))
        (folder / "nginx.conf").write_text(_NGINX.format(folder=folder))
        command = ["nginx", "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", str(folder / "error.log")]
    with (folder / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            _wait(process, port, folder / "log")
            yield
        finally:
            process.terminate()


def _wait(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    until = time.monotonic() + READY_S
    while True:
        assert process.poll() is None, log.read_text()
        with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
            return
        assert time.monotonic() < until, log.read_text()
        time.sleep(0.05)
