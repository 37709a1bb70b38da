"""A folder of saved sequences under names that operators give them: links to whole files of the disk cache."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from umaserve.core.errors import Fault, RequestError
from umaserve.engine.files import disk_file
from umaserve.engine.files.disk_file import Damaged, Kind
from umaserve.engine.files.disk_folder import DiskFolder, opened_folder
from umaserve.sessions.engine_api import Kept, NamedFile

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
"""No separator, and no dot at the beginning: nothing outside the folder, and nothing hidden."""


class SlotFolder:
    """The named sequences in ``path``, at most ``max_bytes`` of them, and the disk cache's ``folder``. The files are
    the same, and never change, so that a sequence with a name takes the disk's space once, and stays when the disk
    cache parts with it. Used by one thread. All methods raise ``RequestError``."""

    def __init__(self, path: str, max_bytes: int, kind: Kind, folder: DiskFolder) -> None:
        """Raises ``OSError`` as ``DiskFolder``."""
        self._max_bytes = max_bytes
        self._kind = kind
        self._folder = folder
        self._fd = opened_folder(path)

    def give_name(self, kept: str, filename: str) -> int:
        """Give a sequence of the disk cache a name, which another one loses that had it; the file's bytes."""
        part = f".{_checked(filename)}.{os.getpid()}.part"
        with _telling(filename):
            size = os.stat(kept, dir_fd=self._folder.descriptor, follow_symlinks=False).st_size
            if self._used_bytes() + size > self._max_bytes:
                problem = f"the files in this folder may have {self._max_bytes} bytes (kv_cache_bytes): delete some"
                raise RequestError(Fault.BAD_REQUEST, "filename", problem)
            with suppress(FileNotFoundError):
                os.unlink(part, dir_fd=self._fd)
            os.link(kept, part, src_dir_fd=self._folder.descriptor, dst_dir_fd=self._fd, follow_symlinks=False)
            os.rename(part, filename, src_dir_fd=self._fd, dst_dir_fd=self._fd)
            with suppress(FileNotFoundError):
                os.unlink(part, dir_fd=self._fd)  # Nothing was renamed where both were the same file.
        return size

    def take_back(self, filename: str) -> NamedFile:
        """Put the sequence of that name into the disk cache again."""
        with _telling(_checked(filename)):
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(filename, flags, dir_fd=self._fd)
            try:
                status = os.fstat(descriptor)
                if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
                    raise Damaged("it is not a file of this user")
                head = disk_file.read_head(descriptor, None, self._kind)
            finally:
                os.close(descriptor)
            name = disk_file.name_of(self._kind, head.scope, head.tokens)
            self._folder.take_in(filename, self._fd, name, status.st_size, len(head.tokens))
        return NamedFile(Kept(name, head.scope.hex(), head.tokens), status.st_size)

    def close(self) -> None:
        os.close(self._fd)

    def _used_bytes(self) -> int:
        with os.scandir(self._fd) as entries:
            return sum(entry.stat(follow_symlinks=False).st_size for entry in entries)


def _checked(filename: str) -> str:
    if not _NAME.fullmatch(filename):
        expected = "1 to 128 letters, digits, underscores, hyphens and dots, no dot first"
        raise RequestError(Fault.BAD_REQUEST, "filename", f'expected {expected}, got "{filename[:32]}"')
    return filename


@contextmanager
def _telling(filename: str) -> Iterator[None]:
    """Raise ``RequestError`` for what is wrong with a file."""
    try:
        yield
    except FileNotFoundError:
        problem = f'there is no "{filename}" in slot_save_path, or the disk cache has just parted with the sequence'
        raise RequestError(Fault.NOT_FOUND, "filename", problem) from None
    except Damaged as error:
        raise RequestError(Fault.BAD_REQUEST, "filename", f'"{filename}" can\'t be restored: {error}') from None
    except OSError as error:
        why = error.strerror or str(error)
        if error.errno == errno.EXDEV:
            why = "slot_save_path has to be on the file system of kv_cache"
        raise RequestError(Fault.BAD_REQUEST, "filename", f'"{filename}": {why}') from None
