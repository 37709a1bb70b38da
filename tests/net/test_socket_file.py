"""The file of a Unix socket that somebody listens on."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from umaserve.core.errors import ConfigError
from umaserve.net.listeners import SocketFile


def path_in(directory: Path) -> str:
    return str(directory / "uma.sock")


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077, 0o777])
@pytest.mark.parametrize("mode", [0o660, 0o600, 0o666])
def test_the_mode_is_exact_and_never_wider(
    mode: int, umask: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = path_in(tmp_path)
    real_chmod = os.chmod
    before: list[int] = []

    def chmod(name: str, to: int) -> None:
        before.append(stat.S_IMODE(os.stat(name).st_mode))
        real_chmod(name, to)

    monkeypatch.setattr(os, "chmod", chmod)
    previous = os.umask(umask)
    try:
        file = SocketFile(path, mode)
    finally:
        os.umask(previous)
    assert before == [mode & ~umask]
    assert stat.S_IMODE(os.stat(path).st_mode) == mode
    assert stat.S_IMODE(os.stat(f"{path}.lock").st_mode) & ~0o600 == 0
    file.socket.close()
    file.remove()


def test_it_listens_and_leaves_nothing_behind(tmp_path: Path) -> None:
    file = SocketFile(path_in(tmp_path), 0o660)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(file.path)
    assert not file.socket.getblocking()
    file.socket.close()
    file.remove()
    assert os.listdir(tmp_path) == []


def test_a_stale_socket_is_replaced(tmp_path: Path) -> None:
    path = path_in(tmp_path)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)
        dead.listen()
    (tmp_path / "uma.sock.lock").write_text("999999\n")
    file = SocketFile(path, 0o660)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
    assert (tmp_path / "uma.sock.lock").read_text() == f"{os.getpid()}\n"
    file.socket.close()
    file.remove()


def test_a_live_one_is_refused_and_named(tmp_path: Path) -> None:
    file = SocketFile(path_in(tmp_path), 0o660)
    before = sorted(os.listdir(tmp_path))
    for _ in range(2):
        with pytest.raises(ConfigError, match=rf"uma\.sock.*pid {os.getpid()}\b.*--socket"):
            SocketFile(file.path, 0o660)
    assert sorted(os.listdir(tmp_path)) == before
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(file.path)
    file.socket.close()
    file.remove()
    SocketFile(file.path, 0o660).socket.close()


@pytest.mark.parametrize("type_", [socket.SOCK_STREAM, socket.SOCK_SEQPACKET, socket.SOCK_DGRAM])
def test_another_programs_socket_is_refused(type_: socket.SocketKind, tmp_path: Path) -> None:
    path = path_in(tmp_path)
    with socket.socket(socket.AF_UNIX, type_) as foreign:
        foreign.bind(path)
        if type_ != socket.SOCK_DGRAM:
            foreign.listen(0)
        inode = os.stat(path).st_ino
        # The second try finds the listener's queue full.
        for _ in range(3):
            with pytest.raises(ConfigError, match="another program"):
                SocketFile(path, 0o660)
        assert os.stat(path).st_ino == inode
        assert os.listdir(tmp_path) == ["uma.sock"]


def make_file(path: Path) -> None:
    path.write_text("precious")


@pytest.mark.parametrize("make", [make_file, Path.mkdir, os.mkfifo, lambda path: path.symlink_to("elsewhere")])
def test_what_is_no_socket_is_refused_and_untouched(make: Callable[[Path], None], tmp_path: Path) -> None:
    path = tmp_path / "uma.sock"
    make(path)
    before = os.lstat(path)
    with pytest.raises(ConfigError, match="is not a socket"):
        SocketFile(str(path), 0o660)
    after = os.lstat(path)
    assert (after.st_ino, after.st_mode, after.st_mtime_ns) == (before.st_ino, before.st_mode, before.st_mtime_ns)
    assert os.listdir(tmp_path) == ["uma.sock"]


def test_the_longest_path_and_one_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # Bytes count, not characters.
    longest = "ö" * 53 + "x"
    file = SocketFile(longest, 0o660)
    file.socket.close()
    file.remove()
    with pytest.raises(ConfigError, match=r"108 bytes long, the kernel allows 107.*--socket"):
        SocketFile(longest + "x", 0o660)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("parent", ["missing", "file"])
def test_a_directory_that_is_none(parent: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=rf"{parent}/uma\.sock: (No such file|Not a directory).*--socket"):
        SocketFile(str(tmp_path / parent / "uma.sock"), 0o660)


@pytest.mark.parametrize("what", ["uma.sock", "uma.sock.lock"])
@pytest.mark.parametrize("replaced", [False, True])
def test_remove_takes_only_our_own(what: str, replaced: bool, tmp_path: Path) -> None:
    file = SocketFile(path_in(tmp_path), 0o660)
    os.unlink(tmp_path / what)
    if replaced:
        (tmp_path / what).write_text("somebody else's")
    file.socket.close()
    file.remove()
    assert os.listdir(tmp_path) == ([what] if replaced else [])
    # A second signal may come in the middle of the end.
    file.remove()
    assert os.listdir(tmp_path) == ([what] if replaced else [])


def test_a_second_signal_may_come_while_the_files_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = SocketFile(path_in(tmp_path), 0o660)
    unlink = os.unlink

    def interrupted(path: str) -> None:
        unlink(path)
        file.remove()

    monkeypatch.setattr(os, "unlink", interrupted)
    file.socket.close()
    file.remove()
    assert os.listdir(tmp_path) == []


def test_a_socket_file_that_cannot_be_removed_is_logged_and_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = SocketFile(path_in(tmp_path), 0o660)

    def refuse(_path: str) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as patched:
        patched.setattr(os, "unlink", refuse)
        file.remove()
    assert "can't be removed: Read-only file system" in caplog.text
    file.socket.close()
    again = SocketFile(path_in(tmp_path), 0o660)
    again.socket.close()
    again.remove()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("recreated", [False, True])
def test_a_lock_that_changes_between_open_and_flock(
    recreated: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = tmp_path / "uma.sock.lock"
    real_flock = fcntl.flock
    calls: list[int] = []

    def flock(fd: int, operation: int) -> None:
        calls.append(fd)
        if len(calls) == 1:
            lock.unlink()
            if recreated:
                lock.touch()
        real_flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    file = SocketFile(path_in(tmp_path), 0o660)
    # Holding the lock of a file that nobody can find any more would let a second daemon in.
    with pytest.raises(ConfigError, match="running umaserve"):
        SocketFile(file.path, 0o660)
    file.socket.close()
    file.remove()


def test_a_failure_after_the_lock_gives_it_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def chmod(name: str, to: int) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    with monkeypatch.context() as patch:
        patch.setattr(os, "chmod", chmod)
        with pytest.raises(ConfigError, match="Operation not permitted"):
            SocketFile(path_in(tmp_path), 0o660)
    assert not (tmp_path / "uma.sock.lock").exists()
    file = SocketFile(path_in(tmp_path), 0o660)
    file.socket.close()
    file.remove()
