"""Why a request has no slot, for people who look at the box."""

from __future__ import annotations

import enum

from umaserve.sessions.session import Hold, Session


class Why(enum.Enum):
    """What a request without a slot waits for."""

    MODEL = "model"
    """Waits for its model, which is not loaded."""
    OTHER_MODEL = "other_model"
    """Waits while its model takes nothing new, since it is to make way for another one, or to be unloaded."""
    PAUSE = "pause"
    READER = "reader"
    """Waits for its client, which has a lot still to read."""
    DETACHED = "detached"
    """Waits for its client, which has lost its connection."""
    TRIAL = "trial"
    """Waits while a request that may have crashed the engine runs alone."""
    PREPARING = "preparing"
    """Waits while its prompt is being prepared, or others' before it."""
    MEDIA = "media"
    """Waits while its media are being encoded, or others' before them."""
    PREFIX = "prefix"
    """Waits while another request computes what its prompt begins with."""
    DISK = "disk"
    """Waits while what its prompt begins with is read from disk."""
    SLOTS = "slots"
    CELLS = "cells"
    TURN = "turn"
    """Waits for its turn: there is room, and others are before it."""


_HOLDS = {Hold.PAUSE: Why.PAUSE, Hold.DETACHED: Why.DETACHED, Hold.READER: Why.READER}


def held_by(session: Session) -> Why | None:
    """Why a session gets no tokens for now; ``None``: nobody holds it."""
    return next((why for hold, why in _HOLDS.items() if hold in session.holds), None)
