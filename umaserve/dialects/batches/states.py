"""The states of a batch, by OpenAI's names, and what moves it from one to another."""

from __future__ import annotations

import enum


class Status(enum.StrEnum):
    """Status of a batch."""

    VALIDATING = "validating"
    """Lines are looked at, and none runs."""
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    """No line runs any more, and its files are being finished."""
    COMPLETED = "completed"
    FAILED = "failed"
    """Neither begun nor finished: something is wrong with it."""
    EXPIRED = "expired"
    """Time was over before all lines had run."""
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"


class Event(enum.Enum):
    """What happens to a batch."""

    VALID = enum.auto()
    RAN = enum.auto()
    """All lines have run, or its time is over."""
    FINISHED = enum.auto()
    """Files are finished."""
    TIMED_OUT = enum.auto()
    """Files are finished, and some lines never ran."""
    CANCEL = enum.auto()
    FAIL = enum.auto()


TRANSITIONS: dict[tuple[Status, Event], Status] = {
    (Status.VALIDATING, Event.VALID): Status.IN_PROGRESS,
    (Status.VALIDATING, Event.CANCEL): Status.CANCELLING,
    (Status.VALIDATING, Event.FAIL): Status.FAILED,
    (Status.IN_PROGRESS, Event.RAN): Status.FINALIZING,
    (Status.IN_PROGRESS, Event.CANCEL): Status.CANCELLING,
    (Status.IN_PROGRESS, Event.FAIL): Status.FAILED,
    (Status.FINALIZING, Event.FINISHED): Status.COMPLETED,
    (Status.FINALIZING, Event.TIMED_OUT): Status.EXPIRED,
    (Status.FINALIZING, Event.FAIL): Status.FAILED,
    (Status.CANCELLING, Event.FINISHED): Status.CANCELLED,
    (Status.CANCELLING, Event.FAIL): Status.FAILED,
}
ENDS = (Status.COMPLETED, Status.FAILED, Status.EXPIRED, Status.CANCELLED)
