"""Why a request has no slot, for people who look at the box."""

from __future__ import annotations

import enum

from umaserve.sessions.session import Hold, Session


class Why(enum.Enum):
    """What a request without a slot waits for."""

    MODEL = "model"
    """Its model is not loaded."""
    OTHER_MODEL = "other_model"
    """Its model takes nothing new, since it is to make way for another one, or to be unloaded."""
    PAUSE = "pause"
    READER = "reader"
    """Its client, which has a lot still to read."""
    DETACHED = "detached"
    """Its client, which has lost its connection."""
    TRIAL = "trial"
    """A request that may have crashed the engine runs alone."""
    PREPARING = "preparing"
    """Its prompt is being prepared, or others' are before it."""
    MEDIA = "media"
    """Its media are being encoded, or others' are before them."""
    PREFIX = "prefix"
    """Another request computes what its prompt begins with."""
    DISK = "disk"
    """What its prompt begins with is read from disk."""
    SLOTS = "slots"
    CELLS = "cells"
    TURN = "turn"
    """There is room: others are before it."""


_HOLDS = {Hold.PAUSE: Why.PAUSE, Hold.DETACHED: Why.DETACHED, Hold.READER: Why.READER}


def held_by(session: Session) -> Why | None:
    """Why a session gets no tokens for now; ``None``: nobody holds it."""
    return next((why for hold, why in _HOLDS.items() if hold in session.holds), None)
