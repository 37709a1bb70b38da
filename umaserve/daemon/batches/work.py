"""What one batch has on disk: its lines, and the results, which are also the record of what is done."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import BinaryIO, NamedTuple

from umaserve.core.errors import RequestError
from umaserve.dialects.batches.lines import (
    MAX_LINE_BYTES,
    Checked,
    Line,
    check_lines,
    id_of,
    not_run,
    read_line,
)
from umaserve.dialects.batches.stored_batch import Problem, StoredBatch

AHEAD, AHEAD_BYTES = 8, 1 << 20
"""Lines that are read at a time, and after how many bytes no more are."""
_EXPIRED = ("batch_expired", "This request was not run before the batch expired.")


class Unusable(Exception):
    """A batch that can't go on."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


class Read(NamedTuple):
    """The next lines; ``last``: no others follow."""

    lines: list[Line]
    last: bool


class Sizes(NamedTuple):
    """Bytes of the files of results."""

    output: int
    errors: int


class Work:
    """The files of one batch; used by the files' thread only.

    The input is a link of its own, so that its client may delete the file. Each result is appended in one write, and
    what a killed daemon has written in part is cut off: so what is in the files is done, and nothing else.
    """

    def __init__(self, batch: StoredBatch, path: Callable[[str], str], max_bytes: int) -> None:
        """``path``: of a file by its name. ``max_bytes``: of each file of results."""
        self._batch_id = batch.id
        self._endpoint = batch.endpoint
        self._sent, self._own = path(batch.input_id), path(batch.id)
        self._results = {True: path(batch.output_id), False: path(batch.error_id)}
        self._max_bytes = max_bytes
        self._done = set[str]()
        self._written: dict[bool, BinaryIO] = {}
        self._lines: Iterator[tuple[int, bytes]] = iter(())
        self._input: BinaryIO | None = None

    def check(self) -> Checked:
        """Take the input, and look at all lines; raises ``Unusable``."""
        try:
            os.link(self._sent, self._own)
        except FileExistsError:
            pass  # By the daemon before this one.
        except FileNotFoundError:
            message = "input_file_id: expected a file that is still stored, got one that was deleted"
            raise Unusable(Problem("file_not_found", message, "input_file_id")) from None
        with open(self._own, "rb") as file:
            return check_lines(_numbered(file), self._endpoint)

    def resume(self) -> tuple[int, int]:
        """Open the files, and return how many lines have an answer by now, and how many have failed."""
        counts = {}
        for well, path in self._results.items():
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            self._written[well] = os.fdopen(file, "r+b", buffering=0)
            counts[well] = self._take_up(well)
        # There is none where the batch was cancelled before it was looked at.
        if os.path.exists(self._own):
            self._input = os.fdopen(os.open(self._own, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb")
            self._lines = _numbered(self._input)
        return counts[True], counts[False]

    def next(self) -> Read:
        """The next lines that have no result. Raises ``Unusable``."""
        lines: list[Line] = []
        n_bytes = 0
        for line in self._rest():
            lines.append(line)
            n_bytes += len(line.body)
            if len(lines) == AHEAD or n_bytes >= AHEAD_BYTES:
                return Read(lines, last=False)
        return Read(lines, last=True)

    def write(self, line: bytes, *, well: bool) -> None:
        """Append a result; ``well``: to the output. Raises ``Unusable``."""
        file = self._written[well]
        if file.tell() + len(line) > self._max_bytes:
            what = "output" if well else "errors"
            message = f"its {what} would have more than {self._max_bytes} bytes: send fewer lines in a batch"
            raise Unusable(Problem("output_too_large", message))
        rest = memoryview(line)
        while rest:
            rest = rest[file.write(rest) :]

    def expire(self) -> int:
        """Write for each line without a result that it has expired, and return how many these are. Raises
        ``Unusable``."""
        # From the start, since lines that were read have perhaps not run.
        self._release()
        self.resume()
        n_lines = 0
        for line in self._rest():
            self.write(not_run(self._batch_id, line, *_EXPIRED), well=False)
            n_lines += 1
        return n_lines

    def close(self) -> Sizes:
        """End the work. Files without results go; the input stays until the end of the batch is known on disk."""
        self._release()
        sizes = {}
        for well, path in self._results.items():
            sizes[well] = os.path.getsize(path) if os.path.exists(path) else 0
            if not sizes[well]:
                _delete(path)
        return Sizes(sizes[True], sizes[False])

    def delete(self) -> None:
        """Delete all files."""
        self.close()
        for path in (self._own, *self._results.values()):
            _delete(path)

    def _release(self) -> None:
        for file in (*self._written.values(), *([] if self._input is None else [self._input])):
            file.close()
        self._written.clear()

    def _take_up(self, well: bool) -> int:
        """Note which lines have results in a file, and cut off what isn't whole."""
        file, end, n = self._written[well], 0, 0
        with open(self._results[well], "rb") as results:
            for written in results:
                custom_id = id_of(written)
                if custom_id is None:
                    break
                self._done.add(custom_id)
                end += len(written)
                n += 1
        file.truncate(end)
        file.seek(end)
        return n

    def _rest(self) -> Iterator[Line]:
        for number, text in self._lines:
            try:
                line = read_line(text, number, self._endpoint)
            except RequestError as error:
                # It was well once: somebody has changed the file.
                raise Unusable(Problem("invalid_request", error.message, error.field, number)) from None
            if line.custom_id not in self._done:
                yield line


def _numbered(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """The lines that aren't empty, with their numbers. One that is too long is cut, and the last."""
    number = 0
    while text := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        text = text.strip()
        if text:
            yield number, text
        if len(text) > MAX_LINE_BYTES:
            return


def _delete(path: str) -> None:
    if os.path.exists(path):
        os.unlink(path)
