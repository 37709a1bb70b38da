"""The Unix socket's file, lock and mode; and the accepting of connections, which pauses when descriptors run out."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import math
import os
import socket
import stat
from collections.abc import Callable

from umaserve.core.errors import ConfigError
from umaserve.net.loop import READ, Loop
from umaserve.system.unix_sockets import MAX_PATH_BYTES, bind

log = logging.getLogger(__name__)

ACCEPTS_PER_TURN = 64
PAUSE_S = 0.2
COMPLAIN_EVERY_S = 60.0
BACKLOG = 1024
_LOST_IN_QUEUE = {
    errno.ECONNABORTED,
    errno.EPROTO,
    errno.ENETDOWN,
    errno.ENETUNREACH,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
    errno.ENOPROTOOPT,
    errno.EOPNOTSUPP,
    errno.EPERM,
    getattr(errno, "ENONET", errno.ENETUNREACH),
}
"""Errors of accept(2) that concern one connection, not the listening socket. Only Linux has ENONET."""
_ADVICE = {
    errno.EMFILE: "raise this program's limit of open files (ulimit -Hn, LimitNOFILE=), or lower its connections'",
    errno.ENFILE: "raise the system's limit of open files (sysctl fs.file-max)",
}


class SocketFile:
    """A bound, listening socket at ``path``, whose file at no moment has wider permissions than ``mode``.

    A lock on ``path``.lock tells a stale file, which is replaced, from a live one, which raises ``ConfigError``.
    """

    def __init__(self, path: str, mode: int) -> None:
        self.path = path
        if len(os.fsencode(path)) > MAX_PATH_BYTES:
            raise ConfigError(
                f"socket {path}: the path is {len(os.fsencode(path))} bytes long, the kernel allows {MAX_PATH_BYTES}: "
                "choose a shorter one with --socket"
            )
        try:
            self._lock_fd = _lock(f"{path}.lock", path)
            try:
                _remove_stale(path)
                self.socket = _bind(path, mode)
            except BaseException:
                self._unlock()
                raise
        except OSError as error:
            raise ConfigError(
                f"socket {path}: {error.strerror}: choose a path you may write to with --socket"
            ) from error
        self._inode = os.stat(path).st_ino

    def remove(self) -> None:
        """Unlink the socket's file and its lock, if they are still ours; a second call does nothing. A file that can't
        be removed stays, and the next daemon replaces it as stale."""
        if self._lock_fd < 0:
            return
        try:
            if not _unlink_own(self.path, self._inode):
                log.warning("socket %s: another program has removed it", self.path)
        except OSError as error:
            log.warning("socket %s: can't be removed: %s", self.path, error.strerror)
        self._unlock()

    def _unlock(self) -> None:
        # A second signal removes the files too, wherever the first one has got.
        lock, self._lock_fd = self._lock_fd, -1
        if lock < 0:
            return
        with contextlib.suppress(OSError):
            _unlink_own(f"{self.path}.lock", os.fstat(lock).st_ino)
        os.close(lock)


def _unlink_own(path: str, inode: int) -> bool:
    """Remove the file if it still is the one with ``inode``; returns whether it was."""
    try:
        own = os.lstat(path).st_ino == inode
    except FileNotFoundError:
        return False
    if own:
        os.unlink(path)
    return own


def _lock(lock_path: str, path: str) -> int:
    while True:
        fd = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # A daemon that ended between our open and flock removed this file: lock the one that is there now.
            with contextlib.suppress(FileNotFoundError):
                if os.lstat(lock_path).st_ino == os.fstat(fd).st_ino:
                    os.truncate(fd, 0)
                    os.write(fd, f"{os.getpid()}\n".encode())
                    return fd
        except BlockingIOError:
            holder = os.read(fd, 32).decode(errors="replace").strip() or "unknown"
            os.close(fd)
            raise ConfigError(
                f"socket {path}: a running umaserve (pid {holder}) serves it: stop that one, or choose another path "
                "with --socket"
            ) from None
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _remove_stale(path: str) -> None:
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"socket {path}: it exists and is not a socket: move it, or choose another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        # Only ECONNREFUSED proves it dead: a live one of another type gives EPROTOTYPE, one without permission EACCES.
        if probe.connect_ex(path) != errno.ECONNREFUSED:
            raise ConfigError(f"socket {path}: another program listens on it: stop that one, or choose another path")
    os.unlink(path)


def _bind(path: str, mode: int) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        bind(sock, path, mode)
        sock.listen(BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock


def _set_tcp_options(sock: socket.socket) -> None:
    try:
        # Tokens are small, and must not wait for more data (Nagle's algorithm).
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    except OSError as error:
        # The peer has left already, which the channel will notice.
        log.debug("setting the options of an accepted socket failed: %s", error)


class Listener:
    """Accepts from one listening socket and hands each connection to ``accepted``."""

    def __init__(self, loop: Loop, sock: socket.socket, accepted: Callable[[socket.socket], None]) -> None:
        self._loop = loop
        self._sock = sock
        self._accepted = accepted
        self._complain_at = -math.inf
        sock.setblocking(False)
        self._resume()

    def _resume(self) -> None:
        if self._sock.fileno() >= 0:
            self._loop.set_interest(self._sock, READ, self._on_ready)

    def _on_ready(self, _events: int) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            if self._sock.fileno() < 0:
                return  # Closed by an earlier callback.
            try:
                sock, _address = self._sock.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _LOST_IN_QUEUE:
                    log.debug("a connection was lost before it was accepted: %s", error)
                    continue
                self._pause(error)
                return
            if sock.family != socket.AF_UNIX:
                _set_tcp_options(sock)
            try:
                self._accepted(sock)
            except Exception:
                log.exception("closed: internal error while accepting the connection")
                sock.close()

    def _pause(self, error: OSError) -> None:
        """Stop accepting for ``PAUSE_S``, mostly since no descriptor is left. The pending connection keeps the socket
        readable, so that polling it would spin."""
        if self._loop.now() >= self._complain_at:
            self._complain_at = self._loop.now() + COMPLAIN_EVERY_S
            advice = _ADVICE.get(error.errno or 0, "clients wait until others have disconnected")
            log.warning("accepting connections is paused: %s: %s", error.strerror, advice)
        self._loop.set_interest(self._sock, 0, self._on_ready)
        self._loop.call_later(PAUSE_S, self._resume)

    def close(self) -> None:
        self._loop.set_interest(self._sock, 0, self._on_ready)
        self._sock.close()
