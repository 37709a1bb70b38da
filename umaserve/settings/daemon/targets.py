"""Settings of the daemon: targets of latency."""

from __future__ import annotations

from dataclasses import dataclass

from umaserve.settings.kinds import real
from umaserve.settings.sources import setting


@dataclass(frozen=True)
class Targets:
    """Targets of latency."""

    slo_ttft_ms: float = setting(
        1000.0,
        real("ms", 1, 3600000),
        "targets",
        "target for the time to first token; a request may set another",
        about="Target for the time to first token in milliseconds, 1 to 3600000, for requests that set none. Waiting "
        "prompts are ordered by the deadlines that follow from it. It is a target, not a guarantee.",
    )
    slo_tbt_ms: float = setting(
        80.0,
        real("ms", 1, 3600000),
        "targets",
        "target for the time between tokens; a request may set another",
        about="Target for the time between tokens in milliseconds, 1 to 3600000, for requests that set none. A lower "
        "target makes streams smoother and lets new prompts wait longer; a higher one does the opposite.",
    )
