"""The converted copy of a model's file, in a folder with those of other models, and which way to load it was chosen.

The daemons of a user share the folder: files get their names when they are whole, and whoever makes one holds a lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from umaserve.system import folders
from umaserve.system.program import Cancelled

log = logging.getLogger(__name__)

MAX_COPIES = 4
"""Copies that the folder keeps, those used last; each is as large as a model."""
MAX_RECORDS = 64
MAX_WAIT_S = 900.0
"""How long to wait for another daemon that makes a copy, in seconds."""
_POLL_S = 0.1
_OURS = re.compile(r".+\.[0-9a-f]{16}\.(gguf|json|part)")
"""Names of the daemons' files. Other files in the folder are somebody else's, and stay."""


def folder_of(configured: str, environ: Mapping[str, str]) -> Path:
    """The configured folder, else one in the cache folder. Raises ``OSError`` where the user has no home."""
    return Path(configured) if configured else folders.cache(environ) / "weights"


class ConvertedCopy:
    """The copy of the model at ``source`` in ``folder``, and the verdict: which value of the setting ``weights`` is the
    fastest, or why the copy can't be made.

    The copy is of one state of the file (its size and modification time), the verdict also of one ``box``, any JSON,
    and a failure of one ``converter``, any JSON. All methods raise ``OSError``, in particular where strangers may write
    to the folder.
    """

    def __init__(
        self, folder: Path, source: str, box: Mapping[str, object], converter: Mapping[str, str | int]
    ) -> None:
        self.folder = folder
        path = os.path.realpath(source)
        status = os.stat(path)
        self._file = {"path": path, "size": status.st_size, "mtime_ns": status.st_mtime_ns}
        self._box = dict(box)
        self._converter = dict(converter)
        name = f"{Path(source).stem[:50]}.{hashlib.sha256(path.encode()).hexdigest()[:16]}"
        self.path = folder / f"{name}.gguf"
        self.part = folder / f"{name}.part"
        """Path where the copy is written, until ``adopt``."""
        self.record = folder / f"{name}.json"
        """Path of the verdict, which holds until this file is removed."""

    def exists(self) -> bool:
        """Whether there is a copy, as it was adopted."""
        match self._recorded():
            case {"file": file, "copy": [*copy]} if file == self._file and copy == self._size_and_time():
                self._used()
                return True
        return False

    def chosen(self) -> tuple[str, str] | None:
        """The verdict ("as-is", "mapped" or "converted") and why; ``None`` where it is unknown, and where the copy that
        it is for was changed or removed since."""
        match self._recorded():
            case {"file": file, "box": box, "chosen": str(chosen), "why": str(why)} if (file, box) == (
                self._file,
                self._box,
            ):
                if chosen == "converted" and not self.exists():
                    return None
                self._used()
                return chosen, why
        return None

    def failure(self) -> str | None:
        """Why the converter failed; ``None`` where it did not, or was not tried."""
        match self._recorded():
            case {"file": file, "failed": converter, "why": str(why)} if (file, converter) == (
                self._file,
                self._converter,
            ):
                return why
        return None

    @contextlib.contextmanager
    def locked(self, wanted: Callable[[], bool]) -> Iterator[None]:
        """Make the folder and hold its lock. Waits for another daemon, ``MAX_WAIT_S`` at most; raises ``Cancelled``
        where that is no longer ``wanted``."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._check_folder()
        with open(self.folder / "lock", "ab") as file:
            until = time.monotonic() + MAX_WAIT_S
            waits = False
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if not waits:
                        log.info("another daemon is converting weights in %s: waiting for it", self.folder)
                        waits = True
                if not wanted():
                    raise Cancelled
                if time.monotonic() > until:
                    raise TimeoutError(
                        f"another daemon has been converting weights in {self.folder} for {MAX_WAIT_S:.0f} s"
                    )
                time.sleep(_POLL_S)
            yield

    def adopt(self) -> None:
        """Make the part the copy; the verdict is then unknown. Call this, ``decide`` and ``fail`` only while locked."""
        os.replace(self.part, self.path)
        self._write(None, "")
        self._tidy()

    def decide(self, chosen: str, why: str) -> None:
        """Write the verdict; a copy that is not chosen is removed."""
        if chosen != "converted":
            self.path.unlink(missing_ok=True)
        self._write(chosen, why)
        self._tidy()

    def fail(self, why: str) -> None:
        """Write that the converter failed."""
        self.path.unlink(missing_ok=True)
        self._write(None, why, failed=self._converter)
        self._tidy()

    def _used(self) -> None:
        """Mark the record as used now: the folder keeps what was used last."""
        # It may be read-only, made by somebody else for this user.
        with contextlib.suppress(OSError):
            os.utime(self.record)

    def _check_folder(self) -> None:
        status = os.stat(self.folder)
        if status.st_uid not in (0, os.geteuid()) or status.st_mode & stat.S_IWOTH:
            raise PermissionError(f"{self.folder} belongs to another user, or every user may write to it")

    def _size_and_time(self) -> list[int] | None:
        try:
            status = os.stat(self.path, follow_symlinks=False)
        except FileNotFoundError:
            return None
        return [status.st_size, status.st_mtime_ns]

    def _recorded(self) -> Any:
        """The JSON of the record; ``None`` where there is none, or nonsense."""
        try:
            self._check_folder()
            return orjson.loads(self.record.read_bytes())
        except (FileNotFoundError, orjson.JSONDecodeError):
            return None

    def _write(self, chosen: str | None, why: str, failed: Mapping[str, str | int] | None = None) -> None:
        copy = self._size_and_time()
        verdict = {"box": self._box, "chosen": chosen, "failed": failed, "why": why}
        record = {"file": self._file, "copy": copy, **verdict}
        new = self.record.with_suffix(".part")
        with open(new, "wb") as file:
            file.write(orjson.dumps(record, option=orjson.OPT_INDENT_2))
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, self.record)

    def _tidy(self) -> None:
        """Remove what was used longest ago, and what a daemon left that was killed."""
        ours = [path for path in self.folder.iterdir() if _OURS.fullmatch(path.name)]
        records = sorted(
            (path for path in ours if path.suffix == ".json"), key=lambda path: path.stat().st_mtime_ns, reverse=True
        )
        copies = [path for path in records if path.with_suffix(".gguf").exists()]
        kept = {path.stem for path in records[:MAX_RECORDS]} - {path.stem for path in copies[MAX_COPIES:]}
        for path in ours:
            if path.suffix == ".part" or path.stem not in kept:
                path.unlink(missing_ok=True)
