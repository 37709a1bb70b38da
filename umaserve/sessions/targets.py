"""How soon answers are to come."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Targets:
    """Latency targets of requests that name none; seconds."""

    ttft_s: float
    tbt_s: float
