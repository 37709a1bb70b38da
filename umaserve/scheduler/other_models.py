"""What the schedulers that share a compute thread know of each other: rule 11 of ``policy``."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

from umaserve.scheduler.policy.snapshot import OtherModelsLoad, Prompt, Snapshot, Stream, is_background
from umaserve.scheduler.work import Work

NOTHING = OtherModelsLoad()


class OtherModels:
    """Load of each scheduler's model: what it has to run, as of its latest plan."""

    def __init__(self, wake: Callable[[], None] = lambda: None) -> None:
        """``wake`` has all schedulers plan again: one may have left the next tick to another that has no prompts."""
        self._of: dict[object, OtherModelsLoad] = {}
        self._wake = wake

    def tell(self, who: object, what: OtherModelsLoad) -> None:
        """Set ``what``: all that the others have to know of ``who``."""
        waited = who in self._of and self._of[who].waits
        self._of[who] = what
        if waited and not what.waits:
            self._wake()

    def elsewhere(self, who: object) -> OtherModelsLoad:
        """Sum of the loads of all others."""
        others = [what for other, what in self._of.items() if other is not who]
        if not others:
            return NOTHING
        return OtherModelsLoad(
            decode_s=sum([one.decode_s for one in others]),
            target_s=min([one.target_s for one in others], default=math.inf),
            prefilling=any(one.prefilling for one in others),
            prefilled_at=min([one.prefilled_at for one in others], default=math.inf),
            planned_s=sum([one.planned_s for one in others]),
        )

    def leave(self, who: object) -> None:
        """Remove ``who``, which plans no more."""
        self._of.pop(who, None)
        self._wake()


def seen_elsewhere(snapshot: Snapshot, work: Work, planned_s: float) -> OtherModelsLoad:
    """Load of a model as the others see it while ``work`` runs, which was planned of ``snapshot`` and takes
    ``planned_s``. A prompt that gets its last tokens is a stream already: what the others plan now comes before its
    next token."""
    sampled = {
        session.id for session, run in zip(work.sessions, work.tick.runs, strict=True) if run.sampler is not None
    }
    streams: list[Stream | Prompt] = [
        *snapshot.streams,
        *(prompt for prompt in snapshot.prompts if prompt.id in sampled),
    ]
    urgent = [one for one in streams if not is_background(one.priority, one.arrived_at, snapshot.now)] or streams
    sets = {one.adapters for one in (*streams, *(prompt for prompt in snapshot.prompts if prompt.started))}
    rows = Counter(stream.adapters for stream in streams)
    # Of the others in this set of adapters, it is not the turn, or they have no cells.
    rows[work.tick.adapters] = len(sampled)
    most = max(rows.values())
    prefilled_at = snapshot.now if work.prefill_rows else snapshot.prefilled_at
    return OtherModelsLoad(
        decode_s=snapshot.cost.seconds(most, 0, snapshot.cached) if most else 0.0,
        target_s=min([one.target_tbt_s for one in urgent], default=math.inf) / max(1, len(sets)),
        prefilling=work.prefill_rows > 0,
        prefilled_at=prefilled_at if work.throttled else math.inf,
        planned_s=planned_s,
    )
