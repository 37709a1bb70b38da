"""A batch: its state, what is told of it, and its row in the store."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from umaserve.dialects.batches.states import ENDS, TRANSITIONS, Event, Status
from umaserve.dialects.batches.stored_file import is_file_id
from umaserve.dialects.responses.kept import Entry

WINDOW, WINDOW_S = "24h", 86400
MAX_PROBLEMS = 100
"""What is told of the lines that are wrong."""
_BATCH_ID = re.compile(r"batch_[0-9a-f]{24}")
_BYTES = 4096
"""Memory that a batch takes besides its problems and its metadata, estimated."""


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with a batch as a whole."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None
    """Number of the line, counted from 1; ``None``: it is no line's."""

    def told(self) -> dict[str, Any]:
        return {"code": self.code, "message": self.message, "param": self.param, "line": self.line}


@dataclass(slots=True, eq=False, kw_only=True)
class StoredBatch(Entry):
    """One batch. The names of its files are chosen before there are any, so that a daemon after this one finds them."""

    endpoint: str
    input_id: str
    output_id: str
    error_id: str
    created_at: int
    """Seconds since 1970, as all of its times."""
    metadata: Mapping[str, str] | None
    status: Status = Status.VALIDATING
    times: dict[str, int] = field(default_factory=dict)
    """When it came to each status after the first."""
    total: int = 0
    """Lines that it has."""
    completed: int = 0
    failed: int = 0
    problems: Sequence[Problem] = ()
    files: frozenset[str] = frozenset()
    """The ids of the output and of the errors, of which there is one once the batch has ended."""
    cancel: Callable[[], None] | None = None
    """Ends it; ``None``: it has ended."""
    gone: Callable[[], object] = field(default=lambda: None)
    """Is called once it is forgotten."""

    @property
    def ended(self) -> bool:
        return self.status in ENDS

    @property
    def expires_at(self) -> int:
        return self.created_at + WINDOW_S

    @property
    def names(self) -> tuple[str, ...]:
        """The names of what it has on disk until it has ended."""
        return () if self.ended else (self.id, self.output_id, self.error_id)

    def move(self, event: Event, now: int) -> None:
        """Go to another status, at ``now``."""
        self.status = TRANSITIONS[self.status, event]
        self.times = {**self.times, f"{self.status}_at": now}

    def texts(self) -> list[bytes]:
        return [bytes(_BYTES), orjson.dumps(self.metadata), orjson.dumps([one.told() for one in self.problems])]

    def end(self) -> None:
        self.gone()

    def told(self) -> dict[str, Any]:
        """The batch as its client sees it."""
        return {
            "id": self.id,
            "object": "batch",
            "endpoint": self.endpoint,
            "errors": {"object": "list", "data": [one.told() for one in self.problems]} if self.problems else None,
            "input_file_id": self.input_id,
            "completion_window": WINDOW,
            "status": self.status,
            "output_file_id": self.output_id if self.output_id in self.files else None,
            "error_file_id": self.error_id if self.error_id in self.files else None,
            "created_at": self.created_at,
            "expires_at": self.expires_at,
            **{f"{one}_at": self.times.get(f"{one}_at") for one in Status if one is not Status.VALIDATING},
            "request_counts": {"total": self.total, "completed": self.completed, "failed": self.failed},
            "metadata": self.metadata,
        }


def packed_batch(batch: StoredBatch) -> bytes:
    """A batch as JSON, without its id."""
    values = {
        "endpoint": batch.endpoint,
        "files": [batch.input_id, batch.output_id, batch.error_id],
        "created_at": batch.created_at,
        "metadata": batch.metadata,
        "status": batch.status,
        "times": batch.times,
        "counts": [batch.total, batch.completed, batch.failed],
        "problems": [one.told() for one in batch.problems],
        "shown": sorted(batch.files),
    }
    return orjson.dumps(values)


def batch_of(batch_id: str, content: bytes) -> StoredBatch:
    """The batch that ``packed_batch`` was given; raises ``ValueError``."""
    match orjson.loads(content):
        case {
            "endpoint": str(endpoint),
            "files": [str(input_id), str(output_id), str(error_id)],
            "created_at": int(created_at),
            "metadata": None | dict() as metadata,
            "status": str(status),
            "times": dict(times),
            "counts": [int(total), int(completed), int(failed)],
            "problems": list(problems),
            "shown": list(shown),
        }:
            names = (input_id, output_id, error_id)
            texts = all(isinstance(text, str) for text in (metadata or {}).values())
            if (
                texts
                and all(isinstance(at, int) for at in times.values())
                and all(map(is_file_id, names))
                and len({*names}) == len(names)
                and {*shown} <= {*names}
                and _BATCH_ID.fullmatch(batch_id)
            ):
                return StoredBatch(
                    id=batch_id,
                    endpoint=endpoint,
                    input_id=input_id,
                    output_id=output_id,
                    error_id=error_id,
                    created_at=created_at,
                    metadata=metadata,
                    status=Status(status),
                    times=times,
                    total=total,
                    completed=completed,
                    failed=failed,
                    problems=[_problem(one) for one in problems],
                    files=frozenset(shown),
                )
    raise ValueError("it is not a batch")


def _problem(values: object) -> Problem:
    match values:
        case {"code": str(code), "message": str(text), "param": None | str() as param, "line": None | int() as line}:
            return Problem(code, text, param, line)
    raise ValueError("one of its errors is invalid")
