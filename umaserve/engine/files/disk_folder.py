"""A folder of saved sequences, which several daemons of one user may share: whole files only, the least recently used
removed first."""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from umaserve.engine.files import disk_file
from umaserve.engine.files.disk_file import Damaged, Kind
from umaserve.sessions.engine_api import Kept, Listing

log = logging.getLogger(__name__)

MAX_TOLD_TOKENS = 1 << 16
"""The most tokens that one listing tells, unless a single sequence has more: the loop takes them in at once."""
MAX_KNOWN_TOKENS = 1 << 22
"""The most tokens that all listings tell: they take some 40 bytes each in the daemon. Older sequences are not found."""
ABANDONED_S = 600.0
"""Seconds without a write after which a file that is not whole is one that a killed daemon has left."""

_NAME = re.compile(r"[0-9a-f]{32}\.[0-9a-f]{32}\.kv")
_PART = re.compile(r"\.[0-9a-f]{32}\.[0-9a-f]{32}\.kv\.\d+\.\d+\.part")
"""Names of files that are not whole yet. Files with neither form of name are somebody else's, and stay."""


class DiskFolder:
    """The sequences in ``path``, at most ``max_bytes`` of them. Used by one thread. What can't be read or written costs
    nothing but itself: it is logged, each kind of failure once. Raises ``OSError`` where the folder can't be made, or
    others may write to it."""

    def __init__(self, path: str, max_bytes: int, kind: Kind) -> None:
        self._max_bytes = max_bytes
        self._kind = kind
        self._path = path
        self._told: dict[str, int] = {}
        """Names that listings have told, with their numbers of tokens."""
        self._complained: set[str] = set()
        self._errors = 0
        """Number of failures since the last listing."""
        self._parts = itertools.count()
        self._fd = opened_folder(path)

    @property
    def descriptor(self) -> int:
        return self._fd

    def look(self) -> Listing:
        """List what has changed since the last call."""
        listing = self._list()
        errors, self._errors = self._errors, 0
        return replace(listing, errors=errors)

    def _list(self) -> Listing:
        found: dict[str, os.stat_result] = {}
        with self._complaining():
            found = self._files()
        gone = [name for name in self._told if name not in found]
        for name in gone:
            del self._told[name]
        new: list[Kept] = []
        used = sum(status.st_size for status in found.values())
        ours = f"{self._kind.model.hex()}."
        unknown = [name for name in _newest(found) if name.startswith(ours) and name not in self._told]
        for name in unknown:
            if sum(self._told.values()) > MAX_KNOWN_TOKENS:
                break
            if sum(len(kept.tokens) for kept in new) > MAX_TOLD_TOKENS:
                return Listing(new, gone, used, more=True)
            head = None
            with self._complaining(name), self._opened(name) as descriptor:
                head = disk_file.read_head(descriptor, name, self._kind)
            if head is not None:
                new.append(Kept(name, head.scope.hex(), head.tokens))
                self._told[name] = len(head.tokens)
        return Listing(new, gone, used)

    def keep(
        self,
        scope: str,
        tokens: Sequence[int],
        data: memoryview,
        replaced: Sequence[str],
        wanted: Callable[[], bool],
    ) -> str | None:
        """Write a sequence as long as that is ``wanted``, then remove the ``replaced`` files; its name, or ``None``
        where it is not kept."""
        key = bytes.fromhex(scope)
        name = disk_file.name_of(self._kind, key, tokens)
        part = f".{name}.{os.getpid()}.{next(self._parts)}.part"
        with self._complaining():
            if not self._make_room(disk_file.file_bytes(len(tokens), len(data))):
                return None
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(part, flags, 0o600, dir_fd=self._fd)
            try:
                try:
                    whole = disk_file.write(descriptor, self._kind, key, tokens, data, wanted)
                finally:
                    os.close(descriptor)
                if whole:
                    os.rename(part, name, src_dir_fd=self._fd, dst_dir_fd=self._fd)
                    for other in replaced:
                        self._remove(other)
                    self._told[name] = len(tokens)
                    return name
            finally:
                self._unlink(part)
        return None

    def fetch(self, name: str, target: memoryview, wanted: Callable[[], bool]) -> bool:
        """Read the data of a sequence as long as that is ``wanted``; returns whether ``target`` holds it."""
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r:.80} is not the name of a sequence")
        whole = False
        with self._complaining(name), self._opened(name) as descriptor:
            head = disk_file.read_head(descriptor, name, self._kind)
            if self._kind.saved_bytes.of(len(head.tokens)) != len(target):
                raise ValueError(f"{len(target)} bytes for {len(head.tokens)} tokens")
            whole = disk_file.read_data(descriptor, head, target, wanted)
            with contextlib.suppress(OSError):
                os.utime(descriptor)  # Used: it goes later.
        return whole

    def take_in(self, source: str, folder: int, name: str, size: int, tokens: int) -> None:
        """Add the file ``source`` of another folder (its descriptor) as the sequence ``name`` of so many tokens, whose
        head was checked. Raises ``OSError``."""
        if not self._make_room(size):
            raise OSError(errno.EFBIG, "it is larger than kv_cache_bytes")
        with contextlib.suppress(FileExistsError):
            os.link(source, name, src_dir_fd=folder, dst_dir_fd=self._fd, follow_symlinks=False)
        self._told[name] = tokens

    def close(self) -> None:
        os.close(self._fd)

    def _files(self) -> dict[str, os.stat_result]:
        """All sequences of ours, of any model. Removes what a killed daemon has left."""
        found = {}
        with os.scandir(self._fd) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
                        continue
                    if _NAME.fullmatch(entry.name):
                        found[entry.name] = status
                    elif _PART.fullmatch(entry.name) and time.time() - status.st_mtime > ABANDONED_S:
                        self._unlink(entry.name)
        return found

    def _make_room(self, size: int) -> bool:
        """Remove what was used longest ago until ``size`` bytes more are within the limit; whether they can be."""
        if size > self._max_bytes:
            return False
        found = self._files()
        used = sum(status.st_size for status in found.values())
        for name in reversed(_newest(found)):
            if used + size <= self._max_bytes:
                break
            self._remove(name)
            used -= found[name].st_size
        return True

    def _remove(self, name: str) -> None:
        if _NAME.fullmatch(name):
            self._unlink(name)

    def _unlink(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._fd)

    @contextlib.contextmanager
    def _opened(self, name: str) -> Iterator[int]:
        """The descriptor of a file that nobody else can have written. A damaged one is removed."""
        try:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(name, flags, dir_fd=self._fd)
        except FileNotFoundError:
            raise _Vanished from None
        try:
            status = os.fstat(descriptor)
            others = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or others:
                raise PermissionError("it is another user's, or others may write to it")
            yield descriptor
        except Damaged:
            self._remove(name)
            raise
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def _complaining(self, name: str = "") -> Iterator[None]:
        """Log what goes wrong, and go on after the block."""
        try:
            yield
        except _Vanished:
            self._told.pop(name, None)  # Another daemon has removed it.
        except Damaged as error:
            self._told.pop(name, None)
            self._errors += 1
            log.warning("kv_cache: removed %s: %s", name, error)
        except OSError as error:
            self._errors += 1
            why = error.strerror or str(error)
            if why not in self._complained:
                self._complained.add(why)
                log.warning("kv_cache %s: %s (logged once)", name or self._path, why)


def opened_folder(path: str) -> int:
    """A descriptor of a folder of this user, which is made if there is none. Raises ``OSError`` where that fails, or
    others may write to it."""
    os.makedirs(path, mode=0o700, exist_ok=True)
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    status = os.fstat(descriptor)
    if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        os.close(descriptor)
        raise PermissionError(f"{path} belongs to another user, or others may write to it")
    return descriptor


class _Vanished(Exception):
    """Raised for a file that is not there any more."""


def _newest(found: dict[str, os.stat_result]) -> list[str]:
    """The names, the one used last first."""
    return sorted(found, key=lambda name: (found[name].st_mtime_ns, name), reverse=True)
