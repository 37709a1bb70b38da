"""The file in which a daemon that ends leaves generations to the next one, which reads it once and deletes it.

A head, and for each generation its JSON and the bytes behind it. A file is taken only if every byte of it is as it was
written, by a daemon whose types are the same.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import hashlib
import logging
import os
import stat
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, get_args, get_type_hints

import orjson

from umaserve.dialects.generate.generation import Kept
from umaserve.remote.values import Codec, Malformed, Tail
from umaserve.sessions.caller import Caller
from umaserve.sessions.resumed import Resumed

log = logging.getLogger(__name__)

MAGIC = b"umagens1"
_HEAD = struct.Struct("<8s16s32s")
"""Magic, digest of the types, digest of all behind the head."""
_LENGTHS = struct.Struct("<II")
"""Bytes of JSON, and behind it."""


@dataclass(frozen=True, slots=True)
class Left:
    """A generation that another process may go on with."""

    caller: Caller
    kept: Kept
    begun: Resumed | None
    """Progress of the generation; ``None``: it has ended."""
    expires_at: float
    """Until when its client may resume it, in seconds since 1970."""


def pack(generations: Sequence[Left], max_bytes: int) -> bytes:
    """The file's content, of at most ``max_bytes`` besides the head: the first ones give way."""
    packed: list[bytes] = []
    for left in reversed(generations):
        tail: list[bytes | memoryview] = []
        values = orjson.dumps(_LEFT.write(left, tail))
        behind = b"".join(tail)
        one = _LENGTHS.pack(len(values), len(behind)) + values + behind
        max_bytes -= len(one)
        if max_bytes < 0:
            break
        packed.insert(0, one)
    body = b"".join(packed)
    return _HEAD.pack(MAGIC, _TYPES, hashlib.sha256(body).digest()) + body


def unpack(data: bytes) -> list[Left]:
    """Unpack what ``pack`` was given; raises ``Malformed``."""
    if len(data) < _HEAD.size:
        raise Malformed(f"expected at least {_HEAD.size} bytes, got {len(data)}")
    magic, types, digest = _HEAD.unpack_from(data)
    if magic != MAGIC:
        raise Malformed("it has an unknown format")
    if types != _TYPES:
        raise Malformed("it was written by another version of umaserve")
    body = memoryview(data)[_HEAD.size :]
    if hashlib.sha256(body).digest() != digest:
        raise Malformed("its checksum is wrong")
    return list(_generations(Tail(body)))


def _generations(body: Tail) -> Iterator[Left]:
    while body.left:
        lengths = _LENGTHS.unpack(body.take(_LENGTHS.size))
        values, behind = (body.take(length) for length in lengths)
        try:
            values = orjson.loads(values)
        except orjson.JSONDecodeError as error:
            raise Malformed(str(error)) from None
        tail = Tail(behind)
        left: Left = _LEFT.read(values, tail)
        tail.end()
        yield left


class HandoverFile:
    """The file at ``path``, of some ``max_bytes`` at most."""

    def __init__(self, path: str, max_bytes: int) -> None:
        self._path = path
        self._max_bytes = max_bytes

    def take(self) -> list[Left]:
        """Take what the process before this one left. It is deleted, also where it can't be used, which is logged; only
        what such a process can't have written stays."""
        try:
            data = self._read()
            os.unlink(self._path)
            generations = unpack(data)
        except FileNotFoundError:
            return []
        except (OSError, Malformed) as error:
            log.warning("the generations that the previous daemon saved in %s are lost: %s", self._path, error)
            return []
        log.info("restored generations of the previous daemon", extra={"fields": {"generations": len(generations)}})
        return generations

    def _read(self) -> bytes:
        # No link is followed, and no pipe waited for.
        descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
                raise Malformed("expected a file that only this user can access; it is not deleted")
            data = file.read(_HEAD.size + self._max_bytes + 1)
        if not data.startswith(MAGIC):
            raise Malformed("it has an unknown format; it is not deleted")
        if len(data) > _HEAD.size + self._max_bytes:
            os.unlink(self._path)
            raise Malformed(f"it has more than {self._max_bytes} bytes")
        return data

    def write(self, generations: Sequence[Left]) -> None:
        """Leave these to the next process; where that can't be, the log says why."""
        part = f"{self._path}.part"
        try:
            if os.path.lexists(self._path):
                raise FileExistsError("another file exists there")
            with contextlib.suppress(FileNotFoundError):
                os.unlink(part)
            descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with open(descriptor, "wb") as file:
                file.write(pack(generations, self._max_bytes))
            os.rename(part, self._path)
        except OSError as error:
            log.error("running generations could not be saved in %s for the next daemon: %s", self._path, error)
        else:
            log.info(
                "saved running generations for the next daemon", extra={"fields": {"generations": len(generations)}}
            )


def _digest_of_types(hint: Any) -> bytes:
    """Digest of all fields of all types that ``hint`` consists of: values are told apart by their places only."""
    known: dict[Any, str] = {}
    _describe(hint, known)
    return hashlib.blake2b("\n".join(sorted(known.values())).encode(), digest_size=16).digest()


def _describe(hint: Any, known: dict[Any, str]) -> None:
    for argument in get_args(hint):
        _describe(argument, known)
    if not isinstance(hint, type) or hint in known:
        return
    if issubclass(hint, enum.Enum):
        known[hint] = f"{hint} {[member.name for member in hint]}"
    elif dataclasses.is_dataclass(hint) or hasattr(hint, "_fields"):
        fields = get_type_hints(hint, include_extras=True)
        known[hint] = f"{hint} {fields}"
        for field in fields.values():
            _describe(field, known)


_LEFT = Codec({}).of(Left)
_TYPES = _digest_of_types(Left)
