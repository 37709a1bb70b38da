"""The service manager's protocols: readiness, watchdog, socket activation.

No library is used: the protocols are a few environment variables and one datagram. Without those variables, that is
without a manager, each function does nothing.
"""

from __future__ import annotations

import itertools
import logging
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping

from umaserve.core.errors import ConfigError

logger = logging.getLogger(__name__)

_FIRST_FD = 3
_SEND_TIMEOUT_S = 1.0
_SYSTEMCTL_S = 5.0


def notify(message: str) -> None:
    """Send the manager NAME=VALUE lines: ``READY=1``, ``STOPPING=1``, ``WATCHDOG=1``, ``STATUS=some words``.

    Errors are logged, not raised. Protocol: sd_notify(3), NOTIFY_SOCKET.
    """
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    # "@" stands for the NUL byte at the start of an abstract address.
    target = "\0" + address[1:] if address.startswith("@") else address
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            # Called on the loop: a manager that hangs must not block the clients.
            sender.settimeout(_SEND_TIMEOUT_S)
            sender.sendto(message.encode(errors="replace"), target)
    except OSError as error:
        logger.warning("can't notify the service manager at %s: %s", address, error)


def notify_stopping(within_s: float) -> None:
    """Tell the manager that the program ends, and within which time: it waits so long even where its own limit,
    ``TimeoutStopSec=``, is less."""
    notify(f"STOPPING=1\nSTATUS=draining\nEXTEND_TIMEOUT_USEC={within_s * 1_000_000:.0f}")


def is_service() -> bool:
    """Whether a service manager has started this program (sd_notify(3), sd_listen_fds(3), systemd.exec(5))."""
    if "NOTIFY_SOCKET" in os.environ or "LISTEN_FDS" in os.environ:
        return True
    # A desktop's terminal may run in a unit, whose variables reach all that people start in it.
    return "INVOCATION_ID" in os.environ and not any(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))


def unit(name: str, properties: Collection[str]) -> Mapping[str, str]:
    """Properties of an installed unit, as systemctl(1) shows them; empty where there is no such unit, or no systemd."""
    command = ["systemctl", "show", "--property", ",".join({"LoadState", *properties}), "--", name]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=_SYSTEMCTL_S, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    values = dict(line.split("=", 1) for line in found.splitlines() if "=" in line)
    return values if values.get("LoadState") == "loaded" else {}


def watchdog_interval() -> float | None:
    """Seconds between two ``WATCHDOG=1``, half of the manager's limit; None where there is no watchdog.

    Raises ConfigError for a malformed variable.
    Protocol: sd_watchdog_enabled(3), WATCHDOG_USEC and WATCHDOG_PID.
    """
    limit_us, pid = _number("WATCHDOG_USEC"), _number("WATCHDOG_PID")
    if limit_us is None or pid not in (None, os.getpid()):
        return None
    return limit_us / 2 / 1_000_000


def feed_watchdog(
    call_later: Callable[[float, Callable[[], None]], object], stuck: Callable[[], Collection[str]]
) -> None:
    """Send ``WATCHDOG=1`` from a timer of the loop where the manager has a watchdog, except while ``stuck`` names
    threads: a hung loop or thread stops it. Raises ConfigError as `watchdog_interval`."""
    interval = watchdog_interval()
    if interval is not None:
        if not stuck():
            notify("WATCHDOG=1")
        call_later(interval, lambda: feed_watchdog(call_later, stuck))


def listen_fds() -> list[tuple[str, socket.socket]]:
    """The (name, socket) pairs that the manager passed to this process, non-blocking and close-on-exec.

    A socket without a name is called "unknown". The variables are unset, so that no child process takes the sockets for
    its own; a second call finds none. Raises ConfigError for a malformed variable and for a descriptor that isn't a
    listening stream socket.
    Protocol: sd_listen_fds_with_names(3), LISTEN_PID, LISTEN_FDS and LISTEN_FDNAMES.
    """
    try:
        pid, count = _number("LISTEN_PID"), _number("LISTEN_FDS")
        names = os.environ.get("LISTEN_FDNAMES")
    finally:
        for variable in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"):
            os.environ.pop(variable, None)
    if count is None or pid != os.getpid():
        return []
    if names is not None and names.count(":") + 1 != count:
        raise ConfigError(f"environment LISTEN_FDNAMES: expected {count} names, got {names!r}")
    named = itertools.repeat("unknown") if names is None else names.split(":")
    fds = range(_FIRST_FD, _FIRST_FD + count)
    return [(name, _listener(fd, name)) for fd, name in zip(fds, named, strict=False)]


def _number(variable: str) -> int | None:
    text = os.environ.get(variable)
    if text is None:
        return None
    # int() alone would accept signs, spaces and underscores.
    if not re.fullmatch("[1-9][0-9]{0,18}", text):
        raise ConfigError(f"environment {variable}: expected a whole number above 0, got {text!r}")
    return int(text)


def _listener(fd: int, name: str) -> socket.socket:
    passed = f"descriptor {fd} from the service manager, {name!r}"
    try:
        listener = socket.socket(fileno=fd)
    except OSError as error:
        raise ConfigError(f"{passed}: {error.strerror}") from None
    # Checked separately: SEQPACKET sockets can listen too.
    accepts = listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    if listener.type != socket.SOCK_STREAM or not accepts:
        raise ConfigError(f"{passed}: not a listening stream socket")
    listener.set_inheritable(False)
    listener.setblocking(False)
    return listener
